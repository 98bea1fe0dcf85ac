"""Merge methods: several tensors of one shape into one, with mergekit's names and parameters.

A method is given its *pieces*: runs of elements, at the same place of the base and of every input. It
may look at all of them first, for what it has to know of the whole tensor (norms, angles, the
element of a rank), and returns a function that merges one piece. So no tensor is needed whole, and
what comes out depends neither on how many threads work nor on which piece is asked for first:
sums are formed piece by piece in a fixed order, ranks are exact, and random numbers are a function
of the seed, the tensor's name and the element's place.
"""

"""The other processes of a distributed run: what they have to agree on, and what differs between them.

Every rank must take the same kind of step: one that rolls back while another goes on is a deadlock.
So decisions are made in one of three ways:

* from what all ranks see alike: the number of the step, and readings that are averaged over the ranks;
* from what one rank knows (a signal, the clock, a writer that is behind, a failed commit): in a note
  that travels in the message of the step, beside the readings, so that it arrives everywhere at the same
  step and costs no message of its own (``notes``, ``messages``);
* by rank 0, which tells the others, where all ranks meet anyway (``group``).

With one process, nothing here does anything.
"""

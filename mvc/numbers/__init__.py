"""Pure arithmetic on tensors: what elements mean, statistics, spectra, merge methods.

Arrays in, numbers or arrays out. Nothing here knows files, commits or the store; all of it works
piece by piece, so that no tensor is ever needed whole.
"""

"""A cast body decoded in one go, from masters that are already at hand."""

from __future__ import annotations

import numpy as np

from mvc.errors import FormatError
from mvc.formats.casts import round_words
from mvc.formats.decoding import parse_cast


def apply_cast(body, master, plain, scratch):
    """Fill ``plain`` by rounding ``master``, as the body says."""
    references = parse_cast(body)
    if not master.nbytes or not plain.nbytes:
        raise FormatError("cast of nothing")
    source, target = np.frombuffer(master, np.uint8), np.frombuffer(plain, np.uint8)
    round_words(references.words, source, target, scratch.arena)

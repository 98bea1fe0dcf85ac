"""Mixing of 64-bit words, so that words which differ little have nothing in common afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = NDArray[np.uint64]

STEP = np.uint64(0x9E3779B97F4A7C15)
"""The odd number by which SplitMix64 goes on; words are moved by it, or multiplied, before they are mixed."""
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)


def mix_words(words: Words) -> Words:
    """Mix words in place, and return them; the function of a word is one to one.

    It is the output function of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
    number generators", 2014).
    """
    words ^= words >> _SHIFTS[0]
    words *= _FIRST
    words ^= words >> _SHIFTS[1]
    words *= _SECOND
    words ^= words >> _SHIFTS[2]
    return words

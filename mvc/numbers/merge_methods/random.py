"""Random numbers that are a function of seed, tensor, input and place, whatever draws them when.

Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) turns a counter into
random bits, so that any place can be asked alone.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WORDS_PER_COUNT = 8  # 32-bit words of one value of the counter


def draw(seed: int, name: str, number: int, first: int, count: int) -> NDArray[np.uint32]:
    """Return random words of 32 bits for elements from ``first`` on of one input's tensor."""
    digest = blake2b(f"{seed} {number} {name}".encode(errors="surrogatepass"), digest_size=16)
    counter, skipped = divmod(first, _WORDS_PER_COUNT)
    source = np.random.Philox(key=int.from_bytes(digest.digest(), "little"), counter=counter)
    raw = source.random_raw(-(-(skipped + count) // 2)).astype("<u8", copy=False).view("<u4")
    return raw[skipped : skipped + count]


def chance_words(chance: float | NDArray[np.floating[Any]]) -> NDArray[np.uint32]:
    """Return below which word a draw hits, for chances from 0 to below 1."""
    return np.asarray(np.floor(np.asarray(chance, np.float64) * 2.0**32), np.uint32)

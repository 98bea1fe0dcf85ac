"""The digest of a multiset of samples: what ranks and workers saw adds up, in any order.

A sample is (name of its source, index), or (name of its source, key) where it has no index. It is
hashed to four lanes of 64 bits; the digest of a multiset is the sum of its samples' lanes modulo
2^64, with their number (the additive multiset hash of Clarke et al., "Incremental Multiset Hash
Functions", 2003, with a mixing function in place of a keyed hash). So digests of parts can be added,
and that of an earlier state can be subtracted from that of a later one.

Each lane is the output function of SplitMix64 (``mvc/mixing.py``) over the index, moved by a key
that comes from the name of the source. Two multisets that differ by mistake have the same digest with
a probability of 2^-256. It finds faults, not forgers: the mixing can be inverted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Self

import numpy as np
from blake3 import blake3

from mvc.errors import FormatError
from mvc.mixing import STEP, mix_words

if TYPE_CHECKING:
    from numpy.typing import NDArray

LANES = 4
_LANE_BYTES = 8
_BLOCK = 1 << 14  # samples whose lanes stay in a core's cache
_MOST = 1 << 63


@dataclass(frozen=True, slots=True)
class SampleDigest:
    """The digest of a multiset of samples, and their number; those of its parts add up."""

    count: int = 0
    lanes: tuple[int, ...] = (0,) * LANES

    @classmethod
    def of(cls, source: str, indices: NDArray[np.int64] | range | Iterable[int]) -> Self:
        """Return the digest of samples of a source, by index; one that comes twice counts twice."""
        if isinstance(
            indices, range
        ):  # piece by piece: it may be longer than what fits into memory
            total = cls()
            for first in range(0, len(indices), _BLOCK):
                part = indices[first : first + _BLOCK]
                total += cls.of(source, np.arange(part.start, part.stop, part.step, dtype=np.int64))
            return total
        values = np.asarray(indices, np.int64).ravel()
        return cls(values.size, _sum_lanes(_derive(source, "index"), values.view(np.uint64)))

    @classmethod
    def of_keys(cls, source: str, keys: Iterable[str]) -> Self:
        """Return the digest of samples that have a key in place of an index."""
        hashed = b"".join(blake3(key.encode()).digest(_LANE_BYTES) for key in keys)
        values = np.frombuffer(hashed, "<u8").astype(np.uint64)
        return cls(values.size, _sum_lanes(_derive(source, "key"), values))

    def __add__(self, other: SampleDigest) -> Self:
        lanes = zip(self.lanes, other.lanes, strict=True)
        return type(self)(self.count + other.count, tuple((a + b) % 2**64 for a, b in lanes))

    def __sub__(self, other: SampleDigest) -> Self:
        negative = type(self)(-other.count, tuple(-lane for lane in other.lanes))
        return self + negative

    @property
    def hex(self) -> str:
        """The lanes as 64 hexadecimal digits."""
        return "".join(f"{lane:016x}" for lane in self.lanes)

    @classmethod
    def parse(cls, count: object, text: object) -> Self:
        """Return a stored digest.

        Raises:
            FormatError: it is malformed.
        """
        width = 2 * _LANE_BYTES
        if type(count) is not int or not 0 <= count < _MOST:
            raise FormatError("a ledger has no number of samples")
        is_hex = type(text) is str and len(text) == width * LANES
        if not is_hex or not set(str(text)) <= set("0123456789abcdef"):
            raise FormatError("a ledger has no digest of its samples")
        digits = str(text)
        return cls(count, tuple(int(digits[at : at + width], 16) for at in range(0, 64, width)))


@lru_cache(maxsize=1024)
def _derive(source: str, kind: str) -> tuple[int, ...]:
    """Return the key of each lane for samples of a source."""
    hashed = blake3(f"mvc sample {kind}\0{source}".encode()).digest(_LANE_BYTES * LANES)
    return tuple(int(key) for key in np.frombuffer(hashed, "<u8"))


def _sum_lanes(keys: tuple[int, ...], values: NDArray[np.uint64]) -> tuple[int, ...]:
    totals = [0] * LANES
    for first in range(0, values.size, _BLOCK):
        stepped = values[first : first + _BLOCK] * STEP
        for lane, key in enumerate(keys):
            mixed = mix_words(stepped + np.uint64(key))
            totals[lane] += int(mixed.sum(dtype=np.uint64))
    return tuple(total % 2**64 for total in totals)

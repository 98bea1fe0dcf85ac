"""Which element has a rank, exactly and in bounded memory.

Values are ordered by the bits of their float32, counted by their upper halves and, in a second pass,
by the lower halves of those that share the wanted upper one. Of equal values, the one that comes
later in the tensor has the higher rank; so every piece has to know how many equal ones come before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from mvc.numbers.merge_methods.method import Array, Piece, Pieces

    Keys = NDArray[Any]
    Scores = Callable[[Piece], Sequence[Array]]

_HALF = 2**16


def order_keys(values: Array) -> Keys:
    """Return whole numbers in the order of the values as float32; NaN comes last."""
    bits = (values.astype(np.float32, copy=False) + np.float32(0)).view(np.uint32)  # no -0.0
    signs = bits >> np.uint32(31)
    if not signs.any():  # magnitudes, as a rule: their bits are in order, NaN the last
        return bits | np.uint32(2**31)
    flipped = np.where(signs == 0, bits | np.uint32(2**31), ~bits)
    return np.where(np.isnan(values), np.uint32(2**32 - 1), flipped)


def find_keys(pieces: Pieces, scores: Scores, ranks: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the keys that have some ranks, counted from the smallest.

    Args:
        pieces: the tensor; gone through twice.
        scores: what is ranked; any number of values per element.
        ranks: those that are wanted of each.
    """
    upper = _count(pieces, lambda piece: [order_keys(one) >> 16 for one in scores(piece)])
    places = [
        [_locate(counts, rank) for rank in some] for counts, some in zip(upper, ranks, strict=True)
    ]
    bins = [sorted({half for half, _ in some}) for some in places]

    def lower(piece: Piece) -> list[Keys]:
        """Keys of the wanted upper halves, numbered by these; all others fall into a last bin."""
        return [
            _low_half(order_keys(one), some) for one, some in zip(scores(piece), bins, strict=True)
        ]

    counts = _count(pieces, lower)
    found: list[list[int]] = []
    for some, halves, count in zip(places, bins, counts, strict=True):
        keys = []
        for half, rest in some:
            number = halves.index(half)
            low, _ = _locate(count[number * _HALF : (number + 1) * _HALF], rest)
            keys.append(half << 16 | low)
        found.append(keys)
    return found


def _low_half(keys: Keys, bins: Sequence[int]) -> Keys:
    parts = [
        (keys[keys >> 16 == half] & np.uint32(_HALF - 1)) + np.uint32(number * _HALF)
        for number, half in enumerate(bins)
    ]
    return np.concatenate(parts) if parts else keys[:0]


def _count(pieces: Pieces, halves: Callable[[Piece], Sequence[Keys]]) -> list[NDArray[np.int64]]:
    """Add up how often every number occurs."""

    def count(piece: Piece) -> list[NDArray[np.int64]]:
        return [np.bincount(one, minlength=_HALF) for one in halves(piece)]

    totals: list[NDArray[np.int64]] = []
    for counts in pieces.map(count):
        totals = totals or [np.zeros(0, np.int64)] * len(counts)
        totals = [_add(old, new) for old, new in zip(totals, counts, strict=True)]
    return totals


def _add(old: NDArray[np.int64], new: NDArray[np.int64]) -> NDArray[np.int64]:
    if len(old) < len(new):
        old, new = new, old
    added = old.copy()
    added[: len(new)] += new
    return added


def _locate(counts: NDArray[np.int64], rank: int) -> tuple[int, int]:
    """Return the bin that holds a rank, and the rank within it."""
    ends = np.cumsum(counts)
    place = int(np.searchsorted(ends, rank, side="right"))
    return place, rank - int(ends[place] - counts[place])


@dataclass(frozen=True, slots=True)
class RankRange:
    """The elements whose rank is in a range: a mask of any piece.

    Attributes:
        low, high: keys at both ends.
        skipped: how many that equal ``low`` are below the range.
        kept: how many that equal ``high`` are in it, with the skipped ones if it equals ``low``.
        before: by the first element of a piece: how many before it equal ``low``, and ``high``.
    """

    low: int
    high: int
    skipped: int
    kept: int
    before: dict[int, tuple[int, int]]

    def mask(self, first: int, values: Array) -> NDArray[np.bool_]:
        """Return which elements of the piece at ``first`` are in the range."""
        keys = order_keys(values)
        lows, highs = self.before[first]
        above = _late(keys, self.low, self.skipped - lows)
        return above & ~_late(keys, self.high, self.kept - highs)


def _late(keys: Keys, key: int, early: int) -> NDArray[np.bool_]:
    """Return which keys are above one, or equal to it after some ``early`` ones."""
    if early <= 0:
        mask: NDArray[np.bool_] = keys >= np.uint32(key)
        return mask
    mask = keys > np.uint32(key)
    equal = np.flatnonzero(keys == np.uint32(key))
    mask[equal[early:]] = True
    return mask


def rank_ranges(
    pieces: Pieces, scores: Scores, ranges: Sequence[tuple[int, int] | None]
) -> list[RankRange | None]:
    """Return what selects ranks ``start`` to ``end`` (without it) of each score; None for all.

    The tensor must hold as many elements, and the range at least one.
    """
    wanted = [number for number, one in enumerate(ranges) if one is not None]
    if not wanted:
        return [None] * len(ranges)

    def some(piece: Piece) -> list[Array]:
        values = scores(piece)
        return [values[number] for number in wanted]

    bounds = [one for one in ranges if one is not None]
    keys = find_keys(pieces, some, [(start, end - 1) for start, end in bounds])

    def look(piece: Piece) -> tuple[int, NDArray[np.int64]]:
        rows = []
        for values, ends in zip(some(piece), keys, strict=True):
            own = order_keys(values)
            marks = np.array(ends, np.uint32)
            rows.append([np.count_nonzero(own < marks[0]), np.count_nonzero(own == marks[0]),
                         np.count_nonzero(own < marks[1]), np.count_nonzero(own == marks[1])])  # fmt: skip
        return piece.first, np.array(rows, np.int64)

    seen = list(pieces.map(look))
    totals = sum((counts for _, counts in seen), np.zeros((len(wanted), 4), np.int64))
    found: list[RankRange | None] = [None] * len(ranges)
    for row, number in enumerate(wanted):
        (start, end), before, lows, highs = bounds[row], {}, 0, 0
        for first, counts in seen:
            before[first] = lows, highs
            lows, highs = lows + int(counts[row, 1]), highs + int(counts[row, 3])
        low, high = keys[row]
        skipped, kept = start - int(totals[row, 0]), end - int(totals[row, 2])
        found[number] = RankRange(low, high, skipped, kept, before)
    return found

"""Which element has a rank, exactly and in bounded memory.

Values are ordered by the bits of their float32. A sample says between which two a rank will be
(after Floyd and Rivest, "Expected time bounds for selection", 1975); one pass counts what is below
and holds the few between them. Where the sample misled, two passes count all by the upper halves of
their bits and then by the lower ones.

Of equal values, the one that comes later in the tensor has the higher rank; so every piece has to
know how many equal ones come before it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.numbers.merge_methods.method import Array, MergePiece, MergePieces

    Keys = NDArray[Any]
    Scores = Callable[[MergePiece], Sequence[Array]]
    Bracket = tuple[int, int]

_HALF = 2**16
_SAMPLED = 2**18  # elements, if the tensor has as many; more where it has over 255 times that
_MOST_KEYS = 2**23  # that are held between the ends of all brackets
_NOTHING = np.empty(0, np.uint32)
_DEVIATIONS = 5  # a rank is farther off than that once in a million samples


def order_keys(values: Array) -> Keys:
    """Return whole numbers in the order of the values as float32; NaN comes last."""
    bits = (values.astype(np.float32, copy=False) + np.float32(0)).view(np.uint32)  # no -0.0
    top = np.uint32(2**31)
    if bits.view(np.int32).min(initial=0) >= 0:  # magnitudes, as a rule: in order, NaN the last
        return np.bitwise_or(bits, top, out=bits)
    flipped = np.where(bits < top, bits | top, ~bits)
    return np.where(np.isnan(values), np.uint32(2**32 - 1), flipped)


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank is."""

    key: int  # of the element that has it
    below: int  # how many elements have a smaller key
    before: Mapping[int, int]  # by the first element of a piece: how many before that have this key

    def cut(self, first: int, keys: Keys, rank: int) -> NDArray[np.bool_]:
        """Return which keys of the piece at ``first`` have a rank, one with this key, or a higher."""
        early = rank - self.below - self.before[first]
        if early <= 0:
            mask: NDArray[np.bool_] = keys >= np.uint32(self.key)
            return mask
        mask = keys > np.uint32(self.key)
        equal = np.flatnonzero(keys == np.uint32(self.key))
        mask[equal[early:]] = True
        return mask


def find_places(
    pieces: MergePieces, scores: Scores, ranks: Sequence[Sequence[int]]
) -> list[list[RankPlace]]:
    """Return where some ``ranks`` of each score are, counted from the smallest."""
    places = _settle(pieces, scores, ranks, _guess(pieces, scores, ranks))
    if places is None:
        places = _settle(pieces, scores, ranks, _count_ranks(pieces, scores, ranks))
    assert places is not None
    return places


def _guess(
    pieces: MergePieces, scores: Scores, ranks: Sequence[Sequence[int]]
) -> list[list[Bracket]]:
    """Return between which keys the ranks will be, by a sample."""
    elements = math.prod(pieces.shape)
    every = min(elements // _SAMPLED, 255) | 1  # odd: other columns in every row
    drawn = pieces.map(lambda piece: [order_keys(one) for one in scores(piece)], every)
    return [
        [_bracket(keys, rank / elements, is_whole=every == 1) for rank in some]
        for some, keys in zip(
            ranks, map(np.sort, map(np.concatenate, zip(*drawn, strict=True))), strict=True
        )
    ]


def _bracket(drawn: Keys, share: float, *, is_whole: bool) -> Bracket:
    place = round(share * len(drawn))
    reach = 0 if is_whole else 8 + int(_DEVIATIONS * math.sqrt(len(drawn) * share * (1 - share)))
    low, high = place - reach, place + reach
    return (
        int(drawn[low]) if low >= 0 else 0,
        int(drawn[high]) if high < len(drawn) else 2**32 - 1,
    )


class ArrayStore:
    """Short arrays of many pieces in one run of memory: each by itself would leave a hole.

    Holes between them that are too small for a piece would make the memory several times as large.
    """

    def __init__(self, size: int, kind: type[np.unsignedinteger[Any]]) -> None:
        self._all = np.empty(size, kind)
        self._lock = threading.Lock()
        self.count = 0

    def hold(self, values: Keys) -> Keys | None:
        """Return a copy of some values; None if the space is used up."""
        with self._lock:
            start = self.count
            self.count += len(values)
        place = self._all[start : start + len(values)]
        if len(place) < len(values):
            return None
        place[:] = values
        return place


@dataclass(frozen=True, slots=True)
class _Seen:
    """How the keys of a piece are to a bracket; those ``between`` its ends are held."""

    below: int
    low: int
    between: Keys
    high: int

    @classmethod
    def of(cls, keys: Keys, bracket: Bracket, store: ArrayStore) -> _Seen:
        low, high = map(np.uint32, bracket)
        between = store.hold(keys[(keys > low) & (keys < high)]) if high - low > 1 else None
        return cls(
            int(np.count_nonzero(keys < low)),
            int(np.count_nonzero(keys == low)),
            _NOTHING if between is None else between,
            int(np.count_nonzero(keys == high)) if high > low else 0,
        )


def _settle(
    pieces: MergePieces,
    scores: Scores,
    ranks: Sequence[Sequence[int]],
    brackets: Sequence[Sequence[Bracket]],
) -> list[list[RankPlace]] | None:
    """Return where the ranks are; None if one is not in its bracket, or too much is."""

    def look(piece: MergePiece) -> tuple[int, list[list[_Seen]]]:
        keys = map(order_keys, scores(piece))
        return piece.first, [
            [_Seen.of(key, bracket, store) for bracket in some]
            for key, some in zip(keys, brackets, strict=True)
        ]

    size = math.prod(pieces.shape) * sum(map(len, brackets))
    store, firsts, seen = ArrayStore(min(size, _MOST_KEYS), np.uint32), [], []
    for first, rows in pieces.map(look):
        firsts.append(first)
        seen.append(rows)
        if store.count > _MOST_KEYS:
            return None
    places = [
        [
            _place(rank, bracket, [rows[number][column] for rows in seen], firsts)
            for column, (rank, bracket) in enumerate(zip(*pair, strict=True))
        ]
        for number, pair in enumerate(zip(ranks, brackets, strict=True))
    ]
    settled = [[place for place in some if place is not None] for some in places]
    return settled if settled == places else None


def _place(
    rank: int, bracket: Bracket, seen: Sequence[_Seen], firsts: Sequence[int]
) -> RankPlace | None:
    """Return where a rank is; None if it is not in the bracket."""
    between = np.sort(np.concatenate([one.between for one in seen]))
    below = sum(one.below for one in seen)
    inner = below + sum(one.low for one in seen)
    outer = inner + len(between)
    if not below <= rank < outer + sum(one.high for one in seen):
        return None
    if rank < inner:
        key, counts = bracket[0], [one.low for one in seen]
    elif rank < outer:
        key = int(between[rank - inner])
        below = inner + int(np.searchsorted(between, np.uint32(key)))
        counts = [int(np.count_nonzero(one.between == np.uint32(key))) for one in seen]
    else:
        key, below, counts = bracket[1], outer, [one.high for one in seen]
    return RankPlace(key, below, dict(zip(firsts, accumulate(counts, initial=0), strict=False)))


def _count_ranks(
    pieces: MergePieces, scores: Scores, ranks: Sequence[Sequence[int]]
) -> list[list[Bracket]]:
    """Return the keys that have the ranks, as brackets with nothing between their ends."""
    upper = _count(
        pieces, lambda piece: [order_keys(one) >> 16 for one in scores(piece)], [1] * len(ranks)
    )
    places = [
        [_locate(counts, rank) for rank in some] for counts, some in zip(upper, ranks, strict=True)
    ]
    bins = [sorted({half for half, _ in some}) for some in places]

    def lower(piece: MergePiece) -> list[Keys]:
        """Keys of the wanted upper halves, numbered by these."""
        return [
            _low_half(order_keys(one), some) for one, some in zip(scores(piece), bins, strict=True)
        ]

    found: list[list[Bracket]] = []
    for some, halves, count in zip(
        places, bins, _count(pieces, lower, [len(one) for one in bins]), strict=True
    ):
        rows = count.reshape(-1, _HALF)
        keys = [half << 16 | _locate(rows[halves.index(half)], rest)[0] for half, rest in some]
        found.append([(key, key) for key in keys])
    return found


def _low_half(keys: Keys, bins: Sequence[int]) -> Keys:
    return np.concatenate(
        [
            (keys[keys >> 16 == half] & np.uint32(_HALF - 1)) + np.uint32(number * _HALF)
            for number, half in enumerate(bins)
        ]
    )


def _count(
    pieces: MergePieces, halves: Callable[[MergePiece], Sequence[Keys]], bins: Sequence[int]
) -> list[NDArray[np.int64]]:
    """Add up how often every number occurs."""
    totals = [np.zeros(one * _HALF, np.int64) for one in bins]
    lock = threading.Lock()  # each piece at once: thousands of histograms would fill the memory

    def count(piece: MergePiece) -> None:
        for number, one in enumerate(halves(piece)):
            counts = np.bincount(one, minlength=len(totals[number]))
            with lock:
                totals[number] += counts

    for _ in pieces.map(count):
        pass
    return totals


def _locate(counts: NDArray[np.int64], rank: int) -> tuple[int, int]:
    """Return the bin that holds a rank, and the rank within it."""
    ends = np.cumsum(counts)
    place = int(np.searchsorted(ends, rank, side="right"))
    return place, rank - int(ends[place] - counts[place])


@dataclass(frozen=True, slots=True)
class RankRange:
    """The elements whose rank is from ``start`` to ``end`` (without it): a mask of any piece.

    Attributes:
        start, end: the ranks.
        low: where ``start`` is.
        high: where ``end - 1`` is; None where that is the last of all.
    """

    start: int
    end: int
    low: RankPlace
    high: RankPlace | None

    def mask(self, first: int, values: Array) -> NDArray[np.bool_]:
        """Return which elements of the piece at ``first`` are in the range."""
        keys = order_keys(values)
        above = self.low.cut(first, keys, self.start)
        return above if self.high is None else above & ~self.high.cut(first, keys, self.end)


def rank_ranges(
    pieces: MergePieces, scores: Scores, ranges: Sequence[tuple[int, int] | None]
) -> list[RankRange | None]:
    """Return what selects ranks ``start`` to ``end`` (without it) of each score; None for all.

    The tensor must hold as many elements, and the range at least one.
    """
    wanted = [number for number, one in enumerate(ranges) if one is not None]
    if not wanted:
        return [None] * len(ranges)

    def some(piece: MergePiece) -> list[Array]:
        values = scores(piece)
        return [values[number] for number in wanted]

    last = math.prod(pieces.shape)
    bounds = [one for one in ranges if one is not None]
    ranks = [[start] if end == last else [start, end - 1] for start, end in bounds]
    found: list[RankRange | None] = [None] * len(ranges)
    for number, bound, places in zip(wanted, bounds, find_places(pieces, some, ranks), strict=True):
        found[number] = RankRange(*bound, places[0], None if bound[1] == last else places[1])
    return found

"""Who keeps which bytes of a sharded state, and who stores which chunk.

Every element is kept by exactly one rank: one that has it, and where several have it (replicas), they
divide it among them, along chunks as far as possible. A chunk is stored by the rank that keeps most of it;
of equals, and of replicas, the one with the least to do so far. What a rank keeps, the next of its replicas
can check (``cross_check``). All of it follows from the forms of the arrays, in their order, so every rank
finds the same without asking.

Arrays of one form are divided alike, and a model has few forms, so most of the work is done once for
each of these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mvc.formats.manifest import DEFAULT_CHUNK_BYTES
from mvc.numbers.boxes import Box, Shape, count_part, flatten_box

if TYPE_CHECKING:
    from numpy.typing import NDArray

SMALL_BYTES = 2**16
"""What replicas have less of, each, is kept by one of them: many small copies cost more than a few."""
ALIGN_BYTES = 64
_FEW_BOXES = 8
"""Of forms with more boxes, replicas take turns, so that few divisions have to be made."""


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """What the division of an array depends on.

    ``holders`` are the boxes that ranks hold, and who they are; each element is in at least one.
    """

    shape: Shape
    item_bytes: int
    holders: Holders

    @property
    def elements(self) -> int:
        """Number of its elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Holders:
    """The distinct boxes of a spread that are not empty, and the ranks that hold each."""

    boxes: tuple[Box, ...]
    ranks: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class KeptBox:
    """A box that one rank keeps, of a tensor seen in ``shape``: flat, where the box is one run.

    ``checker`` is another rank that holds it, or -1 if none does.
    """

    rank: int
    shape: Shape
    box: Box
    checker: int = field(default=-1, compare=False)


class Division:
    """An array, divided: ``kept`` are boxes that do not overlap and together are all of it."""

    def __init__(self, kept: Sequence[KeptBox], form: ArrayForm, chunk_bytes: int) -> None:
        self.kept = tuple(kept)
        self._form, self._chunk = form, chunk_bytes // form.item_bytes

    @cached_property
    def bytes_by_rank(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The ranks that keep something, and how much each."""
        ranks = np.array([kept.rank for kept in self.kept], np.int64)
        sizes = np.array([kept.box.elements for kept in self.kept], np.int64)
        return ranks, sizes * self._form.item_bytes

    def numbers_of(self, rank: int) -> list[int]:
        """Return which of the boxes a rank keeps."""
        return np.flatnonzero(self.bytes_by_rank[0] == rank).tolist()

    @cached_property
    def _hulls(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First element of every box, and past its last."""
        bounds = [_find_hull(kept) for kept in self.kept]
        low, high = np.array(bounds, np.int64).reshape(-1, 2).T
        return low, high

    def numbers_checked_by(self, rank: int) -> list[int]:
        """Return which of the boxes a rank checks."""
        return np.flatnonzero(self._checkers == rank).tolist()

    @cached_property
    def _checkers(self) -> NDArray[np.int64]:
        return np.array([kept.checker for kept in self.kept], np.int64)

    def chunks_of(self, numbers: Sequence[int]) -> range:
        """Return chunks among which are all that have something of some boxes."""
        low, high = (bounds[numbers] for bounds in self._hulls)
        return range(int(low.min()) // self._chunk, -(-int(high.max()) // self._chunk))

    def run_of(self, chunk: int) -> tuple[int, int]:
        """Return the first and past the last element of a chunk."""
        return chunk * self._chunk, min((chunk + 1) * self._chunk, self._form.elements)

    def find_parts(self, chunk: int) -> list[tuple[int, int]]:
        """Return (number of the box, elements of it in a chunk) of all boxes with some."""
        first, last = self.run_of(chunk)
        low, high = self._hulls
        parts = []
        for number in np.flatnonzero((low < last) & (high > first)).tolist():
            one = self.kept[number]
            count = count_part(one.shape, one.box, first, last)
            if count:
                parts.append((number, count))
        return parts

    @cached_property
    def candidates(self) -> list[NDArray[np.int64]]:
        """For every chunk the ranks that keep most of it."""
        candidates = []
        for chunk in range(-(-self._form.elements // self._chunk)):
            shares: dict[int, int] = {}
            for number, count in self.find_parts(chunk):
                rank = self.kept[number].rank
                shares[rank] = shares.get(rank, 0) + count
            most = max(shares.values())
            candidates.append(np.array([r for r, n in shares.items() if n == most], np.int64))
        return candidates


def _find_hull(kept: KeptBox) -> tuple[int, int]:
    rows = math.prod(kept.shape[1:])
    start, size = kept.box.offsets[0], kept.box.sizes[0]
    if len(kept.shape) == 1:
        return start, start + size
    return start * rows, (start + size) * rows


class Keepers:
    """The arrays of a state, divided among ``ranks`` ranks, and cut into chunks of ``chunk_bytes``."""

    def __init__(
        self, forms: Sequence[ArrayForm], ranks: int, chunk_bytes: int = DEFAULT_CHUNK_BYTES
    ) -> None:
        """Divide them all; how does not depend on the chunks."""
        self.forms, self.ranks, self.chunk_bytes = forms, ranks, chunk_bytes
        self.divisions: list[Division] = []
        kept = np.zeros(self.ranks, np.int64)
        known: dict[tuple[ArrayForm, int], Division] = {}
        for number, form in enumerate(forms):
            key = form, number % max(map(len, form.holders.ranks), default=1)
            division = known.get(key)
            if division is None:
                load = kept if len(form.holders.boxes) <= _FEW_BOXES else None
                found = _divide(form, key[1], load)
                division = Division(list(found), form, chunk_bytes)
                if load is None or max(map(len, form.holders.ranks), default=1) == 1:
                    known[key] = division
            np.add.at(kept, *division.bytes_by_rank)
            self.divisions.append(division)

    @cached_property
    def owners(self) -> list[NDArray[np.int64]]:
        """For every array the ranks that store its chunks."""
        stored = np.zeros(self.ranks, np.int64)
        return [
            _choose_owners(form, division, self.chunk_bytes, stored)
            for form, division in zip(self.forms, self.divisions, strict=True)
        ]

    def owned(self, array: int, rank: int) -> list[int]:
        """Return the chunks of an array that a rank stores."""
        return np.flatnonzero(self.owners[array] == rank).tolist()


def _choose_owners(
    form: ArrayForm, division: Division, chunk_bytes: int, stored: NDArray[np.int64]
) -> NDArray[np.int64]:
    chosen = []
    left = form.elements * form.item_bytes
    for ranks in division.candidates:
        rank = int(ranks[0]) if len(ranks) == 1 else int(ranks[np.argmin(stored[ranks])])
        stored[rank] += min(chunk_bytes, left)
        left -= chunk_bytes
        chosen.append(rank)
    return np.array(chosen, np.int64)


def _divide(form: ArrayForm, turn: int, load: NDArray[np.int64] | None) -> Iterator[KeptBox]:
    """Yield the boxes of an array with the rank that keeps each.

    Replicas come in the order of their load, or take turns if that is not given.
    """
    for box, ranks in zip(form.holders.boxes, form.holders.ranks, strict=True):
        shape, flat = flatten_box(form.shape, box)
        if len(ranks) == 1:
            yield KeptBox(ranks[0], shape, flat)
            continue
        ordered = [*ranks[turn:], *ranks[:turn]]
        if load is not None:
            ordered = sorted(ranks, key=lambda rank: (load[rank], rank))
        pairs = [*zip(ordered, [*ordered[1:], ordered[0]], strict=True)]
        size_bytes = flat.elements * form.item_bytes
        if size_bytes < len(ranks) * SMALL_BYTES:
            pairs = pairs[:1]
        row_bytes = math.prod(shape[1:]) * form.item_bytes
        cuts = _cut_rows(flat, len(pairs), max(1, DEFAULT_CHUNK_BYTES // row_bytes))
        for (rank, checker), (start, stop) in zip(pairs, cuts, strict=True):
            if stop > start:
                yield KeptBox(rank, shape, flat.narrow(start, stop), checker)


def _cut_rows(box: Box, count: int, step: int) -> list[tuple[int, int]]:
    """Cut the rows of a box into runs, as equal as cuts at multiples of ``step`` in the tensor allow.

    The first ones are the longest. If there are fewer steps than runs, the cuts are anywhere.
    """
    begin, rows = box.offsets[0], box.sizes[0]
    if rows < 2 * count * step:
        step = 1
    places = [rows * number // count for number in range(count + 1)]
    for number in range(1, count):
        place = -(-(begin + places[number]) // step) * step - begin
        places[number] = min(max(place, places[number - 1]), rows)
    return [(places[number], places[number + 1]) for number in range(count)]


def round_up(size_bytes: int) -> int:
    """Return the next place in an image where a box may begin."""
    return -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES


def list_holders(ranks: Sequence[int], boxes: Sequence[Box]) -> Holders:
    """Return the distinct boxes among those of some ranks, in their order."""
    found: dict[Box, list[int]] = {}
    for rank, box in zip(ranks, boxes, strict=True):
        if box.elements:
            found.setdefault(box, []).append(rank)
    return Holders(tuple(found), tuple(tuple(sorted(set(one))) for one in found.values()))

"""All chunks of some packs, as arrays: a table to look places up in, and a graph for gc and repack.

``ChunkTable`` finds places by id. A lookup is a binary search on the first eight bytes as an
integer, which NumPy does for 300,000 ids in well under a second, and then a comparison of all 32.
Ids with equal first bytes do not happen by chance but could be forged, so ties are searched by
halves as well, never one by one. A chunk that several packs hold has several rows, neighbours, in
the order of the packs.

``StoredCopies`` is the graph: every copy of every chunk and what it needs. Deleting is safe if and
only if every chunk that matters can then still be decoded from copies that are left, through chains
that a reader follows. That is a question about the whole graph: a delta A→B in one pack and B→A in
another are each harmless beside whole copies, and a loss without. So it is answered here, once:
*chosen* is one copy per chunk such that following chosen copies always ends at whole bytes.

Small copies are preferred; if that would run in a circle or too deep, the copies that need least
are taken instead. Everything is arrays: a million chunks take about a second.

Words used below: a *chunk number* is a row of ``ids``; a *copy number* is a row of the packs'
indexes one after another.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mvc.chunkstore.values import ChunkLocation
from mvc.formats.pack import MAX_BASES, MAX_DEPTH, RECORD_BYTES
from mvc.ids import ID_BYTES, ChunkId, split_ids

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.formats.pack_index import PackIndex

    Numbers = NDArray[np.int64]
    Mask = NDArray[np.bool_]
    Ids = NDArray[np.bytes_]

_WORDS = ID_BYTES // 8
NONE = -1
_NO_BASE = -2
_UNREACHABLE = MAX_DEPTH + 1


class ChunkTable:
    """The chunks of some packs; if two hold the same chunk, the earlier one comes first."""

    def __init__(self, packs: Sequence[PackIndex]) -> None:
        self.packs = tuple(packs)
        self._starts = np.cumsum([0, *map(len, self.packs)]).tolist()
        ids = np.concatenate([pack.ids for pack in self.packs] or [np.empty(0, "S32")])
        order = _sort_ids(ids)
        self._ids = ids[order]
        self._rows = order
        self._prefixes = _prefixes(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def contains_each(self, ids: NDArray[np.bytes_]) -> NDArray[np.bool_]:
        """Return for each id of an ``S32`` array whether it is here."""
        if not len(self):
            return np.zeros(len(ids), dtype=np.bool_)
        wanted = _prefixes(ids)
        places = np.minimum(np.searchsorted(self._prefixes, wanted), len(self) - 1)
        contains: NDArray[np.bool_] = self._ids[places] == ids
        ties = ~contains & (self._prefixes[places] == wanted)
        for i in np.flatnonzero(ties).tolist():
            contains[i] = self._find_place(ids[i : i + 1].tobytes()) is not None
        return contains

    def find_all(self, chunk_id: ChunkId) -> Iterator[ChunkLocation]:
        """Yield every place of a chunk, that in the earliest pack first."""
        place = self._find_place(chunk_id)
        if place is None:
            return
        while place < len(self) and self._ids[place : place + 1].tobytes() == chunk_id:
            row = int(self._rows[place])
            number = bisect_right(self._starts, row) - 1
            index = self.packs[number]
            yield ChunkLocation(*index.fields(row - self._starts[number]), pack=index.pack)
            place += 1

    def _find_place(self, chunk_id: bytes) -> int | None:
        prefix = np.uint64(int.from_bytes(chunk_id[:8], "big"))
        low = int(self._prefixes.searchsorted(prefix))
        high = low
        if low < len(self) and self._ids[low : low + 1].tobytes() != chunk_id:
            high = int(self._prefixes.searchsorted(prefix, side="right"))
        while low < high:
            middle = (low + high) // 2
            if self._ids[middle : middle + 1].tobytes() < chunk_id:
                low = middle + 1
            else:
                high = middle
        if low < len(self) and self._ids[low : low + 1].tobytes() == chunk_id:
            return low
        return None


class StoredCopies:
    """The chunks of some sound packs.

    ``ids`` ascend, each once. ``chunks`` (chunk numbers), ``packs`` (numbers in ``indexes``),
    ``sizes`` (bytes in the pack) and ``bases`` have one row per copy. ``bases`` are two chunk
    numbers, below zero if there is none or it is in no pack. ``chosen`` is the copy that each chunk
    lives on, or ``NONE`` if it cannot be decoded.
    """

    def __init__(self, indexes: Sequence[PackIndex]) -> None:
        self.indexes = tuple(indexes)
        all_ids = np.concatenate([index.ids for index in indexes] or [np.empty(0, "S32")])
        self.ids, self.chunks = _number(all_ids)
        counts = [len(index) for index in indexes]
        self.packs = np.repeat(np.arange(len(counts)), counts)
        self.starts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        stored = [index.stored_sizes.astype(np.int64) for index in indexes]
        self.sizes = np.concatenate(stored or [np.empty(0, np.int64)]) + RECORD_BYTES
        self.bases = self._find_bases()
        self.chosen = self._choose()

    def __len__(self) -> int:
        return len(self.ids)

    def row_of(self, copy: int) -> int:
        """Return the row of a copy in its pack's index."""
        return copy - int(self.starts[self.packs[copy]])

    def chunk_id(self, chunk: int) -> ChunkId:
        """Return the id of a chunk number."""
        return ChunkId(self.ids[chunk : chunk + 1].tobytes())

    def plain_size(self, chunk: int) -> int:
        """Return the length of a chunk's plain bytes."""
        copy = int(self.chosen[chunk])
        return int(self.indexes[self.packs[copy]].plain_sizes[self.row_of(copy)])

    def find(self, ids: Ids) -> Numbers:
        """Return the chunk number of each id, ``NONE`` if no pack has it."""
        if not len(self):
            return np.full(len(ids), NONE)
        places = np.minimum(np.searchsorted(self.ids, ids), len(self) - 1)
        return np.where(self.ids[places] == ids, places, NONE)

    def mask(self, ids: Ids) -> Mask:
        """Return which chunks are among some ids; unknown ids are left out."""
        mask = np.zeros(len(self), np.bool_)
        numbers = self.find(ids)
        mask[numbers[numbers != NONE]] = True
        return mask

    def decodes(self, ids: Ids) -> Mask:
        """Return for each id whether its chunk is here and can be decoded."""
        numbers = self.find(ids)
        mask: Mask = numbers != NONE
        mask[mask] = self.chosen[numbers[mask]] != NONE
        return mask

    def close(self, chunks: Mask, *, ends: Mask | None = None) -> Mask:
        """Return chunks and all that their chosen copies need; bases of ``ends`` do not count."""
        closed: Mask = chunks & (self.chosen != NONE)
        while True:
            needed = self.bases[self.chosen[closed if ends is None else closed & ~ends]]
            grown = closed.copy()
            grown[needed[needed >= 0]] = True
            if (grown == closed).all():
                return closed
            closed = grown

    def find_lost(self) -> frozenset[ChunkId]:
        """Return the chunks without a copy that can be decoded, because something they need is lost."""
        return frozenset(split_ids(self.ids[self.chosen == NONE].tobytes()))

    def depths(self) -> Numbers:
        """Return how many other chunks are between each chunk and whole bytes, by chosen copies."""
        return self._depths_by(self.chosen)

    def heights(self) -> Numbers:
        """Return how long the longest chain is that is built upon each chunk."""
        heights = np.zeros(len(self), np.int64)
        users = np.flatnonzero(self.chosen != NONE)
        bases = self.bases[self.chosen[users]]
        for _ in range(MAX_DEPTH):
            before = heights.copy()
            for place in range(MAX_BASES):
                used = bases[:, place] >= 0
                np.maximum.at(heights, bases[used, place], heights[users[used]] + 1)
            if (heights == before).all():
                break
        return heights

    def _find_bases(self) -> Numbers:
        bases = np.full((len(self.chunks), MAX_BASES), _NO_BASE)
        for index, start in zip(self.indexes, self.starts.tolist(), strict=False):
            if index.base_starts is None:
                continue
            numbers = self.find(index.base_ids)
            counts = np.diff(index.base_starts)
            for place in range(MAX_BASES):
                rows = np.flatnonzero(counts > place)
                bases[start + rows, place] = numbers[index.base_starts[rows] + place]
        return bases

    def _choose(self) -> Numbers:
        """Return one copy per chunk, small where possible (see the module's text)."""
        if not len(self):
            return np.empty(0, np.int64)
        order = np.lexsort((self.sizes, self.chunks))
        smallest = order[np.searchsorted(self.chunks[order], np.arange(len(self)))]
        chosen = smallest
        if (self.bases[chosen] == _NO_BASE).all():
            return chosen
        nearest, depths = self._find_nearest()
        # Another copy for one chunk may lengthen the chains of others. Two rounds settle all but
        # contrived packs; for those every chunk takes its nearest copy, which is always short.
        for _ in range(2):
            deep = self._depths_by(chosen) > MAX_DEPTH
            if not deep.any():
                break
            chosen = np.where(deep, nearest, chosen)
        else:
            if (self._depths_by(chosen) > MAX_DEPTH).any():
                chosen = nearest
        return np.where(depths > MAX_DEPTH, NONE, chosen)

    def _find_nearest(self) -> tuple[Numbers, Numbers]:
        """Return the copy of each chunk that needs the shortest chain, and how long that is."""
        depths = np.full(len(self), _UNREACHABLE)
        nearest = np.full(len(self), NONE)
        for depth in range(MAX_DEPTH + 1):
            reach = self._depths_of(np.arange(len(self.chunks)), depths)
            fresh = np.flatnonzero((reach == depth) & (depths[self.chunks] == _UNREACHABLE))
            if not fresh.size:
                break  # nothing is built upon nothing
            nearest[self.chunks[fresh][::-1]] = fresh[::-1]  # of several copies the first stays
            depths[self.chunks[fresh]] = depth
        return nearest, depths

    def _depths_by(self, chosen: Numbers) -> Numbers:
        """Return how long the chain of each chunk is if every chunk lives on its chosen copy."""
        depths = np.full(len(self), _UNREACHABLE)
        for _ in range(MAX_DEPTH + 1):
            before = depths
            depths = np.where(chosen == NONE, _UNREACHABLE, self._depths_of(chosen, depths))
            if (depths == before).all():
                break
        return depths

    def _depths_of(self, copies: Numbers, depths: Numbers) -> Numbers:
        """Return the chain of each copy, given those of chunks; too long is ``_UNREACHABLE``."""
        bases = self.bases[copies]
        known = np.concatenate((depths, [-1, _UNREACHABLE]))  # indexed by _NO_BASE and NONE
        reach: Numbers = np.minimum(known[bases].max(axis=1, initial=-1) + 1, _UNREACHABLE)
        return reach


def _number(ids: Ids) -> tuple[Ids, Numbers]:
    """Return the distinct ids, ascending, and for each id its place among them."""
    if not len(ids):
        return ids, np.empty(0, np.int64)
    order = _sort_ids(ids)
    ascending = ids[order]
    is_first = np.concatenate(([True], ascending[1:] != ascending[:-1]))
    numbers = np.empty(len(ids), np.int64)
    numbers[order] = np.cumsum(is_first) - 1
    return ascending[is_first], numbers


def _prefixes(ids: NDArray[np.bytes_]) -> NDArray[np.uint64]:
    return ids.view(">u8")[::_WORDS].astype(np.uint64)


def _sort_ids(ids: NDArray[np.bytes_]) -> NDArray[np.int64]:
    """Return the stable order that sorts ids by all their bytes."""
    words = ids.view(">u8").reshape(-1, _WORDS)
    prefixes = words[:, 0].astype(np.uint64)
    order = np.argsort(prefixes, kind="stable")
    same = np.flatnonzero(prefixes[order[1:]] == prefixes[order[:-1]])
    if (ids[order[same]] == ids[order[same + 1]]).all():
        return order
    return np.lexsort([words[:, i].astype(np.uint64) for i in reversed(range(_WORDS))])

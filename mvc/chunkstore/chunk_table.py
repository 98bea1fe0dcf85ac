"""Chunk id → place, over many pack indexes at once.

All ids of the given packs lie in one array, ascending. A lookup is a binary search on the first
eight bytes as an integer, which NumPy does for 300,000 ids in well under a second, and then a
comparison of all 32. Ids with equal first bytes do not happen by chance but could be forged, so
ties are searched by halves as well, never one by one. A chunk that several packs hold has
several rows, neighbours, in the order of the packs.

A table never changes; ``PackCatalog`` makes new ones.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from mvc.chunkstore.values import ChunkLocation
from mvc.ids import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from mvc.formats.pack_index import PackIndex
    from mvc.ids import ChunkId

_WORDS = ID_BYTES // 8


class ChunkTable:
    """The chunks of some packs; if two hold the same chunk, the earlier one comes first."""

    def __init__(self, packs: Sequence[PackIndex]) -> None:
        self.packs = tuple(packs)
        self._starts = np.cumsum([0, *map(len, self.packs)]).tolist()
        ids = np.concatenate([pack.ids for pack in self.packs] or [np.empty(0, "S32")])
        order = sort_ids(ids)
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
        found: NDArray[np.bool_] = self._ids[places] == ids
        ties = ~found & (self._prefixes[places] == wanted)
        for i in np.flatnonzero(ties).tolist():
            found[i] = self._find_place(ids[i : i + 1].tobytes()) is not None
        return found

    def find_all(self, chunk_id: ChunkId) -> Iterator[ChunkLocation]:
        """Yield every place of a chunk, that in the earliest pack first."""
        place = self._find_place(chunk_id)
        if place is None:
            return
        while place < len(self) and self._ids[place : place + 1].tobytes() == chunk_id:
            yield self._locate(int(self._rows[place]))
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

    def _locate(self, row: int) -> ChunkLocation:
        number = bisect_right(self._starts, row) - 1
        index = self.packs[number]
        return ChunkLocation(*index.fields(row - self._starts[number]), pack=index.pack)


def _prefixes(ids: NDArray[np.bytes_]) -> NDArray[np.uint64]:
    return ids.view(">u8")[::_WORDS].astype(np.uint64)


def sort_ids(ids: NDArray[np.bytes_]) -> NDArray[np.int64]:
    """Return the stable order that sorts ids by all their bytes."""
    words = ids.view(">u8").reshape(-1, _WORDS)
    prefixes = words[:, 0].astype(np.uint64)
    order = np.argsort(prefixes, kind="stable")
    same = np.flatnonzero(prefixes[order[1:]] == prefixes[order[:-1]])
    if (ids[order[same]] == ids[order[same + 1]]).all():
        return order
    return np.lexsort([words[:, i].astype(np.uint64) for i in reversed(range(_WORDS))])

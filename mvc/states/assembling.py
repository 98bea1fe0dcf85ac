"""The files of a sharded state as one rank sees them: its own boxes, and those of the others on demand.

Only whole chunks are asked for, nearly always: a rank stores those of which it keeps the most, and gets
the rest of these from the ranks that keep it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from mvc.errors import StorageError
from mvc.numbers.boxes import scatter
from mvc.sources import ByteSource, JoinedSource, MemorySource
from mvc.states.share import find_part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc.states.share import Peers, Share


@dataclass(frozen=True, slots=True, eq=False)
class ArraySource(ByteSource):
    """All bytes of an array that is spread over the ranks; safe for many threads."""

    share: Share
    array: int
    peers: Peers

    @property
    def size_bytes(self) -> int:
        """Its length."""
        form = self.share.plan.arrays[self.array]
        return form.elements * form.item_bytes

    def view(self, offset: int, size_bytes: int) -> memoryview | None:
        """Return a chunk without a copy, if this rank keeps it whole.

        Another rank's memory may change at any time, should the commit fail there.
        """
        chunk, inside = divmod(offset, self.share.plan.chunk_bytes)
        if inside or size_bytes != self._chunk_size(chunk):
            return None
        division = self.share.plan.keepers.divisions[self.array]
        found = division.find_parts(chunk)
        if len(found) != 1 or division.kept[found[0][0]].rank != self.share.rank:
            return None
        return next(self._parts(chunk))[1]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset`` on, with the other ranks' parts of the chunks it is in."""
        done = 0
        while done < len(buffer):
            chunk, inside = divmod(offset + done, self.share.plan.chunk_bytes)
            size = self._chunk_size(chunk)
            piece = buffer[done : done + size - inside]
            if len(piece) == size:
                self._fill(chunk, piece)
            else:
                whole = memoryview(bytearray(size))
                self._fill(chunk, whole)
                piece[:] = whole[inside : inside + len(piece)]
            done += len(piece)

    def _chunk_size(self, chunk: int) -> int:
        first, last = self.share.plan.keepers.divisions[self.array].run_of(chunk)
        return (last - first) * self.share.plan.arrays[self.array].item_bytes

    def _fill(self, chunk: int, run: memoryview) -> None:
        item_bytes = self.share.plan.arrays[self.array].item_bytes
        division = self.share.plan.keepers.divisions[self.array]
        first, _ = division.run_of(chunk)
        target = np.frombuffer(run, np.uint8)
        for number, part in self._parts(chunk):
            kept = division.kept[number]
            scatter(np.frombuffer(part, np.uint8), target, kept.shape, kept.box, first, item_bytes)

    def _parts(self, chunk: int) -> Iterator[tuple[int, memoryview]]:
        """Yield (number of a box, its part of a chunk), wherever that is."""
        plan = self.share.plan
        division = plan.keepers.divisions[self.array]
        found = sorted(
            (division.kept[number].rank, number, n) for number, n in division.find_parts(chunk)
        )
        for rank, group in groupby(found, key=lambda one: one[0]):
            mine = rank == self.share.rank
            image = self.share.image if mine else self.peers.find_image(rank)
            if image is None:
                yield from self._fetch(rank, chunk, [(number, n) for _, number, n in group])
                continue
            for _, number, count in group:
                start = plan.places_of(rank)[self.array][number]
                yield number, find_part(plan, self.array, number, chunk, count, image[start:])

    def _fetch(
        self, rank: int, chunk: int, boxes: list[tuple[int, int]]
    ) -> Iterator[tuple[int, memoryview]]:
        item_bytes = self.share.plan.arrays[self.array].item_bytes
        data = memoryview(self.peers.fetch_part(rank, self.array, chunk)).cast("B")
        if len(data) != sum(count for _, count in boxes) * item_bytes:
            raise StorageError(f"rank {rank} sent {len(data):,} bytes for a part of another size")
        for number, count in boxes:
            yield number, data[: count * item_bytes]
            data = data[count * item_bytes :]


def open_files(share: Share, peers: Peers) -> dict[str, JoinedSource]:
    """Return path → bytes of the files of the state, wherever they are kept."""
    found, array = {}, 0
    for path, head, layout in share.plan.layouts:
        parts: list[ByteSource] = [MemorySource(head)]
        starts = [0, len(head)]
        for number, segment in enumerate(layout.segments, array):
            if segment.size_bytes:
                parts.append(ArraySource(share, number, peers))
                starts.append(segment.end)
        array += len(layout.segments)
        found[path] = JoinedSource(parts, starts)
    return found

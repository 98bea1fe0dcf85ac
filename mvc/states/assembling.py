"""The files of a sharded state as one rank sees them: its own boxes, and those of the others on demand.

``ChunkChecker`` is a rank's part of the check of a commit: the ids of chunks as this rank and its like hold
them. Nearly always, whole chunks are asked for: a rank stores the chunks that it keeps most of, and gets the
rest of each from the ranks that keep it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from mvc.errors import StorageError
from mvc.ids import ID_BYTES, ChunkId, hash_chunk
from mvc.numbers.boxes import scatter
from mvc.sources import ByteSource, JoinedSource, MemorySource
from mvc.states.cross_check import find_checker
from mvc.states.share import CheckPeers, Peers, Share, find_part


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
        parts = division.find_parts(chunk)
        if len(parts) != 1 or division.kept[parts[0][0]].rank != self.share.rank:
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
    files, array = {}, 0
    for path, head, layout in share.plan.layouts:
        parts: list[ByteSource] = [MemorySource(head)]
        starts = [0, len(head)]
        for number, segment in enumerate(layout.segments, array):
            if segment.size_bytes:
                parts.append(ArraySource(share, number, peers))
                starts.append(segment.end)
        array += len(layout.segments)
        files[path] = JoinedSource(parts, starts)
    return files


UNCHECKED = ChunkId(bytes(ID_BYTES))
"""In place of an id: another rank's part of the chunk could not be had."""


class ChunkChecker:
    """Hashes what a rank checks; safe for many threads.

    Should another rank be out of reach, what needs its parts stays unchecked: a check makes no commit fail.
    """

    def __init__(self, share: Share, peers: CheckPeers) -> None:
        self._share, self._peers = share, peers
        self._is_alone = threading.Event()

    def list_chunks(self) -> Iterator[tuple[int, int]]:
        """Yield (array, chunk) of all that this rank checks, in the order of ``list_checkers``."""
        share = self._share
        for chunk in () if share.check is None else share.check.parts_of(share.rank):
            if find_checker(share.plan.keepers, *chunk) == share.rank:
                yield chunk

    def hash_chunk(self, array: int, chunk: int) -> ChunkId:
        """Return the id that a chunk has by the bytes of those who check it, or ``UNCHECKED``."""
        share = self._share
        keepers = share.plan.keepers
        division, item_bytes = keepers.divisions[array], keepers.forms[array].item_bytes
        parts = division.find_parts(chunk)
        if len(parts) == 1:
            return hash_chunk(share.read_checked(array, chunk))
        first, last = division.run_of(chunk)
        run = np.empty((last - first) * item_bytes, np.uint8)
        try:
            for number, part in self._gather(array, chunk, dict(parts)):
                kept, data = division.kept[number], np.frombuffer(part, np.uint8)
                scatter(data, run, kept.shape, kept.box, first, item_bytes)
        except StorageError:
            self._is_alone.set()
            return UNCHECKED
        return hash_chunk(run.data)

    def _gather(
        self, array: int, chunk: int, counts: dict[int, int]
    ) -> Iterator[tuple[int, memoryview]]:
        """Yield (number of the box, its part of a chunk) from all ranks that check some of it."""
        share = self._share
        division = share.plan.keepers.divisions[array]
        for rank in sorted({division.kept[number].checker for number in counts}):
            if rank == share.rank:
                yield from share.list_checked_parts(rank, share.image, array, chunk).items()
                continue
            if self._is_alone.is_set():
                raise StorageError("another rank is out of reach")
            image = self._peers.find_image(rank)
            if image is not None:
                yield from share.list_checked_parts(rank, image, array, chunk).items()
                continue
            data = memoryview(self._peers.fetch_checked(rank, array, chunk)).cast("B")
            sizes = {
                number: count * share.plan.arrays[array].item_bytes
                for number, count in counts.items()
                if division.kept[number].checker == rank
            }
            if len(data) != sum(sizes.values()):
                raise StorageError(f"rank {rank} sent {len(data):,} bytes of another size")
            for number, size in sizes.items():
                yield number, data[:size]
                data = data[size:]

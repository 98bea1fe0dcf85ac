"""One rank's part of the check of a commit: the ids of chunks as this rank and its like hold them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from mvc.errors import StorageError
from mvc.ids import ID_BYTES, ChunkId, hash_chunk
from mvc.numbers.boxes import scatter
from mvc.states.cross_check import find_checker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc.states.share import CheckPeers, Share

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

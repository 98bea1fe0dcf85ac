"""Chunks in packs on a storage: the front of this package.

Writing is in ``writer``, reading in ``reader``, the lookup in ``catalog`` and ``chunk_table``,
fsck in ``check``. A chunk, once published, never changes; the store needs no lock of its own.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from mvc.chunkstore.catalog import PACKS, PackCatalog, index_key, pack_key, scan_stored_pack
from mvc.chunkstore.check import check_store
from mvc.chunkstore.parallel import for_each
from mvc.chunkstore.read_plan import plan_reads
from mvc.chunkstore.reader import ChunkReader, ReadSlot
from mvc.chunkstore.salvage import Salvage, salvage_pack
from mvc.chunkstore.values import (
    ByteSource,
    ChunkLocation,
    ChunkSpan,
    ReadRequest,
    StoreProblem,
    WriteCounts,
)
from mvc.chunkstore.writer import ChunkWriter
from mvc.errors import CorruptionError, MvcError
from mvc.formats.pack import TARGET_PACK_BYTES
from mvc.formats.pack_index import encode_pack_index, index_records
from mvc.ids import PackId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mvc.chunkstore.reader import Sink
    from mvc.ids import ChunkId
    from mvc.storage.protocol import Storage

__all__ = [
    "ByteSource",
    "ChunkLocation",
    "ChunkSpan",
    "ChunkStore",
    "ChunkWriter",
    "ReadRequest",
    "Salvage",
    "StoreProblem",
    "WriteCounts",
]

MAX_THREADS = 8
"""More would wait for the one thread that fills the pack, and each costs 15 MB."""
_IDLE_SLOTS = 2


class ChunkStore:
    """The chunks of one storage; safe to use from many threads, but for its writers.

    Nothing is read before it is needed.

    Args:
        storage: where packs and pack indexes lie.
        threads: workers for writing, reading and checking; by default one per usable core, at
            most ``MAX_THREADS``.
        target_pack_bytes: a pack is closed by the first record that takes it past this length.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        threads: int | None = None,
        target_pack_bytes: int = TARGET_PACK_BYTES,
    ) -> None:
        self._storage = storage
        self._threads = threads or min(MAX_THREADS, _count_cores())
        self._target_pack_bytes = target_pack_bytes
        self._catalog = PackCatalog(storage)
        self._reader = ChunkReader(storage, self._catalog)
        self._idle_slots: list[ReadSlot] = []  # append and pop are atomic

    @property
    def threads(self) -> int:
        """Workers for writing, reading and checking."""
        return self._threads

    @property
    def repairs(self) -> Sequence[StoreProblem]:
        """Pack indexes that were missing or damaged and are rebuilt in memory for now."""
        return list(self._catalog.repairs.values())

    def find(self, chunk_id: ChunkId) -> ChunkLocation | None:
        """Return where a chunk lies, or None."""
        return self._catalog.find(chunk_id)

    def find_missing(self, ids: Iterable[ChunkId]) -> list[ChunkId]:
        """Return those of the ids that no sound pack holds, in their order."""
        wanted = list(ids)
        found = self._catalog.contains_each(wanted).tolist()
        return [chunk_id for chunk_id, known in zip(wanted, found, strict=True) if not known]

    def contains_all(self, ids: Iterable[ChunkId]) -> bool:
        """Tell whether sound packs hold all of the ids."""
        return bool(self._catalog.contains_each(ids).all())

    def refresh(self) -> bool:
        """See what other processes published or removed; return whether anything changed."""
        return self._catalog.refresh()

    def writer(self) -> ChunkWriter:
        """Begin a write session; use it as a context manager.

        Indexes that got lost are written anew first: the session may build upon their packs.
        """
        self.refresh()
        for problem in self.repairs:
            with contextlib.suppress(MvcError):  # a damaged pack: not worse than before
                self.rebuild_index(PackId(problem.pack))
                self._catalog.repairs.pop(PackId(problem.pack), None)
        return ChunkWriter(
            self._storage,
            self._catalog,
            threads=self._threads,
            target_pack_bytes=self._target_pack_bytes,
        )

    def read_into(self, chunk_id: ChunkId, plain: memoryview, *, context: str = "") -> None:
        """Fill ``plain`` with a chunk, verified.

        Args:
            chunk_id: which chunk.
            plain: exactly as long as the chunk; undefined where an error is raised.
            context: what the chunk is part of, for errors.

        Raises:
            CorruptionError: the chunk is missing, damaged or of another length.
            StorageError: the machine failed.
            UnsupportedError: an encoding of a newer mvc.
        """
        slot = self._idle_slots.pop() if self._idle_slots else ReadSlot()
        self._reader.read_chunk(chunk_id, plain.cast("B"), slot, context)
        if len(self._idle_slots) < _IDLE_SLOTS:
            self._idle_slots.append(slot)

    def read_many(
        self,
        requests: Sequence[ReadRequest],
        sink: Sink,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Read many chunks, verified, in the order in which they lie in the packs.

        Args:
            requests: what is wanted; a chunk may be wanted several times.
            sink: called with every request and its plain bytes, which are valid during the call
                only; from several threads at once, in any order.
            progress: called in this thread with plain bytes as they are done.

        Raises:
            CorruptionError: a chunk is missing, damaged or of another length.
            StorageError: the machine failed.
            UnsupportedError: an encoding of a newer mvc.
            Exception: whatever ``sink`` raised.
        """
        for_each(
            plan_reads(requests, self._catalog.find),
            ReadSlot,
            lambda group, slot: self._reader.read_group(group, sink, slot),
            threads=self._threads,
            progress=progress,
        )

    def check(
        self, *, data: bool, progress: Callable[[int], None] | None = None
    ) -> Iterator[StoreProblem]:
        """Yield everything that is wrong with packs and pack indexes.

        Args:
            data: also hash every pack against its name and every chunk against its id.
            progress: called in this thread with the length of every pack that is done.
        """
        return check_store(self._storage, data=data, threads=self._threads, progress=progress)

    def rebuild_index(self, pack: PackId) -> None:
        """Write the index of a pack anew from the pack alone.

        Raises:
            CorruptionError: the pack is missing or damaged itself.
            StorageError: the machine failed.
        """
        size_bytes = self._storage.find_size(pack_key(pack))
        if size_bytes is None:
            raise CorruptionError(f"pack {pack} is missing")
        records = scan_stored_pack(self._storage, pack, size_bytes)
        index = index_records(pack, size_bytes, records)
        self._storage.delete(index_key(pack))  # a damaged one of the same length would stay
        with self._storage.create(PACKS) as file:
            file.write([encode_pack_index(index)])
            file.publish(index_key(pack))
        self._catalog.add(index)

    def salvage(self, pack: PackId) -> Salvage:
        """Move the sound chunks of a damaged pack into a new one and set the old one aside.

        Raises:
            UnsupportedError: a chunk in an encoding of a newer mvc, which cannot be judged here.
            StorageError: the machine failed; nothing is lost.
        """
        done = salvage_pack(self._storage, pack)
        self.refresh()
        return done


def _count_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

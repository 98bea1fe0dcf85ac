"""Chunks in packs on a storage: the front of this package.

A chunk, once published, never changes; the store needs no lock.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mvc.chunkstore.catalog import PackCatalog, delete_packs, publish_index, scan_stored_pack
from mvc.chunkstore.chains import ReadSlot
from mvc.chunkstore.check import Salvage, check_packs, check_store, salvage_pack
from mvc.chunkstore.copies import StoredCopies
from mvc.chunkstore.listing import PackListing, index_key, pack_key
from mvc.chunkstore.nearby import Nearby, NearbyReads, fill_nearby, keeping
from mvc.chunkstore.parallel import for_each
from mvc.chunkstore.reader import ChunkReader, plan_reads
from mvc.chunkstore.relatives import DeltaMode
from mvc.chunkstore.rewriter import carry_packs, find_unsafe, write_batch
from mvc.chunkstore.writer import ChunkWriter
from mvc.errors import CorruptionError, MvcError
from mvc.formats.deltas import estimate_delta
from mvc.formats.encoding import EncodeScratch
from mvc.formats.pack import TARGET_PACK_BYTES
from mvc.formats.pack_index import encode_pack_index, index_records
from mvc.ids import ChunkId, PackId

if TYPE_CHECKING:
    from mvc.chunkstore.copies import Ids
    from mvc.chunkstore.reader import Sink
    from mvc.chunkstore.sweep_plan import SweepBatch
    from mvc.chunkstore.values import ChunkLocation, ReadRequest, StoreProblem, WriteCounts
    from mvc.dtypes import DType
    from mvc.progress import ByteProgress
    from mvc.storage.protocol import Storage

MAX_THREADS = 8
"""More would wait for the one thread that fills the pack, and each costs 15 MB."""
THREAD_BYTES = 4 * 2**20
"""One tensor is read by one thread for each 4 MiB: less does not pay for starting one."""
_IDLE_SLOTS = 2
_MAX_LOOKS = 10


class ChunkStore:
    """The chunks of one storage; safe to use from many threads, except its writers.

    Nothing is read before it is needed. A pack is closed by the first record that takes it past
    ``target_pack_bytes``.

    Attributes:
        storage: where the packs are.
        threads: how many work.
        nearby: where chunks are asked for before they are read from packs, if anywhere.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        threads: int | None = None,
        niceness: Callable[[], int] | None = None,
        target_pack_bytes: int = TARGET_PACK_BYTES,
        nearby: Sequence[Nearby] = (),
    ) -> None:
        self.storage = storage
        self.threads = choose_threads(threads)
        self.nearby = nearby
        self._niceness = niceness
        self._target_pack_bytes = target_pack_bytes
        self._catalog = PackCatalog(storage)
        self._reader = ChunkReader(self._catalog)
        self._idle_slots: list[ReadSlot] = []  # append and pop are atomic
        self._rewritten: set[PackId] = set()

    @property
    def repairs(self) -> Sequence[StoreProblem]:
        """Pack indexes that were missing or damaged and are rebuilt in memory for now."""
        return list(self._catalog.repairs.values())

    def find(self, chunk_id: ChunkId) -> ChunkLocation | None:
        """Return where a chunk is, or None."""
        return self._catalog.find(chunk_id)

    def find_all(self, chunk_id: ChunkId) -> Iterator[ChunkLocation]:
        """Yield every place of a chunk, those in damaged packs last."""
        return self._catalog.find_all(chunk_id)

    def contains_all(self, ids: Iterable[ChunkId]) -> bool:
        """Return whether sound packs hold all of the ids."""
        return bool(self._catalog.contains_each(ids).all())

    def refresh(self) -> bool:
        """See what other processes published or removed; return whether anything changed."""
        return self._catalog.refresh()

    def writer(self, deltas: DeltaMode = DeltaMode.NEVER, *, measure: bool = False) -> ChunkWriter:
        """Begin a write session; use it as a context manager."""
        self.mend_indexes()  # the session may build upon packs whose index got lost
        return self._new_writer(deltas, measure=measure)

    def rewriter(self) -> ChunkWriter:
        """Begin a session that takes records over as they are, whatever the store has."""
        return self._new_writer(DeltaMode.NEVER, rewrite=True)

    def _new_writer(
        self, deltas: DeltaMode, *, rewrite: bool = False, measure: bool = False
    ) -> ChunkWriter:
        return ChunkWriter(
            self._reader,
            threads=self.threads,
            target_pack_bytes=self._target_pack_bytes,
            deltas=deltas,
            rewrite=rewrite,
            measure=measure,
            niceness=self._niceness,
        )

    def mend_indexes(self) -> None:
        """Write lost indexes again, as those of packs whose removal was cut short."""
        self.refresh()
        for problem in self.repairs:
            with contextlib.suppress(MvcError):  # a damaged pack: not worse than before
                self.rebuild_index(PackId(problem.pack))
                self._catalog.repairs.pop(PackId(problem.pack), None)

    def read_into(self, chunk_id: ChunkId, plain: memoryview, *, context: str = "") -> None:
        """Fill ``plain`` with a chunk, verified; its content is undefined if an error is raised.

        For errors, ``context`` names what the chunk is part of.
        """
        plain = plain.cast("B")
        if not self.nearby:
            with self._slot() as slot:
                self._reader.read_chunk(chunk_id, plain, slot, context)
        elif not fill_nearby(self.nearby, chunk_id, plain, context):
            with keeping(self.nearby, chunk_id, plain), self._slot() as slot:
                self._reader.read_chunk(chunk_id, plain, slot, context)

    @contextlib.contextmanager
    def _slot(self) -> Iterator[ReadSlot]:
        slot = self._idle_slots.pop() if self._idle_slots else ReadSlot()
        yield slot
        if len(self._idle_slots) < _IDLE_SLOTS:
            self._idle_slots.append(slot)

    def read_each(self, chunks: Sequence[tuple[ChunkId, memoryview]], *, context: str = "") -> None:
        """Fill every buffer with its chunk, as ``read_into`` does, on all threads if it is much."""

        def read(item: tuple[ChunkId, memoryview], _: None) -> int:
            self.read_into(*item, context=context)
            return len(item[1])

        size_bytes = sum(len(plain) for _, plain in chunks)
        for_each(chunks, lambda: None, read, threads=min(self.threads, size_bytes // THREAD_BYTES))

    def read_many(
        self, requests: Sequence[ReadRequest], sink: Sink, progress: ByteProgress = None
    ) -> None:
        """Read many chunks, verified, in their order in the packs.

        ``sink`` is called with every request and its plain bytes, which are valid during the call
        only; from several threads at once, in any order. ``progress`` is called in this thread.
        """
        if self.nearby:
            NearbyReads(self, self._read_packs, sink, progress).read(requests)
        else:
            self._read_packs(requests, sink, progress)

    def _read_packs(
        self, requests: Sequence[ReadRequest], sink: Sink, progress: ByteProgress
    ) -> None:
        for_each(
            plan_reads(requests, self._catalog.find),
            ReadSlot,
            lambda group, slot: self._reader.read_group(group, sink, slot),
            threads=self.threads,
            progress=progress,
        )

    def check(self, *, data: bool) -> Iterator[StoreProblem]:
        """Yield everything that is wrong with packs and pack indexes.

        ``data``: also hash every pack against its name and every chunk against its id.
        """
        return check_store(self._reader, data=data, threads=self.threads)

    def check_packs(self, packs: Collection[PackId]) -> Iterator[StoreProblem]:
        """Yield everything that is wrong with some packs, hashing all that is in them."""
        listing = self.list_packs()
        listing.packs = {pack: listing.packs[pack] for pack in listing.packs.keys() & packs}
        yield from check_packs(self._reader, listing, data=True, threads=self.threads)

    def rebuild_index(self, pack: PackId) -> None:
        """Write the index of a pack again, from the pack alone."""
        size_bytes = self.storage.find_size(pack_key(pack))
        if size_bytes is None:
            raise CorruptionError(f"pack {pack} is missing")
        records = scan_stored_pack(self.storage, pack, size_bytes)
        index = index_records(pack, size_bytes, records)
        self.storage.delete(index_key(pack))  # a damaged one of the same length would stay
        publish_index(self.storage, pack, encode_pack_index(index))
        self._catalog.add(index)

    def salvage(self, pack: PackId) -> Salvage:
        """Move the sound chunks of a damaged pack into a new one: see ``salvage_pack``."""
        done = salvage_pack(self._reader, pack)
        self.refresh()
        return done

    def copies(self) -> StoredCopies:
        """Return all chunks of sound packs and what they need, as they are there now."""
        # While packs are joined, one look at the folder may miss the old ones and the new one.
        for _ in range(_MAX_LOOKS):
            if not self.refresh():
                break
        self._rewritten.clear()
        return StoredCopies(self._catalog.sound_indexes())

    def list_packs(self) -> PackListing:
        """Return names, sizes and times of all packs, whatever is in them; no index is read."""
        return PackListing(self.storage)

    def packs(self) -> set[PackId]:
        """Return the names of all packs."""
        return set(self.list_packs().packs)

    def estimate_delta(self, chunk_id: ChunkId, base: ChunkId, dtype: DType) -> tuple[int, int]:
        """Return about what a chunk takes as a difference to another and without, by sample."""
        location = self.find(chunk_id)
        size_bytes = 0 if location is None else location.plain_size_bytes
        plain, data = (memoryview(bytearray(size_bytes)) for _ in range(2))
        self.read_into(chunk_id, plain)
        self.read_into(base, data)
        return estimate_delta(plain, data, dtype, EncodeScratch())

    def write_batch(self, batch: SweepBatch, dtypes: Mapping[ChunkId, DType | None]) -> WriteCounts:
        """Write what a batch of a sweep plan keeps into new packs, durably; removes nothing.

        A delta or a cast tells its dtype itself, so ``dtypes`` may lack some of the chunks to
        encode. Bytes of old packs are reported. Nothing is published for a pack that is
        damaged.
        """
        with self._new_writer(DeltaMode.ALWAYS, rewrite=True) as writer:
            write_batch(writer, self._reader, batch, dtypes)
        self._rewritten.update(writer.packs)
        return writer.counts

    def find_unsafe(self, leaving: Collection[PackId], needed: Ids) -> list[ChunkId]:
        """Return needed chunks that can be decoded now and could not be without some packs."""
        self.refresh()
        leaving = set(leaving) - self._rewritten
        return find_unsafe(self._catalog.sound_indexes(), leaving, needed)

    def gather(self, packs: Collection[PackId]) -> None:
        """Join packs into few, every record as it is; the caller is alone. Damaged ones stay."""
        self.mend_indexes()  # a pack that a kill left without one may be what counts from now on
        self._rewritten.clear()
        with self._new_writer(DeltaMode.NEVER, rewrite=True) as writer:
            gone = carry_packs(writer, self._reader, set(packs))
        self._rewritten.update(writer.packs)
        self.remove_packs(gone)

    def remove_packs(self, packs: Collection[PackId]) -> int:
        """Remove packs and return their bytes; the caller is alone and knows that they may go.

        Packs that ``write_batch`` has written since ``copies`` stay: after a kill, a rewritten
        pack may come out as the very pack that is there.
        """
        gone = sorted(set(packs) - self._rewritten)
        keys = [key(pack) for pack in gone for key in (index_key, pack_key)]
        freed_bytes = sum(self.storage.find_size(key) or 0 for key in keys)
        delete_packs(self.storage, gone)
        self.refresh()
        return freed_bytes


def choose_threads(wanted: int | None = None) -> int:
    """Return how many threads read, compute or write: as many as are wanted, or what pays here."""
    return wanted or min(MAX_THREADS, count_cores())


def count_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

"""fsck of packs and pack indexes: is what the store holds what it says it holds? And if not, salvage.

Without data, everything but the bodies is read: lengths, headers, footers, every record header,
and the index next to them. With data, every pack is hashed against its name and every chunk is
decoded and hashed against its id, in one pass over the file. Packs are checked side by side, one
per thread; problems come out in the order of the packs. Finding a problem never ends the check.

A pack that is damaged somewhere still counts as holding all of its chunks, so that a lost chunk
would never be stored again. Salvaging ends that: the sound chunks go into a new pack, what is lost
is missing, and adding the same file again stores it. Nothing is thrown away: the damaged file is
under ``damaged/``.

    copy aside, durable ──► write the sound chunks into a new pack ──► publish ──► remove the old

A crash leaves the old pack, or both, or (if the new pack must take the old one's very name)
the copy alone, from which the next attempt goes on.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blake3 import blake3

from mvc.chunkstore.catalog import delete_packs, publish_index, read_index, scan_stored_pack
from mvc.chunkstore.chains import LostBaseError, ReadSlot
from mvc.chunkstore.listing import PackListing, index_key, pack_key
from mvc.chunkstore.pack_writer import NewPack, carry_record
from mvc.chunkstore.values import StoreProblem
from mvc.errors import FormatError, StorageError, UnsupportedError
from mvc.formats.pack import FOOTER_BYTES, HEADER_BYTES, PackRecord
from mvc.formats.pack_index import PackIndex, encode_pack_index
from mvc.progress import announce, report

if TYPE_CHECKING:
    from mvc.chunkstore.reader import ChunkReader
    from mvc.ids import PackId
    from mvc.storage.protocol import Storage

ASIDE = "damaged/"
_COPY_BYTES = 2**20


def check_store(reader: ChunkReader, *, data: bool, threads: int) -> Iterator[StoreProblem]:
    """Yield everything that is wrong with the packs of a storage; see ``ChunkStore.check``."""
    listing = PackListing(reader.storage)
    for key in listing.strays:
        yield StoreProblem("stray-file", key, None, None, f"{key} does not belong there")
    for pack in sorted(listing.lost_packs):
        # A list is not of one moment: a pack that is deleted meanwhile, index first, may show half.
        if reader.storage.find_size(index_key(pack)) is None:
            continue
        yield StoreProblem(
            "missing-pack", pack, None, None, "the pack is missing, its index is there"
        )
    yield from check_packs(reader, listing, data=data, threads=threads)


def check_packs(
    reader: ChunkReader, listing: PackListing, *, data: bool, threads: int
) -> Iterator[StoreProblem]:
    """Yield what is wrong with the packs of a listing; the reader may know of more of them."""
    announce(sum(listing.packs.values()))
    slots: list[ReadSlot] = []  # append and pop are atomic

    def check(pack: PackId) -> list[StoreProblem]:
        slot = slots.pop() if slots else ReadSlot()
        sizes = listing.packs[pack], listing.indexes.get(pack, 0)
        problems = list(_PackCheck(reader, pack, *sizes).run(slot if data else None))
        slots.append(slot)
        return problems

    executor = ThreadPoolExecutor(threads, thread_name_prefix="mvc-check")
    try:
        waiting = deque((pack, executor.submit(check, pack)) for pack in listing.packs)
        while waiting:
            pack, future = waiting.popleft()
            yield from future.result()
            report(listing.packs[pack])
    finally:
        executor.shutdown(cancel_futures=True)


def check_whole_pack(reader: ChunkReader, pack: PackId) -> list[StoreProblem]:
    """Return what is wrong with one pack: its name, its index, every chunk."""
    sizes = [reader.storage.find_size(key(pack)) or 0 for key in (pack_key, index_key)]
    return list(_PackCheck(reader, pack, *sizes).run(ReadSlot()))


@dataclass(frozen=True, slots=True)
class _PackCheck:
    reader: ChunkReader
    pack: PackId
    size_bytes: int
    index_bytes: int

    @property
    def storage(self) -> Storage:
        return self.reader.storage

    def run(self, slot: ReadSlot | None) -> Iterator[StoreProblem]:
        """Yield the problems; bodies are read only if a slot to read them with is given."""
        try:
            index = yield from self._check_index()
            records, complete = yield from self._check_headers(index)
            if slot is not None:
                yield from self._check_data(records, slot, complete=complete)
        except FileNotFoundError:
            return  # gc removed it since it was listed
        except StorageError as error:
            yield self._problem("unreadable", error.message)

    def _check_index(self) -> Generator[StoreProblem, None, PackIndex | None]:
        try:
            return read_index(self.storage, self.pack, self.index_bytes)
        except FileNotFoundError:
            yield self._problem("missing-index", "the pack has no index")
        except FormatError as error:
            yield self._problem("bad-index", error.message)
        return None

    def _check_headers(
        self, index: PackIndex | None
    ) -> Generator[StoreProblem, None, tuple[list[PackRecord], bool]]:
        """Compare pack and index; return the records to look at and whether they are all."""
        scanned: list[PackRecord] = []
        complete = True
        try:
            for record in scan_stored_pack(self.storage, self.pack, self.size_bytes):
                scanned.append(record)  # noqa: PERF402  those before an error are kept
        except FormatError as error:
            complete = False
            yield self._problem("bad-pack", error.message)
        if index is None:
            return scanned, complete
        said = list(index.records())
        if index.pack_size_bytes != self.size_bytes:
            complete = False
            detail = f"{self.size_bytes:,} bytes long, {index.pack_size_bytes:,} by its index"
            yield self._problem("bad-pack", detail)
        elif said[: len(scanned)] != scanned or (complete and len(said) != len(scanned)):
            yield self._problem("bad-index", "the index lists other records than the pack has")
            return scanned, complete
        return said, complete

    def _check_data(
        self, records: list[PackRecord], slot: ReadSlot, *, complete: bool
    ) -> Iterator[StoreProblem]:
        hasher = blake3()
        if complete:
            hasher.update(self._read(0, HEADER_BYTES, slot))
        for record in records:
            try:
                data = self._read(record.offset, record.end - record.offset, slot)
                if complete:
                    hasher.update(data)
                self.reader.decode_record(data, record, slot)
            except LostBaseError as error:
                yield self._problem("lost-base", error.message, record)
            except FormatError as error:
                yield self._problem("bad-chunk", error.message, record)
            except UnsupportedError as error:
                yield self._problem("unsupported", error.message, record)
        if complete:
            hasher.update(self._read(self.size_bytes - FOOTER_BYTES, FOOTER_BYTES, slot))
            if hasher.hexdigest() != self.pack:
                yield self._problem(
                    "bad-pack-hash", "the content of the pack does not match its name"
                )

    def _read(self, offset: int, size_bytes: int, slot: ReadSlot) -> memoryview:
        return slot.read(self.storage, pack_key(self.pack), offset, size_bytes)

    def _problem(self, kind: str, detail: str, record: PackRecord | None = None) -> StoreProblem:
        if record is None:
            return StoreProblem(kind, self.pack, None, None, detail)
        return StoreProblem(kind, self.pack, record.offset, record.chunk_id, detail)


@dataclass(frozen=True, slots=True)
class Salvage:
    """How many chunks of a damaged pack are now in a new one, and how many could not be read."""

    pack: PackId
    kept: int
    lost: int


def aside_key(pack: PackId) -> str:
    """Return where a damaged pack is set aside."""
    return f"{ASIDE}{pack}.pack"


def salvage_pack(reader: ChunkReader, pack: PackId) -> Salvage:
    """Move the sound chunks of a damaged pack into a new one and set the old one aside.

    UnsupportedError: a chunk in an encoding of a newer mvc, which cannot be judged here.
    """
    storage = reader.storage
    is_there = _set_aside(storage, pack)
    source = pack_key(pack) if is_there else aside_key(pack)
    records = _find_records(storage, pack, source)
    kept = 0
    with contextlib.ExitStack() as stack:
        fresh: NewPack | None = None
        for record, data in _read_sound(reader, source, records):
            if fresh is None:
                fresh = NewPack(storage)
                stack.callback(fresh.pending.abort)
            fresh.append([carry_record(record, data)])
            kept += 1
        if fresh is None:
            delete_packs(storage, [pack])
        else:
            _replace(storage, pack, fresh)
    return Salvage(pack, kept, len(records) - kept)


def _set_aside(storage: Storage, pack: PackId) -> bool:
    """Copy a pack, durably, before anything is removed; False if there is none to copy."""
    size_bytes = storage.find_size(pack_key(pack))
    if size_bytes is None:
        return False
    with storage.create(ASIDE) as file:
        for offset in range(0, size_bytes, _COPY_BYTES):
            block = bytearray(min(_COPY_BYTES, size_bytes - offset))
            storage.read_into(pack_key(pack), offset, memoryview(block))
            file.write([block])
        file.publish(aside_key(pack))
    return True


def _find_records(storage: Storage, pack: PackId, source: str) -> list[PackRecord]:
    """Return what the pack is known to hold: by its own record headers, and by its index."""
    by_offset: dict[int, PackRecord] = {}
    size_bytes = storage.find_size(source)
    if size_bytes is None:
        return []
    with contextlib.suppress(FormatError):  # from the first damaged header on
        for record in scan_stored_pack(storage, pack, size_bytes, key=source):
            by_offset[record.offset] = record
    with contextlib.suppress(FormatError, FileNotFoundError):
        index = read_index(storage, pack, storage.find_size(index_key(pack)) or 0)
        for record in index.records():
            by_offset.setdefault(record.offset, record)
    return [by_offset[offset] for offset in sorted(by_offset)]


def _read_sound(
    reader: ChunkReader, source: str, records: list[PackRecord]
) -> Iterator[tuple[PackRecord, memoryview]]:
    slot = ReadSlot()
    for record in records:
        data = slot.buffer("stored", record.end - record.offset)
        try:
            reader.storage.read_into(source, record.offset, data)
            reader.decode_record(data, record, slot)
        except LostBaseError:
            pass  # whether it is sound can be seen only once its base is stored again
        except FormatError:
            continue
        yield record, data


def _replace(storage: Storage, pack: PackId, fresh: NewPack) -> None:
    index = fresh.seal()
    if index.pack == pack:  # only its header or footer were damaged
        storage.delete(pack_key(pack))  # its index stays: it tells the next attempt what is missing
    fresh.pending.publish(pack_key(index.pack))
    storage.delete(index_key(index.pack))  # a damaged one of the same length would stay
    publish_index(storage, index.pack, encode_pack_index(index))
    if index.pack != pack:
        delete_packs(storage, [pack])

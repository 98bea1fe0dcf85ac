"""Chunks in packs → verified plain bytes.

Every byte that leaves has been hashed against its id. If a copy of a chunk cannot be read, the
others are tried, and then the storage is looked at once more: another process may have moved the
chunk to another pack meanwhile. Only when all that fails does an error say where the damage is.

A chunk that is stored as a difference to another, or as its rounding, is decoded with all it needs
(``chains``) and hashed once, at the end. If that fails, its bases are read again, each with its
own hash: the error then names the one that is damaged, and another copy of that one will do.

Many chunks are read by pack and offset. Neighbouring records are a group, fetched by one read, so
that 40,000 small tensors cost some dozen reads and not 40,000; a chunk that is wanted at several
places is fetched and decoded once. One worker takes a group from the storage to the sink, so the
memory in use is one group and one plain chunk per worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.chunkstore.chains import ChainReader, Descent, LostBaseError, ReadSlot, check_header
from mvc.chunkstore.listing import index_key, pack_key
from mvc.chunkstore.values import ChunkLocation, ReadRequest, corruption
from mvc.errors import CorruptionError, FormatError, MvcError, StorageError
from mvc.formats.decoding import Encoding
from mvc.formats.pack import RECORD_BYTES, PackRecord
from mvc.ids import ChunkId, PackId, hash_chunk
from mvc.storage.protocol import Forgetting

if TYPE_CHECKING:
    from mvc.chunkstore.catalog import PackCatalog

    Sink = Callable[[ReadRequest, memoryview], None]

GROUP_BYTES = 4 * 2**20
"""Records are read together up to this length; a longer one is read alone."""
_MAX_LOOKS = 16
"""How often the storage is looked at again, as long as packs keep moving."""
_BASED = "it is based on another: "


@dataclass(frozen=True, slots=True)
class PlannedChunk:
    """One chunk to read, where it is (None: not known), and all requests for it."""

    location: ChunkLocation | None
    requests: tuple[ReadRequest, ...]


@dataclass(frozen=True, slots=True)
class ReadGroup:
    """Neighbours in a pack, by offset, for one read; ``pack`` is None for a chunk not found."""

    pack: PackId | None
    offset: int
    size_bytes: int
    chunks: tuple[PlannedChunk, ...]


def plan_reads(
    requests: Sequence[ReadRequest], find: Callable[[ChunkId], ChunkLocation | None]
) -> list[ReadGroup]:
    """Return what to read, by ascending pack and offset; equal chunks are read once."""
    wanted: dict[ChunkId, list[ReadRequest]] = {}
    for request in requests:
        wanted.setdefault(request.chunk_id, []).append(request)
    lost: list[ReadGroup] = []
    chunks: list[tuple[ChunkLocation, PlannedChunk]] = []
    for chunk_id, askers in wanted.items():
        location = find(chunk_id)
        chunk = PlannedChunk(location, tuple(askers))
        if location is None:
            lost.append(ReadGroup(None, 0, 0, (chunk,)))
        else:
            chunks.append((location, chunk))
    chunks.sort(key=lambda pair: (pair[0].pack, pair[0].offset))
    return lost + list(_group(chunks))


def _group(chunks: Sequence[tuple[ChunkLocation, PlannedChunk]]) -> Iterator[ReadGroup]:
    members: list[PlannedChunk] = []
    pack: PackId | None = None
    start = end = 0
    for location, chunk in chunks:
        if members and (
            location.pack != pack or location.offset != end or location.end - start > GROUP_BYTES
        ):
            yield ReadGroup(pack, start, end - start, tuple(members))
            members = []
        if not members:
            pack, start = location.pack, location.offset
        members.append(chunk)
        end = location.end
    if members:
        yield ReadGroup(pack, start, end - start, tuple(members))


class ChunkReader:
    """Reads chunks of one storage; safe to use from many threads, each with its own slot."""

    def __init__(self, catalog: PackCatalog) -> None:
        self.storage = catalog.storage
        self.catalog = catalog
        self.chains = ChainReader(catalog)

    def read_chunk(
        self,
        chunk_id: ChunkId,
        plain: memoryview,
        slot: ReadSlot,
        context: str,
        descent: Descent | None = None,
    ) -> None:
        """Fill ``plain``, which is as long as the chunk, from any sound copy of it.

        For errors, ``context`` names what the chunk is part of; ``descent`` is the way to it, if
        another chunk needs it.
        """
        descent = descent or Descent()
        failure: MvcError | None = None
        refused: MvcError | None = None
        error: MvcError | None = None
        for _ in range(_MAX_LOOKS):
            seen = self.catalog.generation  # before the search: other threads refresh as well
            copies = self.catalog.find_all(chunk_id)
            for location in sorted(copies, key=lambda copy: bool(copy.bases)):
                if not descent.may_try():
                    break
                error = self._try_copy(location, plain, slot, context, descent)
                if error is None:
                    return
                failure = failure or error
                if isinstance(error, StorageError):  # that copy may be sound
                    refused = refused or error
            if descent.depth > 1:
                break  # the caller further up looks again
            self.catalog.refresh()
            if self.catalog.generation == seen:
                break
        try:
            raise refused or failure or corruption(chunk_id, None, context, "it is in no pack")
        finally:  # else error, traceback and frame keep each other and the buffers
            del refused, failure, error

    def _try_copy(
        self,
        location: ChunkLocation,
        plain: memoryview,
        slot: ReadSlot,
        context: str,
        descent: Descent,
    ) -> MvcError | None:
        """Read one copy; return what went wrong, if anything."""
        try:
            self._read_copy(location, plain, slot, descent)
        except FileNotFoundError:
            return corruption(location.chunk_id, location, context, "the pack is missing")
        except FormatError as error:
            if isinstance(self.storage, Forgetting):  # no cache may keep what is wrong
                self.storage.forget(pack_key(location.pack))
                self.storage.forget(index_key(location.pack))
            return corruption(location.chunk_id, location, context, error.message)
        except StorageError as error:
            return error
        return None

    def read_group(self, group: ReadGroup, sink: Sink, slot: ReadSlot) -> int:
        """Hand every chunk of a group to the sink for all who want it; return the plain bytes."""
        data = self._fetch(group, slot)
        done = 0
        for chunk in group.chunks:
            plain = None if data is None else self._try_decode(group, chunk, data, slot)
            if plain is None:  # rare, so memory is fresh
                first = chunk.requests[0]
                plain = memoryview(bytearray(first.plain_size_bytes))
                self.read_chunk(first.chunk_id, plain, ReadSlot(), first.context)
            for request in chunk.requests:
                if request.plain_size_bytes != len(plain):
                    reason = f"it has {len(plain):,} bytes, not {request.plain_size_bytes:,}"
                    raise corruption(request.chunk_id, chunk.location, request.context, reason)
                sink(request, plain)
                done += len(plain)
        return done

    def _fetch(self, group: ReadGroup, slot: ReadSlot) -> memoryview | None:
        if group.pack is None:
            return None
        try:
            return slot.read(self.storage, pack_key(group.pack), group.offset, group.size_bytes)
        except (FileNotFoundError, FormatError, StorageError):
            return None  # then each chunk by itself: most may be fine, or live elsewhere

    def _try_decode(
        self, group: ReadGroup, chunk: PlannedChunk, data: memoryview, slot: ReadSlot
    ) -> memoryview | None:
        """Return the plain bytes of one record of a group, or None if it cannot be read."""
        location = chunk.location
        assert location is not None
        record = data[location.offset - group.offset : location.end - group.offset]
        try:
            return self.decode_record(record, location, slot)
        except (FormatError, FileNotFoundError, StorageError):
            return None

    def _read_copy(
        self, location: ChunkLocation, plain: memoryview, slot: ReadSlot, descent: Descent
    ) -> None:
        if len(plain) != location.plain_size_bytes:
            raise FormatError(f"it has {location.plain_size_bytes:,} bytes, not {len(plain):,}")
        key = pack_key(location.pack)
        is_raw = location.encoding == Encoding.RAW and location.stored_size_bytes == len(plain)
        size_bytes = RECORD_BYTES if is_raw else location.end - location.offset
        record = slot.read(self.storage, key, location.offset, size_bytes)
        check_header(record, location)
        if is_raw:
            self.storage.read_into(key, location.offset + RECORD_BYTES, plain)
            check_hash(plain, location.chunk_id)
        else:
            self._decode(location, record[RECORD_BYTES:], plain, slot, descent)

    def decode_record(self, data: memoryview, expected: PackRecord, slot: ReadSlot) -> memoryview:
        """Return the verified plain bytes of a record; they are in ``data`` or in the slot.

        LostBaseError: a chunk that it is based on is lost, so it cannot be checked.
        """
        check_header(data, expected)
        body = data[RECORD_BYTES:]
        if expected.encoding == Encoding.RAW and len(body) == expected.plain_size_bytes:
            check_hash(body, expected.chunk_id)
            return body.toreadonly()
        plain = slot.buffer("plain", expected.plain_size_bytes)
        self._decode(expected, body, plain, slot, Descent())
        return plain.toreadonly()

    def _decode(
        self,
        record: PackRecord,
        body: memoryview,
        plain: memoryview,
        slot: ReadSlot,
        descent: Descent,
    ) -> None:
        if not (record.bases and descent.depth):
            try:
                self.chains.decode(record, body, plain, slot, None, descent)
                check_hash(plain, record.chunk_id)
            except (FormatError, FileNotFoundError, StorageError):
                if not record.bases:
                    raise
            else:
                return
        # Something below is damaged: read each base with its own hash, to use another copy of it
        # or to name it.
        below = descent.below(record.encoding)

        def fill(base: ChunkId, target: memoryview) -> None:
            try:
                self.read_chunk(base, target, ReadSlot(), "", below)
            except CorruptionError as error:
                raise LostBaseError(_BASED + error.message.rpartition(_BASED)[2]) from error

        self.chains.decode(record, body, plain, slot, fill, descent)
        check_hash(plain, record.chunk_id)


def check_hash(plain: memoryview, chunk_id: ChunkId) -> None:
    """Raise FormatError unless plain bytes are the chunk that was asked for."""
    if hash_chunk(plain) != chunk_id:
        raise FormatError("the bytes there do not match the chunk's id")

"""Bodies that need other chunks: from a stored body, whatever its encoding, to plain bytes.

A delta is decoded in place: its base is decoded into the destination, then the difference is added.
So a chain of deltas takes no memory beyond one stored body, and only the last result is hashed: if
that is right, every step before it was. If it is wrong, ``ChunkReader`` reads base after base, each
with its own hash, which finds the one that is damaged, or another copy of it.

A base is looked up by its id in the catalog, which knows the bases of every record; so the chain is
walked down without reading and up again with one read per step. Small records that are neighbours
in one pack mostly have bases that are neighbours too, so bases are read through a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from mvc.chunkstore.listing import pack_key
from mvc.dtypes import DType, get_dtype
from mvc.errors import FormatError, StorageError, UnsupportedError
from mvc.formats.casts import round_words
from mvc.formats.decoding import (
    DELTA_FLOATS,
    DecodeScratch,
    Encoding,
    apply_delta,
    decode_chunk,
    parse_cast,
)
from mvc.formats.pack import (
    MAX_BLOCK_BYTES,
    MAX_DEPTH,
    RECORD_BYTES,
    PackRecord,
    is_referring,
    parse_record_header,
    parse_references,
)

if TYPE_CHECKING:
    from mvc.chunkstore.catalog import PackCatalog
    from mvc.chunkstore.values import ChunkLocation
    from mvc.ids import ChunkId, PackId
    from mvc.storage.protocol import Storage

    FillBase = Callable[[ChunkId, memoryview], None]

_WINDOW_BYTES = 2**18
_WINDOW_RECORD_BYTES = 2**16
_WINDOWS = 8
_SHORT_HEX = 12
_MAX_CASTS = 2
"""Casts in a row of references: each may double the work, and no writer makes more than one."""
_MAX_TRIES = 200
"""Copies of bases that are tried to save one chunk: every one may lead to several others."""
_OF_NEWER = (6, 7)
"""Tags kept free for encodings with bases: their chunks are not damaged, only unknown here."""
_FLOATS = {2: "BF16", 4: "F32", 8: "F64"}
_INTEGERS = {1: "U8", 2: "U16", 4: "U32", 8: "U64"}


class LostBaseError(FormatError):
    """A body may be sound, but a chunk that it needs cannot be read."""


@dataclass(frozen=True, slots=True)
class Descent:
    """The way down from a chunk that is wanted to one that it needs.

    ``depth`` counts references on the way, ``casts`` those that are casts, ``tries`` the copies
    tried so far, shared by the whole way.
    """

    depth: int = 0
    casts: int = 0
    tries: Iterator[int] = field(default_factory=lambda: count(1))

    def below(self, encoding: int) -> Descent:
        """Return the way to what a body with this tag needs; LostBaseError if it is too long."""
        casts = self.casts + (encoding == Encoding.CAST)
        if self.depth >= MAX_DEPTH or casts > _MAX_CASTS:
            raise LostBaseError(f"readers follow at most {MAX_DEPTH} references in a row")
        return Descent(self.depth + 1, casts, self.tries)

    def may_try(self) -> bool:
        """Count one more copy; return whether it may be tried."""
        # Copies of the wanted chunk itself are few, and the error must name one of them.
        return not self.depth or next(self.tries) <= _MAX_TRIES


class Buffers:
    """Memory that one thread uses again and again: fresh memory costs more than hashing it."""

    def __init__(self) -> None:
        self._kept: dict[str, memoryview] = {}

    def buffer(self, use: str, size_bytes: int) -> memoryview:
        """Return the buffer for one use; what was in it before is gone."""
        kept = self._kept.get(use)
        if kept is None or len(kept) < size_bytes:
            # Room for somewhat longer ones as well: memory that is not touched costs nothing.
            room = 1 << max(0, size_bytes - 1).bit_length()
            kept = self._kept[use] = np.empty(room, np.uint8).data
        return kept[:size_bytes]


class ReadSlot(Buffers):
    """The memory of one reading thread."""

    def __init__(self) -> None:
        super().__init__()
        self.windows: dict[PackId, tuple[int, memoryview]] = {}
        self.scratch = DecodeScratch()

    def read(
        self, storage: Storage, key: str, offset: int, size_bytes: int, use: str = "stored"
    ) -> memoryview:
        """Return a range of a stored object, in the buffer for that use."""
        data = self.buffer(use, size_bytes)
        storage.read_into(key, offset, data)
        return data


class ChainReader:
    """Decodes bodies of one storage; safe to use from many threads, each with its own slot."""

    def __init__(self, catalog: PackCatalog) -> None:
        self._storage = catalog.storage
        self._catalog = catalog

    def decode(
        self,
        record: PackRecord,
        body: memoryview,
        plain: memoryview,
        slot: ReadSlot,
        fill: FillBase | None = None,
        descent: Descent | None = None,
    ) -> None:
        """Fill ``plain`` from a body. The caller hashes it: nothing here proves it right.

        The body must not be in the slot's buffer for bases. ``fill`` is called with a base and the
        buffer to fill; by default, bases are not hashed. ``descent`` is the way to this chunk, if
        another needs it.
        """
        if not is_referring(record.encoding):
            decode_chunk(record.encoding, body, plain, slot.scratch)
            return
        if parse_references(body).bases != record.bases:
            raise FormatError("its bases are not those in the pack index")
        below = (descent or Descent()).below(record.encoding)
        self._decode(record.encoding, body, plain, slot, fill or self._filler(slot, below))

    def _decode(
        self, encoding: int, body: memoryview, plain: memoryview, slot: ReadSlot, fill: FillBase
    ) -> None:
        if encoding == Encoding.DELTA:
            fill(parse_references(body).bases[0], plain)
            apply_delta(body, plain, slot.scratch)
        elif encoding == Encoding.CAST:
            self._round(body, plain, slot, fill)
        elif encoding in _OF_NEWER:
            raise UnsupportedError(f"encoding {encoding} needs a newer mvc", hint="update mvc")
        else:
            decode_chunk(encoding, body, plain, slot.scratch)

    def _round(self, body: memoryview, plain: memoryview, slot: ReadSlot, fill: FillBase) -> None:
        """Decode the masters one by one and round each into its part of ``plain``."""
        references = parse_cast(body)
        if len(plain) % 2:
            raise FormatError("a cast produces whole words only")
        words = np.frombuffer(plain, np.uint8)
        rest = 2 * len(plain)
        for base in references.bases:
            size_bytes = rest
            if base is not references.bases[-1]:
                location = self._catalog.find(base)
                if location is None:
                    raise _missing(base)
                size_bytes = location.plain_size_bytes
            if not 0 < size_bytes <= rest or size_bytes % 4:
                raise FormatError("the bases of a cast have the wrong length")
            master = slot.buffer("master", size_bytes)
            fill(base, master)
            start = len(plain) - rest // 2
            part = words[start : start + size_bytes // 2]
            round_words(references.words, np.frombuffer(master, np.uint8), part, slot.scratch.arena)
            rest -= size_bytes
        if rest:
            raise FormatError("the bases of a cast have the wrong length")

    def find_dtype(self, chunk_id: ChunkId, slot: ReadSlot) -> DType | None:
        """Return what the words of a chunk are, if its body tells: a delta or a cast does."""
        location = self._catalog.find(chunk_id)
        if location is None or not is_referring(location.encoding):
            return None
        key, start = pack_key(location.pack), location.offset + RECORD_BYTES
        size_bytes = min(location.stored_size_bytes, MAX_BLOCK_BYTES)
        references = parse_references(slot.read(self._storage, key, start, size_bytes))
        if location.encoding == Encoding.CAST:
            return get_dtype("BF16")  # any element type that is coded as these words are
        names = _FLOATS if references.words & DELTA_FLOATS else _INTEGERS
        name = names.get(references.words & ~DELTA_FLOATS)
        return None if name is None else get_dtype(name)

    def _filler(self, slot: ReadSlot, descent: Descent) -> FillBase:
        def fill(base: ChunkId, plain: memoryview) -> None:
            self._fill(base, plain, slot, descent)

        return fill

    def _fill(self, chunk_id: ChunkId, plain: memoryview, slot: ReadSlot, descent: Descent) -> None:
        """Fill ``plain`` with a base, from the copy of it that needs least; not hashed."""
        location = self._choose(chunk_id, len(plain))
        if location.encoding == Encoding.DELTA:
            # The base goes first: reading it takes the buffer that the body will be in.
            self._fill(location.bases[0], plain, slot, descent.below(location.encoding))
            apply_delta(self._read_body(location, slot), plain, slot.scratch)
            return
        body = self._read_body(location, slot)
        if is_referring(location.encoding):
            descent = descent.below(location.encoding)
            body, slot = memoryview(bytes(body)), ReadSlot()  # its bases go into the same buffers
        self._decode(location.encoding, body, plain, slot, self._filler(slot, descent))

    def _choose(self, chunk_id: ChunkId, size_bytes: int) -> ChunkLocation:
        copies: list[ChunkLocation] = []
        for location in self._catalog.find_all(chunk_id):
            if location.plain_size_bytes != size_bytes:
                continue
            if not location.bases:
                return location
            copies.append(location)
        if not copies:
            raise _missing(chunk_id)
        if len(copies) > 1:  # garbage may refer to what is gone
            for location in copies:
                if all(self._catalog.find(base) is not None for base in location.bases):
                    return location
        return copies[0]

    def _read_body(self, location: ChunkLocation, slot: ReadSlot) -> memoryview:
        size_bytes = RECORD_BYTES + location.stored_size_bytes
        if size_bytes > _WINDOW_RECORD_BYTES:
            key = pack_key(location.pack)
            record = slot.read(self._storage, key, location.offset, size_bytes, "base")
        else:
            record = self._read_small(location, size_bytes, slot)
        check_header(record, location)
        return record[RECORD_BYTES:]

    def _read_small(self, location: ChunkLocation, size_bytes: int, slot: ReadSlot) -> memoryview:
        start, window = slot.windows.get(location.pack, (0, memoryview(b"")))
        inside = location.offset - start
        if not 0 <= inside <= len(window) - size_bytes:
            window = self._read_window(location, size_bytes)
            while len(slot.windows) >= _WINDOWS:
                slot.windows.pop(next(iter(slot.windows)))
            slot.windows[location.pack] = (location.offset, window)
            inside = 0
        return window[inside : inside + size_bytes]

    def _read_window(self, location: ChunkLocation, size_bytes: int) -> memoryview:
        """Return a record and, if it can be read, what follows it."""
        key, ahead = pack_key(location.pack), self._catalog.pack_size(location.pack)
        window = memoryview(bytearray(max(size_bytes, min(_WINDOW_BYTES, ahead - location.offset))))
        try:
            self._storage.read_into(key, location.offset, window)
        except (FormatError, StorageError):
            window = window[:size_bytes]
            self._storage.read_into(key, location.offset, window)
        return window


def check_header(data: memoryview, expected: PackRecord) -> None:
    """Check that the record header at the start of ``data`` is the expected one."""
    record = parse_record_header(data[:RECORD_BYTES], expected.offset)
    if (record.chunk_id, record.encoding, record.plain_size_bytes, record.stored_size_bytes) != (
        expected.chunk_id,
        expected.encoding,
        expected.plain_size_bytes,
        expected.stored_size_bytes,
    ):
        raise FormatError("the record there is not the one that the pack index names")


def _missing(base: ChunkId) -> LostBaseError:
    return LostBaseError(f"chunk {base.hex()[:_SHORT_HEX]}, which it is based on, is in no pack")

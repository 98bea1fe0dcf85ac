"""The pack file: many encoded chunks one after another, each record describing itself.

docs/format.md, section 4, shows the layout. Records follow each other without a hole, so a pack is
readable from its first byte on without its index, and an index can be made from the pack
alone. The CRC guards the walk from header to header; a body is guarded by its chunk id.

Nothing here knows what an encoding tag means, except that bodies with tags from ``FIRST_REFERRING``
on begin with a *reference block* that names the chunks they need. So a pack can be indexed, copied
and swept by code that cannot decode what is in it.

A base is named by its content, never by its place: it may move to another pack or be encoded
again. So the length of a chain of references is not written down; a reader follows at most
``MAX_DEPTH`` of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from zlib import crc32

from mvc.errors import FormatError
from mvc.ids import ID_BYTES, ChunkId, split_ids

if TYPE_CHECKING:
    ReadAt = Callable[[int, int], bytes | memoryview]
    """(offset, size) → exactly that many bytes; raises FormatError where the file ends before."""

HEADER_BYTES = 16
RECORD_BYTES = 64
FOOTER_BYTES = 32
MIN_PACK_BYTES = HEADER_BYTES + FOOTER_BYTES

TARGET_PACK_BYTES = 64 * 2**20
"""A pack is closed by the first record that takes it past this length."""
MAX_PACK_BYTES = 2**31
"""Room for another target; a pack index of such a pack stays far below memory."""
MAX_PACK_RECORDS = 2**20
"""More than a pack of one-byte chunks holds at the target; caps the index at 50 MiB."""
MAX_PLAIN_BYTES = 64 * 2**20
"""The longest chunk: what a reader must be ready to hold in memory."""
MAX_STORED_SLACK_BYTES = 1024
"""How much an encoded body may be longer than the plain bytes."""

FIRST_REFERRING = 4
"""Tags of encodings from here on have a body that begins with a reference block."""
MAX_BASES = 2
MAX_DEPTH = 100
"""References between a chunk and bytes that need none, at most."""

_REFERENCES = struct.Struct("<BBBBI")
REFERENCES_BYTES = _REFERENCES.size
MAX_BLOCK_BYTES = REFERENCES_BYTES + MAX_BASES * ID_BYTES

_HEADER = struct.Struct("<8sII")
_RECORD = struct.Struct("<4sB3xII")
_FOOTER = struct.Struct("<8sQQQ")
_U32 = struct.Struct("<I")
_PACK_MAGIC = b"mvcpack\0"
_RECORD_MAGIC = b"mvcr"
_FOOTER_MAGIC = b"mvcpend\0"
_VERSION = 1
_CRC = slice(16, 20)
_RESERVED = bytes(12)


@dataclass(frozen=True, slots=True)
class PackRecord:
    """A record header (at ``offset`` in the pack), and the bases that the body names."""

    chunk_id: ChunkId
    encoding: int
    plain_size_bytes: int
    stored_size_bytes: int
    offset: int
    bases: tuple[ChunkId, ...] = ()

    @property
    def end(self) -> int:
        """First byte after the body."""
        return self.offset + RECORD_BYTES + self.stored_size_bytes


def encode_pack_header() -> bytes:
    """Return the 16 bytes every pack begins with."""
    return _HEADER.pack(_PACK_MAGIC, _VERSION, 0)


def parse_pack_header(data: bytes | memoryview) -> None:
    """Check the first 16 bytes of a pack."""
    if len(data) != HEADER_BYTES or data[:8] != _PACK_MAGIC:
        raise FormatError("not a pack file")
    _, version, zero = _HEADER.unpack(data)
    if version != _VERSION:
        raise FormatError(f"pack has format version {version}", hint="use a newer mvc")
    if zero:
        raise FormatError("pack header has bits set that must be zero")


def encode_record_header(
    chunk_id: ChunkId, encoding: int, plain_size_bytes: int, stored_size_bytes: int
) -> bytes:
    """Return the 64 bytes in front of a chunk's body."""
    front = _RECORD.pack(_RECORD_MAGIC, encoding, plain_size_bytes, stored_size_bytes)
    back = _RESERVED + chunk_id
    return front + _U32.pack(crc32(back, crc32(front))) + back


def parse_record_header(data: bytes | memoryview, offset: int) -> PackRecord:
    """Return the record whose 64 header bytes are at ``offset`` of a pack; bases are not in them."""
    data = bytes(data)
    if len(data) != RECORD_BYTES or data[:4] != _RECORD_MAGIC:
        raise FormatError(f"no record at offset {offset:,}")
    if crc32(data[20:], crc32(data[:16])) != _U32.unpack(data[_CRC])[0]:
        raise FormatError(f"record header at offset {offset:,} is damaged")
    _, encoding, plain_size_bytes, stored_size_bytes = _RECORD.unpack(data[:16])
    if data[5:8] != _RESERVED[:3] or data[20:32] != _RESERVED:
        raise FormatError(f"record header at offset {offset:,} has bits set that must be zero")
    if plain_size_bytes > MAX_PLAIN_BYTES:
        raise FormatError(f"chunk at offset {offset:,} is longer than {MAX_PLAIN_BYTES:,} bytes")
    if stored_size_bytes > plain_size_bytes + MAX_STORED_SLACK_BYTES:
        raise FormatError(f"body at offset {offset:,} is longer than its plain bytes")
    return PackRecord(ChunkId(data[32:]), encoding, plain_size_bytes, stored_size_bytes, offset)


def encode_pack_footer(record_count: int, pack_size_bytes: int) -> bytes:
    """Return the 32 bytes every pack ends with; the length is that of the whole pack."""
    return _FOOTER.pack(_FOOTER_MAGIC, record_count, pack_size_bytes, 0)


def parse_pack_footer(data: bytes | memoryview, pack_size_bytes: int) -> int:
    """Check the last 32 bytes of a pack and return its number of records."""
    if len(data) != FOOTER_BYTES or data[:8] != _FOOTER_MAGIC:
        raise FormatError("pack has no footer: it was cut short or is damaged at the end")
    _, count, stated_bytes, zero = _FOOTER.unpack(data)
    if stated_bytes != pack_size_bytes:
        raise FormatError(
            f"pack has {pack_size_bytes:,} bytes but its footer says {stated_bytes:,}"
        )
    if zero:
        raise FormatError("pack footer has bits set that must be zero")
    if not 0 < count <= MAX_PACK_RECORDS:
        raise FormatError(f"pack footer counts {count:,} records")
    return int(count)


def scan_pack(read_at: ReadAt, pack_size_bytes: int) -> Iterator[PackRecord]:
    """Yield the records of a pack from its first to its last; of bodies only references are read.

    Every record that is yielded is within the pack. To save what is left of a damaged pack, keep
    the records that came before the error.
    """
    if not MIN_PACK_BYTES <= pack_size_bytes <= MAX_PACK_BYTES:
        raise FormatError(f"{pack_size_bytes:,} bytes cannot be a pack")
    parse_pack_header(read_at(0, HEADER_BYTES))
    end = pack_size_bytes - FOOTER_BYTES
    offset = HEADER_BYTES
    count = 0
    while offset < end and count < MAX_PACK_RECORDS:
        if end - offset < RECORD_BYTES:
            raise FormatError(f"no record at offset {offset:,}")
        record = parse_record_header(read_at(offset, RECORD_BYTES), offset)
        if record.end > end:
            raise FormatError(f"record at offset {offset:,} reaches past the end of the pack")
        if is_referring(record.encoding):
            front = read_at(offset + RECORD_BYTES, min(record.stored_size_bytes, MAX_BLOCK_BYTES))
            record = replace(record, bases=parse_references(front).bases)
        yield record
        offset = record.end
        count += 1
    stated = parse_pack_footer(read_at(end, FOOTER_BYTES), pack_size_bytes)
    if offset != end or count != stated:
        raise FormatError(f"pack footer counts {stated:,} records, found {count:,}")


@dataclass(frozen=True, slots=True)
class References:
    """What a body refers to; the encoding says what the numbers ``words`` and ``coding`` mean."""

    bases: tuple[ChunkId, ...]
    words: int
    coding: int

    @property
    def size_bytes(self) -> int:
        """Length of the block."""
        return REFERENCES_BYTES + ID_BYTES * len(self.bases)


def is_referring(encoding: int) -> bool:
    """Return whether bodies with this tag begin with a reference block."""
    return encoding >= FIRST_REFERRING


def encode_references(references: References) -> bytes:
    """Return the bytes of a block."""
    ids = b"".join(references.bases)
    front = bytes((len(references.bases), references.words, references.coding, 0))
    return _REFERENCES.pack(*front, crc32(ids, crc32(front))) + ids


def parse_references(body: bytes | memoryview) -> References:
    """Return the block at the start of a body; its first ``MAX_BLOCK_BYTES`` are enough."""
    if len(body) < REFERENCES_BYTES:
        raise FormatError("body is shorter than its references")
    count, words, coding, zero, crc = _REFERENCES.unpack_from(body)
    end = REFERENCES_BYTES + ID_BYTES * count
    if not 0 < count <= MAX_BASES or zero or len(body) < end:
        raise FormatError("body has impossible references")
    ids = bytes(body[REFERENCES_BYTES:end])
    if crc32(ids, crc32(bytes(body[:4]))) != crc:
        raise FormatError("the references of a body are damaged")
    return References(tuple(split_ids(ids)), words, coding)

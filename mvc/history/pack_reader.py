"""One Git pack that is being read: single objects, the start of an object, or all entries in turn.

Whether a blob is a manifest shows in its first bytes, and a manifest may have 100 MB. So of a delta
only the instructions that make those bytes are read, and only the part of its base that they copy.
"""

from __future__ import annotations

import os
import struct
import weakref
import zlib
from collections.abc import Iterable, Iterator
from hashlib import sha1
from io import BytesIO
from typing import NamedTuple, Protocol

from mvc import fs
from mvc.errors import FormatError
from mvc.history.object_formats import KINDS, MAX_OBJECT_BYTES

PACK_HEADER = struct.Struct(">4sLL")
"""Magic, version and number of objects."""
TRAILER_BYTES = 20
"""A pack ends with its SHA-1."""
_READ_BYTES = 1 << 16
_PIECE_BYTES = 1 << 20
_MAX_OBJECTS = 1 << 24
_OFFSET_DELTA, _ID_DELTA = 6, 7
_ID_BYTES = 20
_HEADER_BYTES = 64  # more than the header of any entry, or the two lengths of a delta
_BLOCK_BYTES = 4096
_MAX_BLOCK_BYTES = 1 << 20
_COPY_BYTES = 8  # at most, for an instruction that makes at least one byte
_MAX_INSERT_BYTES = 128
_MAX_CHAIN = 10_000  # Git itself stops at 4,095
_MAX_BASES = 256  # kept of each open pack: the deltas of a chain share their bases
_MAX_BASE_BYTES = 1 << 16


class Places(Protocol):
    """Knows where the objects of a pack are."""

    def find(self, name: bytes, /) -> int | None:
        """Return where the object of an id begins, or None if the pack does not have it."""


class GitPackReader:
    """A pack that is being read; it is closed once nothing uses it.

    Args:
        path: of the pack.
        index: says where the base of a delta is, given its id.
    """

    def __init__(self, path: str, index: Places) -> None:
        with fs.open_file(path) as file:
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)
        self._index = index
        self._bases: dict[int, tuple[str, bytes]] = {}

    @property
    def is_removed(self) -> bool:
        """Whether the file has no name any more."""
        return os.fstat(self._descriptor).st_nlink == 0

    def read(self, offset: int) -> tuple[str, bytes]:
        """Return (kind, content) of the object at an offset."""
        deltas: list[tuple[int, bytes]] = []
        entry = self._bases.get(offset)
        while entry is None:
            kind, size_bytes, start, base = self._parse_entry(offset)
            data = _inflate(self._descriptor, start, size_bytes)
            if len(data) < size_bytes:
                raise ValueError("its length is not the one it announces")
            if base is None:
                entry = KINDS[kind], data
                break
            deltas.append((offset, data))
            if len(deltas) > _MAX_CHAIN:
                raise ValueError("its chain of deltas does not end")
            offset = base
            entry = self._bases.get(offset)
        for place, delta in reversed(deltas):
            base_kind, base_data = entry
            if len(base_data) <= _MAX_BASE_BYTES:
                if len(self._bases) >= _MAX_BASES:
                    self._bases.clear()
                self._bases[offset] = entry
            pieces, made, _, base_bytes = _parse_delta(delta, MAX_OBJECT_BYTES)
            if base_bytes != len(base_data) or made > MAX_OBJECT_BYTES:
                raise ValueError("its delta is to another base")
            entry, offset = (base_kind, _join(pieces, base_data)), place
        return entry

    def read_start(self, offset: int, count: int) -> tuple[str, int, bytes]:
        """Return (kind, length, first bytes) of the object at an offset."""
        deltas: list[tuple[list[bytes | slice], int]] = []
        length, needed = None, count
        while True:
            kind, size_bytes, start, base = self._parse_entry(offset)
            if base is None:
                break
            limit = min(size_bytes, _HEADER_BYTES + _COPY_BYTES * needed + _MAX_INSERT_BYTES)
            pieces, made, needed, base_bytes = _parse_delta(
                _inflate(self._descriptor, start, limit), needed
            )
            length = made if length is None else length
            deltas.append((pieces, base_bytes))
            if len(deltas) > _MAX_CHAIN:
                raise ValueError("its chain of deltas does not end")
            offset = base
        data = _inflate(self._descriptor, start, min(needed, size_bytes))
        if len(data) < min(needed, size_bytes) or (deltas and deltas[-1][1] != size_bytes):
            raise ValueError("its length is not the one it announces")
        for pieces, _ in reversed(deltas):
            data = _join(pieces, data)
        return KINDS[kind], size_bytes if length is None else length, data[:count]

    def _parse_entry(self, offset: int) -> tuple[int, int, int, int | None]:
        """Return (kind, length, where the content begins, where the base of a delta begins)."""
        header = os.pread(self._descriptor, _HEADER_BYTES, offset)
        kind, size_bytes, header_bytes, base = parse_entry_header(header)
        if size_bytes > MAX_OBJECT_BYTES:
            raise ValueError(f"it announces {size_bytes:,} bytes")
        if isinstance(base, bytes):
            base = self._index.find(base)
            if base is None:
                raise ValueError("the base of its delta is missing")
        elif base is not None:
            base = offset - base
            if base < 0:
                raise ValueError("the base of its delta is not in the pack")
        return kind, size_bytes, offset + header_bytes, base


def _join(pieces: Iterable[bytes | slice], base: bytes) -> bytes:
    return b"".join(base[piece] if isinstance(piece, slice) else piece for piece in pieces)


def parse_entry_header(header: bytes) -> tuple[int, int, int, int | bytes | None]:
    """Return (kind, length, where the content begins, base) of an entry of a pack.

    The base of a delta is the distance to an earlier entry, or an id.
    """
    kind, size_bytes, shift, at = header[0] >> 4 & 7, header[0] & 15, 4, 1
    while header[at - 1] & 0x80:
        size_bytes |= (header[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
    if kind == _ID_DELTA:
        return kind, size_bytes, at + _ID_BYTES, header[at : at + _ID_BYTES]
    if kind != _OFFSET_DELTA:
        return kind, size_bytes, at, None
    distance, at = header[at] & 0x7F, at + 1
    while header[at - 1] & 0x80:
        distance, at = (distance + 1 << 7) | (header[at] & 0x7F), at + 1
    if not distance:
        raise ValueError("its delta is based on itself")
    return kind, size_bytes, at, distance


def _parse_delta(delta: bytes, count: int) -> tuple[list[bytes | slice], int, int, int]:
    """Return what makes the first ``count`` bytes of the result: (pieces, its length, …).

    A piece is bytes, or a slice of the base. Then: how many bytes of the base they need, and the
    length that the base must have.
    """
    base_bytes, at = _parse_length(delta, 0)
    made_bytes, at = _parse_length(delta, at)
    pieces: list[bytes | slice] = []
    done = reach = 0
    while done < min(count, made_bytes):
        code, at = delta[at], at + 1
        if code & 0x80:
            fields = []
            for bit in range(7):
                fields.append(delta[at] if code & 1 << bit else 0)
                at += bool(code & 1 << bit)
            start = int.from_bytes(fields[:4], "little")
            size_bytes = int.from_bytes(fields[4:], "little") or 0x10000
            if start + size_bytes > base_bytes:
                raise ValueError("its delta copies from beyond its base")
            size_bytes = min(size_bytes, count - done)
            pieces.append(slice(start, start + size_bytes))
            reach = max(reach, start + size_bytes)
        else:
            size_bytes = code
            pieces.append(delta[at : at + size_bytes])
            at += size_bytes
            if not size_bytes or at > len(delta):
                raise ValueError("its delta is cut off")
        done += size_bytes
    return pieces, made_bytes, reach, base_bytes


def _parse_length(data: bytes, at: int) -> tuple[int, int]:
    """Return a length of seven bits a byte, the lowest first, and where it ends."""
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 0x80:
            return value, at


def _inflate(descriptor: int, offset: int, count: int) -> bytes:
    """Return the first ``count`` bytes (or all) of a deflated stream in a file."""
    inflater, parts, left = zlib.decompressobj(), [], count
    while left and not inflater.eof:
        block = os.pread(descriptor, min(max(left, _BLOCK_BYTES), _MAX_BLOCK_BYTES), offset)
        if not block:
            break
        offset += len(block)
        parts.append(inflater.decompress(block, left))
        left -= len(parts[-1])
    return b"".join(parts)


class PackEntry(NamedTuple):
    """An entry of a pack."""

    number: int  # of its kind; beyond ``KINDS`` it is a delta
    base: int | bytes | None  # of a delta: how far before it that begins, or its id
    data: bytes  # the content, or the delta
    end: int  # where the next entry begins


def parse_entries(descriptor: int, name: str | None = None) -> Iterator[tuple[int, PackEntry]]:
    """Yield where each entry of a pack begins, and the entry; FormatError if it is not a pack.

    ``name`` is the SHA-1 that it has to end with; whatever that is by default, it is checked.
    """
    size_bytes = fs.stat_descriptor(descriptor).size_bytes
    buffer = bytearray(PACK_HEADER.size)
    if size_bytes < PACK_HEADER.size + TRAILER_BYTES:
        raise FormatError("a Git pack is cut off")
    fs.read_at(descriptor, memoryview(buffer), 0)
    magic, version, count = PACK_HEADER.unpack(buffer)
    if magic != b"PACK" or version != 2 or count > _MAX_OBJECTS:  # noqa: PLR2004  the only one
        raise FormatError("a file that should be a Git pack is something else")
    digest = _hash_pack(descriptor, size_bytes)
    if not digest or name not in (None, digest):
        raise FormatError(f"Git pack {(name or 'of the host')[:12]} does not match its name")
    at = PACK_HEADER.size
    for _ in range(count):
        entry = inflate_entry(descriptor, at)
        yield at, entry
        at = entry.end
    if at != size_bytes - TRAILER_BYTES:
        raise FormatError(f"Git pack {digest[:12]} has something behind its objects")


def _hash_pack(descriptor: int, size_bytes: int) -> str:
    """Return the SHA-1 of a pack without its trailer, or nothing if the trailer says another."""
    digest, at = sha1(usedforsecurity=False), 0
    buffer = memoryview(bytearray(1 << 20))
    while at < size_bytes - TRAILER_BYTES:
        part = buffer[: min(len(buffer), size_bytes - TRAILER_BYTES - at)]
        at += fs.read_at(descriptor, part, at) or size_bytes
        digest.update(part)
    trailer = bytearray(TRAILER_BYTES)
    fs.read_at(descriptor, memoryview(trailer), size_bytes - TRAILER_BYTES)
    return digest.hexdigest() if digest.digest() == trailer else ""


def inflate_entry(descriptor: int, at: int) -> PackEntry:
    """Return the entry of a pack at an offset; FormatError if it is damaged or too long."""
    buffer = bytearray(_READ_BYTES)
    filled = fs.read_at(descriptor, memoryview(buffer), at)
    try:
        number, size_bytes, header_bytes, base = parse_entry_header(bytes(buffer[:_HEADER_BYTES]))
        if size_bytes > MAX_OBJECT_BYTES:
            raise FormatError("a Git pack from elsewhere holds an object that is too long")
        inflater = zlib.decompressobj()
        content, end = (
            BytesIO(),
            at + filled,
        )  # a list and what is made of it would be twice as much
        done = content.write(
            inflater.decompress(memoryview(buffer)[header_bytes:filled], _PIECE_BYTES)
        )
        while not inflater.eof and done <= size_bytes:
            rest: bytes | memoryview = inflater.unconsumed_tail
            if not rest:
                filled = fs.read_at(descriptor, memoryview(buffer), end)
                if not filled:
                    break
                end += filled
                rest = memoryview(buffer)[:filled]
            done += content.write(inflater.decompress(rest, _PIECE_BYTES))
    except (zlib.error, IndexError, ValueError) as error:
        raise FormatError("an object of a Git pack is damaged") from error
    if not inflater.eof or done != size_bytes:
        raise FormatError("an object of a Git pack has another length than it announces")
    return PackEntry(number, base, content.getvalue(), end - len(inflater.unused_data))

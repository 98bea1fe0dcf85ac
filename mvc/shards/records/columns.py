"""Parquet and Arrow: the number of rows, from their metadata alone.

Not with pyarrow: it is not part of the base install, keeps whole record batches of a stream in memory,
and a shard of a store is read in order, once.

*Parquet*: ``num_rows`` of the footer, which is a struct of Thrift's compact protocol. A field is a byte
(delta of the field's number, type) and its value; numbers are zigzag varints; a struct ends with a zero
byte (https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md). ``num_rows`` is
field 3 of ``FileMetaData``, after the version and the schema, so most of a footer is not looked at.

*Arrow IPC*, as a stream or a file, which is a stream with a frame around it. A stream is a run of messages:
FF FF FF FF, the length of the metadata (int32), the metadata, which is a FlatBuffer ``Message``, and a body
of ``bodyLength`` bytes; a length of 0 ends it
(https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format). The rows are the
lengths of all record batches.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mvc.errors import FormatError

if TYPE_CHECKING:
    from mvc.shards.records.stream import ShardBytes

_MAX_COUNT = 2**63 - 1

_PARQUET = b"PAR1"
_TAIL = 8
_MAX_FOOTER_BYTES = 8 << 20  # that are looked at
_NUM_ROWS = 3
_MAX_DEPTH = 16
_FLAGS, _BYTE, _NUMBERS, _DOUBLE, _BINARY, _LISTS, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12
"""Types of Thrift's compact protocol; no footer has a map (11)."""

_ARROW = b"ARROW1\0\0"
_ARROW_END = _ARROW.rstrip(b"\0")
_CONTINUES = b"\xff\xff\xff\xff"
_SCHEMA, _RECORD_BATCH = 1, 3
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3  # fields of Message
_LENGTH = 0  # field of RecordBatch


def count_parquet_rows(stream: ShardBytes) -> int:
    """Return how many rows a Parquet file has."""
    size = stream.size_bytes or 0
    if stream.read(len(_PARQUET)) != _PARQUET:
        raise FormatError("it is not a Parquet file")
    stream.drain()
    tail = stream.read_at(max(size - _TAIL, 0), min(_TAIL, size))
    footer_bytes = int.from_bytes(tail[:4], "little")
    if tail[4:] != _PARQUET or footer_bytes > size - _TAIL - len(_PARQUET):
        raise FormatError("it is not a Parquet file, or its end is missing")
    start = size - _TAIL - footer_bytes
    return _Thrift(stream.read_at(start, min(footer_bytes, _MAX_FOOTER_BYTES))).find_row_count()


class _Thrift:
    """A struct, read from its beginning; an IndexError is its end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def find_row_count(self) -> int:
        for number, kind in self._fields():
            if number == _NUM_ROWS and kind in _NUMBERS:
                folded = self._varint()
                count = (folded >> 1) ^ -(folded & 1)
                if not 0 <= count <= _MAX_COUNT:
                    raise FormatError(f"it claims {count} rows")
                return count
            self._skip(kind, 0)
        raise FormatError("it is not a Parquet file: its footer has no number of rows")

    def _fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of each field; the caller passes over its value before the next."""
        number = 0
        while kind := (head := self._byte()) & 15:
            delta = head >> 4
            number = number + delta if delta else self._varint() >> 1
            yield number, kind

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise FormatError("its footer is nested too deep")
        if kind in _NUMBERS:
            self._varint()
        elif kind == _BYTE:
            self._at += 1
        elif kind == _DOUBLE:
            self._at += 8
        elif kind == _BINARY:
            size_bytes = self._varint()  # moves on itself
            self._at += size_bytes
        elif kind in _LISTS:
            self._skip_list(depth)
        elif kind == _STRUCT:
            for _, inner in self._fields():
                self._skip(inner, depth + 1)
        elif kind not in _FLAGS:  # whose type is their value
            raise FormatError("its footer is damaged")

    def _skip_list(self, depth: int) -> None:
        head = self._byte()
        count, kind = head >> 4, head & 15
        if count == 15:  # noqa: PLR2004  four bits: the count follows
            count = self._varint()
        if count > len(self._data) - self._at:  # every item has a byte at least
            raise FormatError("its footer is damaged")
        if kind in _FLAGS:
            self._at += count  # in a list, they have a value of their own
            return
        for _ in range(count):
            self._skip(kind, depth + 1)

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:  # noqa: PLR2004  no more bytes follow
                return value
        raise FormatError("its footer is damaged")


def count_arrow_rows(stream: ShardBytes) -> int:
    """Return how many rows the record batches of an Arrow file or stream have."""
    head = stream.read(4)
    is_file = head == _ARROW[:4]
    if is_file:
        if stream.read(4) != _ARROW[4:]:
            raise FormatError("it is not an Arrow file")
        head = stream.read(4)
    rows, is_first = 0, True
    for kind, length in _read_messages(stream, head, may_end=not is_file):
        if is_first and kind != _SCHEMA:
            raise FormatError("it is not an Arrow file: it has no schema")
        is_first = False
        rows += length
    if is_first or rows > _MAX_COUNT:
        raise FormatError("it is not an Arrow file")
    if is_file:
        last = b""
        for piece in stream.pieces():
            last = (last + piece[-len(_ARROW_END) :])[-len(_ARROW_END) :]
        if last != _ARROW_END:
            raise FormatError("it ends too early")
    return rows


def _read_messages(stream: ShardBytes, head: bytes, *, may_end: bool) -> Iterator[tuple[int, int]]:
    """Yield kind and rows of each message; a stream may leave out its end."""
    while True:
        if head == _CONTINUES:  # before version 0.15 nothing stood before the length
            head = stream.read(4)
        size_bytes = int.from_bytes(head, "little", signed=True)
        if not size_bytes:
            return
        kind, length, body_bytes = _parse_message(stream.read(size_bytes))
        yield kind, length
        stream.skip(body_bytes)
        if may_end and stream.at_end():
            return
        head = stream.read(4)


def _parse_message(data: bytes) -> tuple[int, int, int]:
    """Return the kind of a message, the rows that it adds, and the length of its body."""
    message = _Table(data, _read(data, "<I", 0))
    kind = message.scalar(_HEADER_TYPE, "<B")
    length = message.table(_HEADER).scalar(_LENGTH, "<q") if kind == _RECORD_BATCH else 0
    body_bytes = message.scalar(_BODY_LENGTH, "<q")
    if length < 0 or body_bytes < 0:
        raise FormatError("it has a batch of negative length")
    return kind, length, body_bytes


class _Table:
    """A table of a FlatBuffer: its vtable says where each field is, from the table on, or 0."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._vtable = at - _read(data, "<i", at)
        self._vtable_bytes = _read(data, "<H", self._vtable)

    def scalar(self, field: int, code: str) -> int:
        """Return a number, or 0, the default, if it is left out."""
        offset = self._find(field)
        return _read(self._data, code, self._at + offset) if offset else 0

    def table(self, field: int) -> _Table:
        offset = self._find(field)
        if not offset:
            raise FormatError("it has a message without content")
        at = self._at + offset
        return _Table(self._data, at + _read(self._data, "<I", at))

    def _find(self, field: int) -> int:
        entry = 4 + 2 * field
        is_there = entry + 2 <= self._vtable_bytes
        return _read(self._data, "<H", self._vtable + entry) if is_there else 0


def _read(data: bytes, code: str, at: int) -> int:
    if not 0 <= at <= len(data) - struct.calcsize(code):
        raise FormatError("it has a damaged message")
    value: int = struct.unpack_from(code, data, at)[0]
    return value

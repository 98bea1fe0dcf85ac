"""Arrow IPC, as a stream or a file, which is a stream with a frame around it.

A stream is a run of messages: FF FF FF FF, the length of the metadata (int32), the metadata, which is a
FlatBuffer ``Message``, and a body of ``bodyLength`` bytes; a length of 0 ends it
(https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format). The rows are the
lengths of all record batches.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from mvc.errors import FormatError

if TYPE_CHECKING:
    from mvc.shards.records.stream import Stream

_MAGIC = b"ARROW1\0\0"
_END = _MAGIC.rstrip(b"\0")
_CONTINUES = b"\xff\xff\xff\xff"
_SCHEMA, _RECORD_BATCH = 1, 3
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3  # fields of Message
_LENGTH = 0  # field of RecordBatch
_MAX_COUNT = 2**63 - 1


def count_rows(stream: Stream) -> int:
    """Return how many rows the record batches of an Arrow file or stream have."""
    head = stream.read(4)
    is_file = head == _MAGIC[:4]
    if is_file:
        if stream.read(4) != _MAGIC[4:]:
            raise FormatError("it is not an Arrow file")
        head = stream.read(4)
    rows, is_first = 0, True
    while True:
        metadata = _read_metadata(stream, head)
        if metadata is None:
            break
        kind, length, body_bytes = _parse_message(metadata)
        if is_first and kind != _SCHEMA:
            raise FormatError("it is not an Arrow file: it has no schema")
        is_first = False
        rows += length
        stream.skip(body_bytes)
        if not is_file and stream.at_end():  # a stream may leave out its end
            break
        head = stream.read(4)
    if is_file and _read_last(stream, len(_END)) != _END:
        raise FormatError("it ends too early")
    if is_first or rows > _MAX_COUNT:
        raise FormatError("it is not an Arrow file")
    return rows


def _read_last(stream: Stream, size_bytes: int) -> bytes:
    """Pass over all that is left, and return its last bytes."""
    last = b""
    for piece in stream.pieces():
        last = (last + piece[-size_bytes:])[-size_bytes:]
    return last


def _read_metadata(stream: Stream, head: bytes) -> bytes | None:
    """Return the next metadata, or None at the end; before version 0.15 nothing stood before its length."""
    if head == _CONTINUES:
        head = stream.read(4)
    size = int.from_bytes(head, "little", signed=True)
    return stream.read(size) if size else None


def _parse_message(data: bytes) -> tuple[int, int, int]:
    """Return the kind of a message, the rows that it adds, and the length of its body."""
    message = _Table(data, _read(data, "<I", 0))
    kind = message.scalar(_HEADER_TYPE, "<B")
    length = 0
    if kind == _RECORD_BATCH:
        length = message.table(_HEADER).scalar(_LENGTH, "<q")
    body_bytes = message.scalar(_BODY_LENGTH, "<q")
    if length < 0 or body_bytes < 0:
        raise FormatError("it has a batch of negative length")
    return kind, length, body_bytes


class _Table:
    """A table of a FlatBuffer: its vtable says where each field is, from the table on, or 0."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - _read(data, "<i", at)

    def scalar(self, field: int, code: str) -> int:
        """Return a number, or 0, the default, if it is left out."""
        place = self._find(field)
        return _read(self._data, code, self._at + place) if place else 0

    def table(self, field: int) -> _Table:
        """Return a table that is a field of this one."""
        place = self._find(field)
        if not place:
            raise FormatError("it has a message without content")
        at = self._at + place
        return _Table(self._data, at + _read(self._data, "<I", at))

    def _find(self, field: int) -> int:
        here = 4 + 2 * field
        size = _read(self._data, "<H", self._fields)
        return _read(self._data, "<H", self._fields + here) if here + 2 <= size else 0


def _read(data: bytes, code: str, at: int) -> int:
    if not 0 <= at <= len(data) - struct.calcsize(code):
        raise FormatError("it has a damaged message")
    value: int = struct.unpack_from(code, data, at)[0]
    return value

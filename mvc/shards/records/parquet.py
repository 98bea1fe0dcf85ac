"""Parquet: ``num_rows`` of the footer, which is a struct of Thrift's compact protocol.

A field is a byte (delta of the field's number, type) and its value; numbers are zigzag varints; a struct
ends with a zero byte (https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md).
``num_rows`` is field 3 of ``FileMetaData``, after the version and the schema, so most of a footer is
not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.errors import FormatError

if TYPE_CHECKING:
    from mvc.shards.records.stream import Stream

_MAGIC = b"PAR1"
_TAIL = 8
_MAX_FOOTER_BYTES = 8 << 20  # that are looked at
_NUM_ROWS = 3
_MAX_DEPTH = 16
_MAX_COUNT = 2**63 - 1
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(
    13
)


def count_rows(stream: Stream) -> int:
    """Return how many rows a Parquet file has."""
    size = stream.size_bytes or 0
    if stream.read(len(_MAGIC)) != _MAGIC:
        raise FormatError("it is not a Parquet file")
    stream.drain()
    tail = stream.read_at(max(size - _TAIL, 0), min(_TAIL, size))
    footer_bytes = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or footer_bytes > size - _TAIL - len(_MAGIC):
        raise FormatError("it is not a Parquet file, or its end is missing")
    data = stream.read_at(size - _TAIL - footer_bytes, min(footer_bytes, _MAX_FOOTER_BYTES))
    return _Struct(data).find_number(_NUM_ROWS)


class _Struct:
    """A struct, read from its beginning; an IndexError is its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def find_number(self, wanted: int) -> int:
        """Return a whole number that is a field of the struct."""
        number = 0
        while kind := self._next_field(number):
            number = kind[0]
            if number == wanted and kind[1] == _I64:
                value = self._varint()
                return self._check_count((value >> 1) ^ -(value & 1))
            self._skip(kind[1], 0)
        raise FormatError("it is not a Parquet file: its footer has no number of rows")

    def _check_count(self, count: int) -> int:
        if not 0 <= count <= _MAX_COUNT:
            raise FormatError(f"it claims {count} rows")
        return count

    def _next_field(self, previous: int) -> tuple[int, int] | None:
        head = self._byte()
        kind, delta = head & 15, head >> 4
        if kind == _STOP:
            return None
        number = previous + delta if delta else self._varint() >> 1
        return number, kind

    def _skip(self, kind: int, depth: int) -> None:
        """Pass over a value of a type."""
        if depth > _MAX_DEPTH:
            raise FormatError("its footer is nested too deep")
        if kind in (_TRUE, _FALSE):
            return
        if kind == _BYTE:
            self._at += 1
        elif kind in (_I16, _I32, _I64):
            self._varint()
        elif kind == _DOUBLE:
            self._at += 8
        elif kind == _BINARY:
            size_bytes = self._varint()  # moves on itself
            self._at += size_bytes
        elif kind in (_LIST, _SET):
            self._skip_list(depth)
        elif kind == _STRUCT:
            number = 0
            while field := self._next_field(number):
                number = field[0]
                self._skip(field[1], depth + 1)
        else:  # no footer has a map
            raise FormatError("its footer is damaged")

    def _skip_list(self, depth: int) -> None:
        head = self._byte()
        count, kind = head >> 4, head & 15
        if count == 15:  # noqa: PLR2004  four bits: the count follows
            count = self._varint()
        if count > len(self._data) - self._at:  # every item has a byte at least
            raise FormatError("its footer is damaged")
        for _ in range(count):
            if kind in (_TRUE, _FALSE):
                self._at += 1  # in a list, they have a value of their own
            else:
                self._skip(kind, depth + 1)

    def _byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        return value

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:  # noqa: PLR2004  no more bytes follow
                return value
        raise FormatError("its footer is damaged")

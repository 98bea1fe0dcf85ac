"""The index of a Git pack, version 1 or 2: which objects the pack has, and where they begin."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from mvc import fs
from mvc.history.git_pack import FAR_OFFSET, INDEX_MAGIC
from mvc.ids import GitId

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_INDEX_BYTES = 1 << 30
_TOTALS = struct.Struct(">256L")
_NAME_BYTES = 20
_OLD_ROW_BYTES = 24  # version 1 keeps an offset of four bytes before each name
_ROW_BYTES = 28  # of version 2, in all its tables: name, CRC-32, offset
_CHECKSUMS_BYTES = 40


class PackIndex:
    """An index in memory; any damage that shows is a ValueError."""

    def __init__(self, data: bytes) -> None:
        """Take the bytes of an index file; its checksum is not looked at."""
        if not _TOTALS.size + _CHECKSUMS_BYTES <= len(data) <= MAX_INDEX_BYTES:
            raise ValueError(f"{len(data):,} bytes are not an index")
        self._data = data
        self._is_old = not data.startswith(INDEX_MAGIC)
        start = 0 if self._is_old else len(INDEX_MAGIC)
        self._totals = _TOTALS.unpack_from(data, start)
        self._names = start + _TOTALS.size
        self._row_bytes = _OLD_ROW_BYTES if self._is_old else _NAME_BYTES
        self._count = self._totals[-1]
        rows_bytes = self._count * (_OLD_ROW_BYTES if self._is_old else _ROW_BYTES)
        self._far = self._names + rows_bytes
        self._far_count, rest = divmod(len(data) - _CHECKSUMS_BYTES - self._far, 8)
        if self._far_count < 0 or rest or (self._is_old and self._far_count):
            raise ValueError("its length is not that of its objects")
        if sorted(self._totals) != list(self._totals):
            raise ValueError("its counts go down")

    @classmethod
    def read(cls, path: Path) -> PackIndex:
        """Read an index file."""
        with fs.open_file(path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            return cls(file.read(min(MAX_INDEX_BYTES, size_bytes) + 1))

    def find(self, name: bytes) -> int | None:
        """Return where an object begins in the pack, or None if the pack lacks it."""
        start, rows = self._bucket(name[0])
        at = rows.find(name)
        while at >= 0:
            number, inside = divmod(at, self._row_bytes)
            if inside == self._row_bytes - _NAME_BYTES:
                return self._offset(start + number)
            at = rows.find(name, at + 1)
        return None

    def __iter__(self) -> Iterator[GitId]:
        """Yield the ids of all objects, sorted."""
        for first in range(256):
            yield from self.find_prefix(f"{first:02x}")

    def find_prefix(self, prefix: str) -> Iterator[GitId]:
        """Yield the ids that begin with these hex digits, two at least."""
        _, rows = self._bucket(int(prefix[:2], 16))
        for end in range(self._row_bytes, len(rows) + 1, self._row_bytes):
            object_id = rows[end - _NAME_BYTES : end].hex()
            if object_id.startswith(prefix):
                yield GitId(object_id)

    def _bucket(self, first: int) -> tuple[int, bytes]:
        """Return the rows of all names that begin with a byte, and the number of the first row."""
        start, end = self._totals[first - 1] if first else 0, self._totals[first]
        at = self._names
        return start, self._data[at + start * self._row_bytes : at + end * self._row_bytes]

    def _offset(self, number: int) -> int:
        if self._is_old:
            at = self._names + number * _OLD_ROW_BYTES
        else:
            at = self._names + self._count * (_NAME_BYTES + 4) + number * 4
        offset = int.from_bytes(self._data[at : at + 4], "big")
        if self._is_old or offset < FAR_OFFSET:
            return offset
        place = offset - FAR_OFFSET
        if place >= self._far_count:
            raise ValueError("it points beyond its far offsets")
        return int.from_bytes(self._data[self._far + place * 8 :][:8], "big")

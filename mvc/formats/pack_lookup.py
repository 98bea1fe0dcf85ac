"""One column of a pack index (docs/format.md, section 5) without NumPy: what single chunks take."""

from __future__ import annotations

import struct
from bisect import bisect_left

from blake3 import blake3

from mvc.errors import FormatError
from mvc.ids import ID_BYTES, ChunkId, PackId

FRONT = struct.Struct("<8sII32sQQ")
MAGIC = b"mvcidx\0\0"
PLAIN_VERSION, REFERRING_VERSION = 1, 2
_OFFSET_BYTES = 8
_SIZE = struct.Struct("<I")


class IndexColumns:
    """The ids and stored sizes in the bytes of an index; its other rules are not checked."""

    def __init__(self, data: bytes, pack: PackId, pack_size_bytes: int) -> None:
        """Take the index of a pack; FormatError if it is damaged or that of another one."""
        if len(data) < FRONT.size or blake3(data[:-ID_BYTES]).digest() != data[-ID_BYTES:]:
            raise FormatError("pack index is damaged: it does not match its own hash")
        *front, count = FRONT.unpack_from(data)
        self._count = int(count)
        versions = (PLAIN_VERSION, REFERRING_VERSION)
        known = [[MAGIC, version, 0, bytes.fromhex(pack), pack_size_bytes] for version in versions]
        self._sizes_at = FRONT.size + self._count * (ID_BYTES + _OFFSET_BYTES)
        if front not in known or len(data) < self._sizes_at + self._count * _SIZE.size:
            raise FormatError(f"pack index is not that of pack {pack}")
        self._data = data

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> bytes:
        start = FRONT.size + row * ID_BYTES
        return self._data[start : start + ID_BYTES]

    def find_stored_size(self, chunk: ChunkId) -> int | None:
        """Return what a chunk takes in the pack, in bytes, or None if it is not there."""
        row = bisect_left(self, chunk)
        if row == self._count or self[row] != chunk:
            return None
        size_bytes: int
        (size_bytes,) = _SIZE.unpack_from(self._data, self._sizes_at + row * _SIZE.size)
        return size_bytes

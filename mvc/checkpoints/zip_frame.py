"""What a zip archive says of the tensors in it: a checksum of every entry, in two places.

A merge puts other tensors of the same lengths into an archive. All that follows from their bytes
is written again here: checksums, and the fingerprint that ``torch.save`` adds.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from mvc.checkpoints.zip_directory import ZipEntry, parse_zip_directory
from mvc.errors import FormatError
from mvc.sources import ByteSource, read_bytes

if TYPE_CHECKING:
    from mvc.formats.layout import Segment

_POLYNOMIAL = 0xEDB88320  # of CRC-32; the highest bit is the coefficient of x**0
_ONE, _X = 1 << 31, 1 << 30
_CENTRAL_CRC, _LOCAL_CRC, _LOCAL_FLAGS = 16, 14, 6  # bytes from the start of a header
_FLAG_CRC_FOLLOWS = 0x8
_DESCRIPTOR_MAGIC = b"PK\x07\x08"
_FINGERPRINT = "/.data/serialization_id"
_DIGITS = 20


class GapBytes(ByteSource):
    """A file whose gaps are there, and may be written, while its tensors read as zeros."""

    def __init__(self, gaps: Sequence[tuple[int, int]], data: bytearray, size_bytes: int) -> None:
        self.data = data  # the gap stream
        self._gaps, self._size_bytes = gaps, size_bytes
        self._starts = [start for start, _ in gaps]
        self._places = [0]
        for _, size in gaps:
            self._places.append(self._places[-1] + size)

    @property
    def size_bytes(self) -> int:
        """Length of the file."""
        return self._size_bytes

    def copy(self) -> GapBytes:
        """Return a file that is written apart from this one."""
        return GapBytes(self._gaps, bytearray(self.data), self._size_bytes)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer from that offset of the file."""
        buffer[:] = bytes(len(buffer))
        for place, inside, size in self._find(offset, len(buffer)):
            buffer[inside : inside + size] = self.data[place : place + size]

    def write(self, offset: int, data: bytes) -> None:
        """Replace bytes of gaps."""
        for place, inside, size in self._find(offset, len(data)):
            self.data[place : place + size] = data[inside : inside + size]

    def _find(self, offset: int, size_bytes: int) -> Iterator[tuple[int, int, int]]:
        """Yield (place in the stream, bytes after ``offset``, length) of what gaps have of a range."""
        for number in range(max(bisect_right(self._starts, offset) - 1, 0), len(self._gaps)):
            start, size = self._gaps[number]
            if start >= offset + size_bytes:
                return
            low, high = max(start, offset), min(start + size, offset + size_bytes)
            if low < high:
                yield self._places[number] + low - start, low - offset, high - low


class ZipFrame:
    """A zip archive without its tensors."""

    # (entry, (its length, its checksum if it holds no tensor)): equal for archives that differ in nothing but the
    # values of their tensors, and what follows from these
    version: tuple[tuple[str, tuple[int, int | None]], ...]

    def __init__(self, file: GapBytes, segments: Sequence[Segment]) -> None:
        """Read it; FormatError if a segment is not the end of an entry of its own."""
        self._file, self._segments = file, segments
        self._entries = parse_zip_directory(file)
        starts = [entry.data_start for entry in self._entries]
        self._carriers = [bisect_right(starts, segment.start) - 1 for segment in segments]
        for number, segment in zip(self._carriers, segments, strict=True):
            if number < 0 or self._entries[number].end != segment.end:
                raise FormatError(
                    f"tensor {segment.tensors[0].name!r} is not at the end of its zip entry"
                )
            self._places_of(self._entries[number])
        own = set(self._carriers)
        if len(own) < len(segments):
            raise FormatError("two tensors are in one zip entry")
        self._fingerprint = self._find_fingerprint()
        self.version = tuple(
            (segment.name, (segment.size_bytes, None if number in own else segment.crc32))
            for number, segment in enumerate(self._entries)
            if segment is not self._fingerprint
        )

    def crc32s(self) -> list[int]:
        """Return the CRC-32 of the bytes of every segment."""
        return [
            self._entries[number].crc32 ^ join_crc32(before, 0, segment.size_bytes)
            for number, segment, before in self._carried()
        ]

    def renew(self, crc32s: Sequence[int]) -> bytes:
        """Return the gap stream of the same archive around segments with these CRC-32."""
        file = self._file.copy()
        all_crc32s = [segment.crc32 for segment in self._entries]
        for (number, segment, before), crc32 in zip(self._carried(), crc32s, strict=True):
            all_crc32s[number] = join_crc32(before, crc32, segment.size_bytes)
        if self._fingerprint is not None:
            start = self._fingerprint.data_start
            text = read_bytes(file, start, _DIGITS) + _combine(all_crc32s[:-1])
            file.write(start, text)
            all_crc32s[-1] = zlib.crc32(text)
        for number, entry in enumerate(self._entries):
            if all_crc32s[number] != entry.crc32:
                for place in self._places_of(entry):
                    file.write(place, struct.pack("<I", all_crc32s[number]))
        return bytes(file.data)

    def _carried(self) -> Iterator[tuple[int, Segment, int]]:
        """Yield (number of the entry, segment, CRC-32 of what the entry has before it)."""
        for number, segment in zip(self._carriers, self._segments, strict=True):
            start = self._entries[number].data_start
            yield number, segment, zlib.crc32(read_bytes(self._file, start, segment.start - start))

    def _places_of(self, entry: ZipEntry) -> list[int]:
        """Return where the checksum of an entry is; FormatError if they do not agree."""
        flags = read_bytes(self._file, entry.local_start + _LOCAL_FLAGS, 1)[0]
        after = entry.end
        if read_bytes(self._file, after, len(_DESCRIPTOR_MAGIC)) == _DESCRIPTOR_MAGIC:
            after += len(_DESCRIPTOR_MAGIC)
        local = after if flags & _FLAG_CRC_FOLLOWS else entry.local_start + _LOCAL_CRC
        places = [entry.central_start + _CENTRAL_CRC, local]
        if any(
            read_bytes(self._file, place, 4) != struct.pack("<I", entry.crc32) for place in places
        ):
            raise FormatError(f"zip entry {entry.name[:80]!r} has two checksums")
        return places

    def _find_fingerprint(self) -> ZipEntry | None:
        """Return the entry where torch hashes the names of all others, then their checksums.

        20 digits each (``writeSerializationId`` in ``caffe2/serialize/inline_container.cc``). None if
        it says anything else, and is kept as it is.
        """
        last = self._entries[-1] if self._entries else None
        if last is None or not last.name.endswith(_FINGERPRINT) or last.size_bytes != 2 * _DIGITS:
            return None
        text = read_bytes(self._file, last.data_start, last.size_bytes)
        is_known = text[_DIGITS:] == _combine([entry.crc32 for entry in self._entries[:-1]])
        return last if is_known and self._places_of(last) else None


def join_crc32(first: int, second: int, size_bytes: int) -> int:
    """Return the CRC-32 of two runs of bytes, given that of each and the length of the second."""
    return _multiply(_shift(size_bytes), first) ^ second if first else second


@lru_cache
def _shift(size_bytes: int) -> int:
    """Return x to the number of bits modulo the polynomial: what that many zeros multiply with."""
    power, square, bits = _ONE, _X, 8 * size_bytes
    while bits:
        power = _multiply(power, square) if bits & 1 else power
        square, bits = _multiply(square, square), bits >> 1
    return power


def _multiply(factor: int, other: int) -> int:
    product = 0
    while factor:
        product ^= other if factor & _ONE else 0
        factor = factor << 1 & 0xFFFFFFFF
        other = other >> 1 ^ (_POLYNOMIAL if other & 1 else 0)
    return product


def _combine(crc32s: Sequence[int]) -> bytes:
    """Return torch's hash of checksums, as ``hash_combine`` of C++ makes it."""
    combined = 0
    for crc32 in crc32s:
        combined = (combined ^ (crc32 + 0x9E3779B9 + (combined << 6) + (combined >> 2))) & (
            2**64 - 1
        )
    return b"%020d" % combined

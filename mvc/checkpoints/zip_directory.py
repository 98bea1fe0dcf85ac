"""The directory of a zip file: where the bytes of each entry are.

Zip says the same things twice (central directory and local headers) and is found from its end, so
two readers may see different files in it. Here nothing is guessed: the end record closes the file,
the central directory ends where the end records begin, every local header agrees with its central
one, names are unique and no two entries share a byte. Anything else is refused. Nothing is ever
decompressed: an entry that is not simply stored has no bytes of its own to name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from mvc.checkpoints.names import ZIP_MAGIC
from mvc.errors import FormatError
from mvc.sources import ByteSource, read_bytes

MAX_ENTRIES = 600_000
"""Entries of one archive: one per tensor (``limits.MAX_TENSORS``) and some more."""
MAX_DIRECTORY_BYTES = 128 * 2**20
"""Central directory held in memory: 600,000 entries of 220 bytes."""
_END = struct.Struct("<4sHHHHIIH")
_END_MAGIC = b"PK\x05\x06"
_MAX_COMMENT_BYTES = 0xFFFF
_END64_LOCATOR = struct.Struct("<4sIQI")
_END64_LOCATOR_MAGIC = b"PK\x06\x07"
_END64 = struct.Struct("<4sQHHIIQQQQ")
_END64_MAGIC = b"PK\x06\x06"
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_CENTRAL_MAGIC = b"PK\x01\x02"
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_FULL16 = 0xFFFF
_FULL32 = 0xFFFFFFFF
_FLAG_ENCRYPTED = 0x1
_FLAG_SIZES_FOLLOW = 0x8
_FLAG_UTF8 = 0x800
_METHOD_STORED = 0
_EXTRA_ZIP64 = 1


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """The bytes of an entry; ``is_stored``: they are neither compressed nor encrypted.

    ``crc32`` is of the plain bytes; ``local_start`` and ``central_start`` are where its two headers are.
    """

    name: str
    data_start: int
    size_bytes: int
    is_stored: bool
    crc32: int
    local_start: int
    central_start: int

    @property
    def end(self) -> int:
        """First byte after the entry."""
        return self.data_start + self.size_bytes


@dataclass(frozen=True, slots=True)
class _Directory:
    start: int
    size_bytes: int
    entries: int


@dataclass(frozen=True, slots=True)
class _CentralEntry:
    raw_name: bytes
    place: int
    flags: int
    method: int
    crc32: int
    compressed_bytes: int
    plain_bytes: int
    local_start: int


def parse_zip_directory(source: ByteSource) -> tuple[ZipEntry, ...]:
    """Return the entries of a zip file in file order."""
    directory = _find_directory(source)
    raw = read_bytes(source, directory.start, directory.size_bytes)
    centrals = sorted(_parse_central(raw, directory.entries), key=lambda item: item.local_start)
    entries = []
    names: set[str] = set()
    position = 0
    for central in centrals:
        entry = _check_local(source, central, directory.start)
        if central.local_start < position:
            raise FormatError(f"zip entry {entry.name[:80]!r} overlaps the one before it")
        if entry.name in names:
            raise FormatError(f"zip archive has the entry {entry.name[:80]!r} twice")
        names.add(entry.name)
        entries.append(entry)
        position = entry.end
    if position > directory.start:
        raise FormatError("the last zip entry overlaps the central directory")
    return tuple(entries)


def ends_like_zip(source: ByteSource) -> bool:
    """Return whether the file ends with the end record of a zip file without comment."""
    if source.size_bytes < _END.size:
        return False
    return read_bytes(source, source.size_bytes - _END.size, 4) == _END_MAGIC


def find_archive_start(source: ByteSource) -> int:
    """Return where an archive without comment begins, which a file of any kind ends with."""
    end_start = source.size_bytes - _END.size
    if not ends_like_zip(source):
        raise FormatError("file does not end with a zip archive")
    raw = read_bytes(source, end_start, _END.size)
    _, _, _, _, _, size_bytes, offset, _ = _END.unpack(raw)
    start: int = end_start - size_bytes - offset
    locator_start = end_start - _END64_LOCATOR.size
    if locator_start >= _END64.size:
        raw = read_bytes(source, locator_start, _END64_LOCATOR.size)
        magic, _, offset, _ = _END64_LOCATOR.unpack(raw)
        if magic == _END64_LOCATOR_MAGIC:
            start = locator_start - _END64.size - offset
    if not 0 <= start < end_start:
        raise FormatError("zip archive begins before the file")
    return start


def _find_directory(source: ByteSource) -> _Directory:
    end_start = _find_end(source)
    _, disk, first_disk, here, entries, size_bytes, start, _ = _END.unpack(
        read_bytes(source, end_start, _END.size)
    )
    directory = _Directory(start, size_bytes, entries)
    directory_end = end_start
    locator_start = end_start - _END64_LOCATOR.size
    if locator_start >= 0 and read_bytes(source, locator_start, 4) == _END64_LOCATOR_MAGIC:
        directory, directory_end = _read_end64(source, locator_start, directory)
    elif (disk, first_disk, here) != (0, 0, entries):
        raise FormatError("zip archive is one part of several")
    if directory.start + directory.size_bytes != directory_end:
        raise FormatError("zip central directory does not end where its end record begins")
    if directory.size_bytes > MAX_DIRECTORY_BYTES or directory.entries > MAX_ENTRIES:
        raise FormatError(
            f"zip central directory has {directory.entries:,} entries in "
            f"{directory.size_bytes:,} bytes, past the limit"
        )
    return directory


def _find_end(source: ByteSource) -> int:
    """Return where the end record begins; exactly one must fit the end of the file."""
    tail_bytes = min(source.size_bytes, _END.size + _MAX_COMMENT_BYTES)
    tail_start = source.size_bytes - tail_bytes
    tail = read_bytes(source, tail_start, tail_bytes)
    places = []
    position = tail.find(_END_MAGIC)
    while 0 <= position <= tail_bytes - _END.size:
        comment_bytes = int.from_bytes(tail[position + 20 : position + 22], "little")
        if position + _END.size + comment_bytes == tail_bytes:
            places.append(tail_start + position)
        position = tail.find(_END_MAGIC, position + 1)
    if not places:
        raise FormatError("zip archive has no end record: it is cut off or damaged")
    if len(places) > 1:
        raise FormatError("zip archive has several end records")
    return places[0]


def _read_end64(
    source: ByteSource, locator_start: int, directory: _Directory
) -> tuple[_Directory, int]:
    _, disk, end64_start, disks = _END64_LOCATOR.unpack(
        read_bytes(source, locator_start, _END64_LOCATOR.size)
    )
    magic, record_bytes, _, _, disk64, first_disk, here, entries, size_bytes, start = _END64.unpack(
        read_bytes(source, end64_start, _END64.size)
    )
    # The record's length does not count its first 12 bytes, magic and length.
    if magic != _END64_MAGIC or end64_start + 12 + record_bytes != locator_start:
        raise FormatError("zip64 end record is damaged")
    if (disk, disk64, first_disk, here) != (0, 0, 0, entries) or disks > 1:
        raise FormatError("zip archive is one part of several")
    for narrow, wide, full in (
        (directory.start, start, _FULL32),
        (directory.size_bytes, size_bytes, _FULL32),
        (directory.entries, entries, _FULL16),
    ):
        if narrow not in (wide, full):
            raise FormatError("zip end records contradict each other")
    return _Directory(start, size_bytes, entries), end64_start


def _parse_central(raw: bytes, expected_entries: int) -> Iterator[_CentralEntry]:
    position = 0
    entries = 0
    while position < len(raw) and entries < expected_entries:
        if len(raw) - position < _CENTRAL.size:
            raise FormatError("zip central directory ends inside an entry")
        (magic, _, _, flags, method, _, _, crc32, compressed, plain, name_bytes, extra_bytes,
         comment_bytes, disk, _, _, local_start) = _CENTRAL.unpack_from(raw, position)  # fmt: skip
        name_end = position + _CENTRAL.size + name_bytes
        extra_end = name_end + extra_bytes
        if magic != _CENTRAL_MAGIC or extra_end + comment_bytes > len(raw):
            raise FormatError("zip central directory is damaged")
        if disk not in (0, _FULL16):
            raise FormatError("zip archive is one part of several")
        plain, compressed, local_start = _widen(
            (plain, compressed, local_start), raw[name_end:extra_end]
        )
        raw_name = raw[name_end - name_bytes : name_end]
        yield _CentralEntry(
            raw_name, position, flags, method, crc32, compressed, plain, local_start
        )
        position = extra_end + comment_bytes
        entries += 1
    if position < len(raw) or entries != expected_entries:
        raise FormatError(
            f"zip central directory does not hold the {expected_entries:,} entries "
            "that its end record counts"
        )


def _widen(fields: tuple[int, ...], extra: bytes) -> tuple[int, ...]:
    """Replace 32-bit fields that are full by their 64-bit values from the zip64 extra field."""
    if _FULL32 not in fields:
        return fields
    wide = _find_extra(extra, _EXTRA_ZIP64)
    full = fields.count(_FULL32)
    if wide is None or len(wide) < 8 * full:
        raise FormatError("zip entry lacks its 64-bit sizes")
    values = iter(struct.unpack_from(f"<{full}Q", wide))
    return tuple(next(values) if field == _FULL32 else field for field in fields)


def _find_extra(extra: bytes, wanted: int) -> bytes | None:
    position = 0
    while position + 4 <= len(extra):
        kind, size_bytes = struct.unpack_from("<HH", extra, position)
        if kind == wanted:
            return extra[position + 4 : position + 4 + size_bytes]
        position += 4 + size_bytes
    return None


def _check_local(source: ByteSource, central: _CentralEntry, directory_start: int) -> ZipEntry:
    name = _decode_name(central)
    name_bytes = len(central.raw_name)
    header = read_bytes(source, central.local_start, _LOCAL.size + name_bytes)
    (magic, _, flags, method, _, _, _, compressed, plain, local_name_bytes,
     extra_bytes) = _LOCAL.unpack_from(header)  # fmt: skip
    extra_start = central.local_start + len(header)
    if (magic, method, local_name_bytes, header[_LOCAL.size :]) != (
        ZIP_MAGIC, central.method, name_bytes, central.raw_name,
    ):  # fmt: skip
        raise FormatError(f"local header of zip entry {name[:80]!r} is damaged")
    if not flags & _FLAG_SIZES_FOLLOW or plain or compressed:
        extra = (
            read_bytes(source, extra_start, extra_bytes) if _FULL32 in (plain, compressed) else b""
        )
        if _widen((plain, compressed), extra) != (central.plain_bytes, central.compressed_bytes):
            raise FormatError(f"headers of zip entry {name[:80]!r} disagree about its size")
    if central.method == _METHOD_STORED and central.plain_bytes != central.compressed_bytes:
        raise FormatError(f"stored zip entry {name[:80]!r} has two sizes")
    is_stored = central.method == _METHOD_STORED and not (flags | central.flags) & _FLAG_ENCRYPTED
    return ZipEntry(
        name, extra_start + extra_bytes, central.compressed_bytes, is_stored, central.crc32,
        central.local_start, directory_start + central.place,
    )  # fmt: skip


def _decode_name(central: _CentralEntry) -> str:
    try:
        return central.raw_name.decode("utf-8" if central.flags & _FLAG_UTF8 else "cp437")
    except UnicodeDecodeError:
        raise FormatError(f"zip entry {central.raw_name[:80]!r} has no readable name") from None

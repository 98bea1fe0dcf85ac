"""Git's pack files, version 2, with their indexes: many objects in two files and under four syncs.

Every object is written whole, none as a delta: manifests share little that deflating does not find.
Indexes of version 1 are read as well.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import UsageError
from mvc.history.object_formats import KINDS, LEVEL
from mvc.history.pack_reader import PACK_HEADER
from mvc.ids import GitId

if TYPE_CHECKING:
    from pathlib import Path

INDEX_MAGIC = b"\xfftOc\0\0\0\x02"
"""How an index of version 2 begins."""
FAR_OFFSET = 1 << 31
"""From here on, an index keeps offsets in a table of their own."""
KEEP_TEXT = b"mvc\n"
"""In the ``.keep`` of a pack whose writer is at work, or died there."""
NUMBERS = {kind: number for number, kind in KINDS.items()}
"""Kind → number of an object in a pack."""
MAX_INDEX_BYTES = 1 << 30
_TOTALS = struct.Struct(">256L")
_NAME_BYTES = 20
_OLD_ROW_BYTES = 24  # version 1 keeps an offset of four bytes before each name
_ROW_BYTES = 28  # of version 2, in all its tables: name, CRC-32, offset
_CHECKSUMS_BYTES = 40
_PACK_VERSION = 2
_WRITE_BYTES = 1 << 20

_Place = tuple[bytes, int, int]
"""An object in a pack: its id, the CRC-32 of its entry, and where that begins."""


def write_pack(folder: Path, count: int, objects: Iterable[tuple[GitId, str, bytes]]) -> Path:
    """Write ``count`` objects, (id, kind, content) of each, as one pack; return its path.

    ``folder`` is ``objects/pack``. The pack is durable, bytes and name, before the index that leads
    to it, and everything is when this returns: only then may a ref or the index name an object.
    A crash leaves a ``tmp_pack_…``, which stock Git knows as garbage, or a pack without an index.
    """
    fs.make_dirs(folder)
    places: list[_Place] = []
    with _new_file(folder) as file:
        digest = _write_hashed(file, _encode_entries(count, objects, places))
        if len({name for name, _, _ in places}) != count or len(places) != count:
            raise UsageError(f"a pack of {count:,} objects got {len(places):,}, or one twice")
        path = folder / f"pack-{digest.hex()}.pack"
        with _kept(path):
            file.publish(path, read_only=True)
            with _new_file(folder) as index:
                _write_hashed(index, _encode_index(places, digest))
                index.publish(path.with_suffix(".idx"), read_only=True)
    return path


@contextlib.contextmanager
def _kept(path: Path) -> Iterator[None]:
    """Have ``.keep`` beside a pack: a ``git gc`` that saw it without an index would remove it."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(FileExistsError):  # of a process that wants to keep it
            file = stack.enter_context(fs.DurableFile(path.parent, name=f"{path.stem}.keep"))
            file.write([KEEP_TEXT])
        yield


def _new_file(folder: Path) -> fs.DurableFile:
    return fs.DurableFile(folder, mode=0o444, name=f"tmp_pack_{os.urandom(6).hex()}")


def _write_hashed(file: fs.DurableFile, pieces: Iterable[bytes]) -> bytes:
    """Write pieces and, as Git ends its files, their SHA-1, which is returned."""
    digest = hashlib.sha1(usedforsecurity=False)
    waiting: list[bytes] = []
    waiting_bytes = 0
    for piece in pieces:
        digest.update(piece)
        waiting.append(piece)
        waiting_bytes += len(piece)
        if waiting_bytes >= _WRITE_BYTES:
            file.write(waiting)
            waiting, waiting_bytes = [], 0
    file.write([*waiting, digest.digest()])
    return digest.digest()


def _encode_entries(
    count: int, objects: Iterable[tuple[GitId, str, bytes]], places: list[_Place]
) -> Iterator[bytes]:
    """Yield the bytes of a pack up to its checksum, and note where each object is."""
    offset = PACK_HEADER.size
    yield PACK_HEADER.pack(b"PACK", _PACK_VERSION, count)
    for object_id, kind, data in objects:
        entry = _encode_entry_header(kind, len(data)) + zlib.compress(data, LEVEL)
        places.append((bytes.fromhex(object_id), zlib.crc32(entry), offset))
        offset += len(entry)
        yield entry


def _encode_entry_header(kind: str, size_bytes: int) -> bytes:
    """Return kind and length, seven bits a byte but for four in the first, the lowest first."""
    byte, rest = NUMBERS[kind] << 4 | size_bytes & 15, size_bytes >> 4
    header = bytearray()
    while rest:
        header.append(byte | 0x80)
        byte, rest = rest & 0x7F, rest >> 7
    return bytes([*header, byte])


def _encode_index(places: Sequence[_Place], pack_digest: bytes) -> Iterator[bytes]:
    """Yield the bytes of an index up to its checksum."""
    places = sorted(places)
    counts = Counter(name[0] for name, _, _ in places)
    far = [offset for _, _, offset in places if offset >= FAR_OFFSET]
    order = {offset: FAR_OFFSET | number for number, offset in enumerate(far)}
    yield INDEX_MAGIC
    yield struct.pack(">256L", *accumulate(counts[byte] for byte in range(256)))
    yield b"".join(name for name, _, _ in places)
    yield struct.pack(f">{len(places)}L", *(crc for _, crc, _ in places))
    yield struct.pack(f">{len(places)}L", *(order.get(offset, offset) for *_, offset in places))
    yield struct.pack(f">{len(far)}Q", *far)
    yield pack_digest


class GitPackIndex:
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
    def read(cls, path: Path) -> GitPackIndex:
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

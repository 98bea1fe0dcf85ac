"""Zip archives whose entries are stored and written in any order: where everything goes, before any byte.

As ``torch.save`` lays them out: data begin at multiples of 64, every end record is there in its
64-bit form as well.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ALIGNMENT = 64
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR = struct.Struct("<4sIQI")
_END = struct.Struct("<4sHHHHIIH")
_VERSION, _UTF8 = 45, 0x800
_EXTRA_ZIP64, _EXTRA_PADDING = 1, 0x4246  # "FB", as torch pads
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_EXTRA_HEADER = 4
_DATE = (1 << 5) + 1  # 1 January 1980, the first one


@dataclass(frozen=True, slots=True)
class ZipMember:
    """An entry to be: its name, its length, and where its header and its data begin."""

    name: bytes
    size_bytes: int
    local_start: int
    data_start: int


@dataclass(frozen=True, slots=True)
class ZipPlan:
    """An archive to be."""

    members: tuple[ZipMember, ...]

    @property
    def directory_start(self) -> int:
        """Where the central directory begins."""
        return self.members[-1].data_start + self.members[-1].size_bytes

    @property
    def size_bytes(self) -> int:
        """Length of the whole archive."""
        return self.directory_start + len(self.encode_directory([0] * len(self.members)))

    def encode_local(self, number: int, crc32: int) -> bytes:
        """Return the header of an entry, up to its data."""
        member = self.members[number]
        sizes = (member.size_bytes, member.size_bytes)
        fields, extra = _narrow(sizes)
        room = member.data_start - member.local_start - _LOCAL.size - len(member.name) - len(extra)
        extra += struct.pack("<HH", _EXTRA_PADDING, room - _EXTRA_HEADER)
        extra += b"Z" * (room - _EXTRA_HEADER)
        lengths = (len(member.name), len(extra))
        head = (b"PK\x03\x04", _VERSION, _UTF8, 0, 0, _DATE, crc32)
        return _LOCAL.pack(*head, *fields, *lengths) + member.name + extra

    def encode_directory(self, crc32s: Sequence[int]) -> bytes:
        """Return the central directory and all that ends the archive."""
        start = self.directory_start
        table = b"".join(
            _encode_central(one, crc32) for one, crc32 in zip(self.members, crc32s, strict=True)
        )
        end, count = start + len(table), len(self.members)
        narrow = min(count, _FULL16)
        return b"".join((
            table,
            _END64.pack(
                b"PK\x06\x06", _END64.size - 12, _VERSION, _VERSION, 0, 0, count, count,
                len(table), start,
            ),
            _LOCATOR.pack(b"PK\x06\x07", 0, end, 1),
            _END.pack(
                b"PK\x05\x06", 0, 0, narrow, narrow, min(len(table), _FULL32),
                min(start, _FULL32), 0,
            ),
        ))  # fmt: skip


def plan_zip(entries: Sequence[tuple[str, int]]) -> ZipPlan:
    """Return where everything of an archive goes, given name and length of each entry."""
    members: list[ZipMember] = []
    position = 0
    for text, size_bytes in entries:
        name = text.encode()
        _, extra = _narrow((size_bytes, size_bytes))
        least = position + _LOCAL.size + len(name) + len(extra) + _EXTRA_HEADER
        start = least + -least % ALIGNMENT
        members.append(ZipMember(name, size_bytes, position, start))
        position = start + size_bytes
    return ZipPlan(tuple(members))


def _encode_central(member: ZipMember, crc32: int) -> bytes:
    sizes = (member.size_bytes, member.size_bytes, member.local_start)
    (compressed, plain, start), extra = _narrow(sizes)
    head = (b"PK\x01\x02", _VERSION, _VERSION, _UTF8, 0, 0, _DATE, crc32, compressed, plain)
    lengths = (len(member.name), len(extra), 0)
    return _CENTRAL.pack(*head, *lengths, 0, 0, 0, start) + member.name + extra


def _narrow(values: Sequence[int]) -> tuple[list[int], bytes]:
    """Return what fits into 32 bits, and the extra field with what does not."""
    wide = [value for value in values if value >= _FULL32]
    extra = struct.pack(f"<HH{len(wide)}Q", _EXTRA_ZIP64, 8 * len(wide), *wide) if wide else b""
    return [min(value, _FULL32) for value in values], extra

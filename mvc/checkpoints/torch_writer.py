"""A file of ``torch.save`` to be: its pickle, and where the bytes of each tensor go.

``torch.load(weights_only=True)`` reads it. Nothing here needs torch, and no tensor is held. It is a
zip archive whose entries are stored and can be written in any order, planned before any byte: data
begin at multiples of 64, and every end record is there in its 64-bit form as well.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from mvc.checkpoints.torch_pickle.encode import Persistent, PickledCall, encode_pickle
from mvc.checkpoints.torch_pickle.values import Global
from mvc.dtypes import TORCH_NAMES, get_dtype, size_in_bytes
from mvc.errors import UnsupportedError

_STORAGES = {
    "BOOL": "Bool", "U8": "Byte", "I8": "Char", "I16": "Short", "I32": "Int", "I64": "Long",
    "F16": "Half", "BF16": "BFloat16", "F32": "Float", "F64": "Double",
    "C64": "ComplexFloat", "C128": "ComplexDouble",
}  # fmt: skip
"""Types that have a class of storages; those that came later are views of bytes."""
_BEFORE = ((".format_version", b"1"), (".storage_alignment", b"64"), ("byteorder", b"little"))
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
        table = b"".join(map(_encode_central, self.members, crc32s))
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


@dataclass(frozen=True, slots=True)
class TorchPlan:
    """A file to be: entries that are known, by number, and the first number of a tensor's."""

    zip: ZipPlan
    known: dict[int, bytes]
    first_tensor: int


def find_torch_name(dtype: str) -> str | None:
    """Return what torch calls an element type, or None if it has none that shows its values."""
    return TORCH_NAMES.get(dtype)


def refer(key: int, dtype: str, shape: tuple[int, ...]) -> PickledCall:
    """Return what a C-contiguous tensor that has a storage of its own is in a pickle."""
    name = find_torch_name(dtype)
    if name is None:
        raise UnsupportedError(f"torch has no type for {dtype}")
    storage = _STORAGES.get(dtype)
    strides = tuple(
        accumulate([1, *reversed(shape[1:])], lambda stride, dim: mul(stride, max(dim, 1)))
    )
    strides = strides[::-1] if shape else ()
    size_bytes = size_in_bytes(get_dtype(dtype), shape)
    elements = size_bytes if storage is None else size_bytes // get_dtype(dtype).block_bytes
    kind = Global("torch.storage.UntypedStorage" if storage is None else f"torch.{storage}Storage")
    place = Persistent(("storage", kind, str(key), "cpu", elements))
    rest = (place, 0, shape, strides, False, PickledCall("collections.OrderedDict"))
    if storage is None:
        return PickledCall("torch._utils._rebuild_tensor_v3", (*rest, Global(f"torch.{name}")))
    return PickledCall("torch._utils._rebuild_tensor_v2", rest)


def plan_torch(value: object, sizes: Sequence[int], folder: str = "archive") -> TorchPlan:
    """Return the file of a value that refers to tensors by their place in ``sizes``, their bytes."""
    before = [("data.pkl", encode_pickle(value)), *_BEFORE]
    after = ("version", b"3\n")
    entries = [(name, len(data)) for name, data in before]
    entries += [(f"data/{key}", size) for key, size in enumerate(sizes)]
    entries.append((after[0], len(after[1])))
    known = {number: data for number, (_, data) in enumerate(before)}
    known[len(entries) - 1] = after[1]
    plan = plan_zip([(f"{folder}/{name}", size) for name, size in entries])
    return TorchPlan(plan, known, len(before))

"""A file of ``torch.save`` to be: its pickle, and where the bytes of each tensor go.

``torch.load(weights_only=True)`` reads it. Nothing here needs torch, and no tensor is held.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING

from mvc.checkpoints.torch_pickle.encode import Persistent, PickledCall, encode_pickle
from mvc.checkpoints.torch_pickle.values import Global
from mvc.checkpoints.zip_writer import ZipPlan, plan_zip
from mvc.dtypes import TORCH_NAMES, get_dtype, size_in_bytes
from mvc.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

_STORAGES = {
    "BOOL": "Bool", "U8": "Byte", "I8": "Char", "I16": "Short", "I32": "Int", "I64": "Long",
    "F16": "Half", "BF16": "BFloat16", "F32": "Float", "F64": "Double",
    "C64": "ComplexFloat", "C128": "ComplexDouble",
}  # fmt: skip
"""Types that have a class of storages; those that came later are views of bytes."""
_BEFORE = ((".format_version", b"1"), (".storage_alignment", b"64"), ("byteorder", b"little"))


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
    strides = tuple(accumulate([1, *reversed(shape[1:])], lambda one, dim: mul(one, max(dim, 1))))
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

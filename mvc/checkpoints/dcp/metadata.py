"""What the ``.metadata`` of a DCP folder says: which box of which tensor is where in which file.

It is a pickle, run by the machine that can do nothing, and then only looked at. Classes are known by
their last name, because their modules moved between versions of PyTorch. All that a reader relies
on is checked here: boxes lie in their tensors, and every item belongs to an entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeGuard

from mvc.checkpoints.limits import check_limit
from mvc.checkpoints.torch_pickle.objects import TORCH_DTYPES, reduce_torch
from mvc.checkpoints.torch_pickle.unpickler import unpickle
from mvc.checkpoints.torch_pickle.values import Global, Opaque, Pairs
from mvc.dtypes import MAX_TENSOR_BYTES, count_elements
from mvc.errors import FormatError
from mvc.numbers.boxes import Box, is_inside, whole_box

MAX_METADATA_BYTES = 64 * 2**20
"""A box takes 140 bytes, and its entry in memory two kilobytes."""
MAX_STEPS = 64
"""Containers that lead to an entry."""
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class DcpItem:
    """One run of bytes of a file: a box of a tensor, or an object if ``box`` is None.

    ``transforms`` say what was done to the bytes, such as ``stream.zstd/1``.
    """

    key: str
    box: Box | None
    file: str
    start: int
    size_bytes: int
    transforms: tuple[str, ...] = ()

    @property
    def end(self) -> int:
        """First byte after it."""
        return self.start + self.size_bytes


@dataclass(frozen=True, slots=True)
class DcpTensor:
    """A tensor as a whole; its dtype is None if mvc has no name for it."""

    dtype: str | None
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class DcpMetadata:
    """A DCP folder."""

    # key of the flat state dict → its tensor, or None for an object
    entries: Mapping[str, DcpTensor | None]
    files: Mapping[str, tuple[DcpItem, ...]]  # name of a file → its items, ascending
    # key → the path in the nested state dict; a key that has none is its own
    paths: Mapping[str, Path]


def name_box(key: str, shape: tuple[int, ...], box: Box) -> str:
    """Return what a box of a tensor is called: ``weight[0:2,4:8]``, or as the tensor if it is all of it."""
    if box == whole_box(shape):
        return key
    ranges = zip(box.offsets, box.sizes, strict=True)
    return f"{key}[{','.join(f'{start}:{start + size}' for start, size in ranges)}]"


@lru_cache(maxsize=1)  # every file of a folder asks for the same
def parse_dcp_metadata(data: bytes) -> DcpMetadata:
    """Return what a ``.metadata`` says."""
    check_limit("DCP metadata has", len(data), "bytes", MAX_METADATA_BYTES)
    root = _fields(unpickle(data, reduce_torch, lambda _: None), "Metadata")
    entries = {
        _key(key): _parse_entry(_key(key), value)
        for key, value in _pairs(root.get("state_dict_metadata"), "entries").items_in_order()
    }
    return DcpMetadata(
        entries, _parse_files(root.get("storage_data"), entries), _parse_paths(root, entries)
    )


def _parse_entry(key: str, value: object) -> DcpTensor | None:
    if _class_of(value) == "BytesStorageMetadata":
        return None
    fields = _fields(value, "TensorStorageMetadata")
    shape = _shape(fields.get("size"), key)
    count_elements(shape)
    chunks = fields.get("chunks")
    if not isinstance(chunks, list):
        raise FormatError(f"DCP tensor {key[:80]!r} has no list of chunks")
    boxes = []
    for chunk in chunks:
        parts = _fields(chunk, "ChunkStorageMetadata")
        box = Box(_shape(parts.get("offsets"), key), _shape(parts.get("sizes"), key))
        if not is_inside(shape, box):
            raise FormatError(f"DCP tensor {key[:80]!r} has a chunk outside of it")
        boxes.append(box)
    return DcpTensor(_parse_dtype(fields.get("properties")), shape, tuple(boxes))


def _parse_dtype(properties: object) -> str | None:
    """Return the dtype of ``TensorProperties``, whose state is a tuple that begins with it."""
    match properties:
        case (
            Opaque(states=[(Global(path), *_)])
            | Opaque(states=[Pairs(["dtype", Global(path), *_])])
        ):
            return TORCH_DTYPES.get(path.removeprefix("torch."))
        case _:
            return None


def _parse_files(
    storage: object, entries: Mapping[str, DcpTensor | None]
) -> dict[str, tuple[DcpItem, ...]]:
    files: dict[str, list[DcpItem]] = {}
    boxes: dict[str, dict[str, Box]] = {}
    for index, info in _pairs(storage, "places").items_in_order():
        place, fields = _fields(index, "MetadataIndex"), _fields(info, "_StorageInfo")
        key = _key(place.get("fqn"))
        if key not in entries:
            raise FormatError(f"DCP item {key[:80]!r} belongs to no entry")
        tensor = entries[key]
        box = None if tensor is None else _find_box(key, tensor, place.get("offset"), boxes)
        item = _parse_item(key, box, fields)
        files.setdefault(item.file, []).append(item)
    return {
        file: tuple(sorted(items, key=lambda item: (item.start, item.end)))
        for file, items in files.items()
    }


def _find_box(key: str, tensor: DcpTensor, offset: object, boxes: dict[str, dict[str, Box]]) -> Box:
    """Return the box that begins at an offset; strings are the keys, since files choose numbers."""
    if key not in boxes:
        boxes[key] = {str(box.offsets): box for box in tensor.boxes}
    at = (0,) * len(tensor.shape) if offset is None else _shape(offset, key)
    box = boxes[key].get(str(at))
    if box is None:
        raise FormatError(f"DCP tensor {key[:80]!r} has no chunk at {list(at)}")
    return box


def _parse_item(key: str, box: Box | None, fields: Mapping[str, object]) -> DcpItem:
    match fields:
        case {"relative_path": str(file), "offset": int(start), "length": int(size_bytes)} if (
            min(start, size_bytes) >= 0 and max(start, size_bytes) <= MAX_TENSOR_BYTES
        ):
            pass
        case _:
            raise FormatError(f"DCP item {key[:80]!r} has an impossible place")
    match fields.get("transform_descriptors"):
        case None:
            return DcpItem(key, box, file, start, size_bytes)
        case [*names] if all(isinstance(name, str) for name in names):
            return DcpItem(key, box, file, start, size_bytes, tuple(map(str, names)))
        case _:
            raise FormatError(f"DCP item {key[:80]!r} has transforms without names")


def _parse_paths(root: Mapping[str, object], entries: Mapping[str, object]) -> dict[str, Path]:
    """Return the paths that the planner kept; planners of other kinds keep other things."""
    data = root.get("planner_data")
    if not isinstance(data, Pairs):
        return {}
    return {
        key: path
        for key, path in data.items_in_order()
        if isinstance(key, str) and key in entries and _is_path(path)
    }


def _is_path(value: object) -> TypeGuard[Path]:
    return (
        isinstance(value, tuple)
        and 0 < len(value) <= MAX_STEPS
        and isinstance(value[0], str)
        and all(isinstance(part, str) or _is_count(part) for part in value)
    )


def _class_of(value: object) -> str | None:
    match value:
        case Opaque(maker=Global(path)):
            return path.rpartition(".")[2]
        case _:
            return None


def _fields(value: object, name: str) -> dict[str, object]:
    """Return the attributes of an object of a class of that name."""
    if not isinstance(value, Opaque) or _class_of(value) != name:
        raise FormatError(f"DCP metadata lacks a {name} where one must be")
    match value.states:
        case None:
            return {}
        case [Pairs() as pairs]:
            return {
                key: attribute for key, attribute in pairs.items_in_order() if isinstance(key, str)
            }
        case _:
            raise FormatError(f"DCP metadata has a {name} without attributes")


def _pairs(value: object, what: str) -> Pairs:
    if not isinstance(value, Pairs):
        raise FormatError(f"DCP metadata has no mapping of {what}")
    return value


def _key(value: object) -> str:
    if not isinstance(value, str):
        raise FormatError("DCP metadata has an entry whose key is not text")
    return value


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= MAX_TENSOR_BYTES


def _shape(value: object, key: str) -> tuple[int, ...]:
    if not isinstance(value, (tuple, list)) or not all(_is_count(number) for number in value):
        raise FormatError(f"DCP tensor {key[:80]!r} has an impossible shape or place")
    return tuple(value)

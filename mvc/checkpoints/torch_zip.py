"""PyTorch's zip files (``torch.save``): storages as zip entries, names from the pickle in them.

The archive holds one folder with ``data.pkl``, ``byteorder`` and one entry ``data/<key>`` for
each storage. The pickle is run by a machine that can do nothing (``unpickler``), which yields the
tensors on each storage. One storage becomes one segment with all the tensors on it: a single
tensor that covers it, or views, tied weights and transposed ones. Storages that are compressed or
that no tensor names stay gaps. No tensor data is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mvc.checkpoints.limits import check_limit, checked_layout
from mvc.checkpoints.torch_pickle.names import name_tensors
from mvc.checkpoints.torch_pickle.objects import StorageRef, TensorRef, find_storage, reduce_torch
from mvc.checkpoints.torch_pickle.unpickler import unpickle
from mvc.dtypes import get_dtype
from mvc.errors import FormatError
from mvc.formats.layout import FileLayout, Segment, TensorView
from mvc.sources import ByteSource, read_bytes

if TYPE_CHECKING:
    from mvc.checkpoints.zip_directory import ZipEntry

MAX_PICKLE_BYTES = 64 * 2**20
"""Pickle held in memory: 150 bytes per tensor, so 400,000 tensors."""
_PICKLE_NAME = "data.pkl"
_MAX_BYTEORDER_BYTES = 16


def find_pickles(entries: Sequence[ZipEntry]) -> list[ZipEntry]:
    """Return the entries that make an archive one of PyTorch: ``<folder>/data.pkl``."""
    return [
        entry
        for entry in entries
        if entry.name.endswith(f"/{_PICKLE_NAME}") and entry.name.count("/") == 1
    ]


def layout_torch(source: ByteSource, entries: Sequence[ZipEntry]) -> FileLayout:
    """Name the tensors of a file that ``torch.save`` wrote."""
    pickle = _find_pickle(entries)
    prefix = pickle.name.removesuffix(_PICKLE_NAME)
    members = {
        entry.name.removeprefix(prefix): entry for entry in entries if entry.name.startswith(prefix)
    }
    if "byteorder" in members:  # PyTorch without the entry wrote on little-endian machines
        entry = members["byteorder"]
        size_bytes = min(entry.size_bytes, _MAX_BYTEORDER_BYTES)
        order = read_bytes(source, entry.data_start, size_bytes)
        if order != b"little":
            raise FormatError(f"torch archive has the byte order {order!r}, not little")
    root = unpickle(_read_entry(source, pickle), reduce_torch, find_storage)
    return checked_layout("torch", source.size_bytes, _place_storages(root, members))


def read_pickle(source: ByteSource, entries: Sequence[ZipEntry]) -> bytes:
    """Return the one pickle of a file that ``torch.save`` wrote."""
    return _read_entry(source, _find_pickle(entries))


def _find_pickle(entries: Sequence[ZipEntry]) -> ZipEntry:
    pickles = find_pickles(entries)
    if len(pickles) != 1:
        raise FormatError(f"torch archive has {len(pickles)} entries called {_PICKLE_NAME}")
    return pickles[0]


def _read_entry(source: ByteSource, entry: ZipEntry) -> bytes:
    if not entry.is_stored:
        raise FormatError(f"{_PICKLE_NAME} of the torch archive is compressed or encrypted")
    check_limit(f"{_PICKLE_NAME} has", entry.size_bytes, "bytes", MAX_PICKLE_BYTES)
    return read_bytes(source, entry.data_start, entry.size_bytes)


def _place_storages(root: object, members: Mapping[str, ZipEntry]) -> list[Segment]:
    tensors: dict[str, list[tuple[str, TensorRef]]] = {}
    for name, tensor in name_tensors(root):
        _check_storage(tensor.storage, members)
        if tensor.dtype is not None:
            tensors.setdefault(tensor.storage.key, []).append((name, tensor))
    segments = [
        _storage_segment(members[f"data/{key}"], named)
        for key, named in tensors.items()
        if members[f"data/{key}"].is_stored
    ]
    segments.sort(key=lambda segment: segment.start)
    return segments


def _check_storage(storage: StorageRef, members: Mapping[str, ZipEntry]) -> None:
    entry = members.get(f"data/{storage.key}")
    if entry is None:
        raise FormatError(f"storage {storage.key[:80]!r} is not in the torch archive")
    if storage.dtype is None or not entry.is_stored:
        return
    size_bytes = storage.elements * get_dtype(storage.dtype).block_bytes
    if size_bytes != entry.size_bytes:
        raise FormatError(
            f"storage {storage.key[:80]!r} has {entry.size_bytes:,} bytes, "
            f"the pickle says {size_bytes:,}"
        )


def _storage_segment(entry: ZipEntry, named: Sequence[tuple[str, TensorRef]]) -> Segment:
    views = tuple(_tensor_view(name, tensor) for name, tensor in named)
    # The words of the storage only guide its encoding: those of its first tensor, if they fit.
    dtype = views[0].dtype
    if entry.size_bytes % get_dtype(dtype).block_bytes:
        dtype = "U8"
    return Segment(entry.data_start, entry.size_bytes, dtype, views)


def _tensor_view(name: str, tensor: TensorRef) -> TensorView:
    assert tensor.dtype is not None  # _place_storages left the others out
    if 0 in tensor.shape:
        return TensorView(name, tensor.dtype, tensor.shape)
    offset_bytes = tensor.offset * get_dtype(tensor.dtype).block_bytes
    strides = None if _is_contiguous(tensor.shape, tensor.strides) else tensor.strides
    return TensorView(name, tensor.dtype, tensor.shape, offset_bytes, strides)


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether elements follow each other in C order; the stride of a 1 says nothing."""
    expected = 1
    for dim, stride in zip(reversed(shape), reversed(strides), strict=True):
        if dim != 1:
            if stride != expected:
                return False
            expected *= dim
    return True

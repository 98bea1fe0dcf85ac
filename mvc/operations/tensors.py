"""ls, cat and lazy reading: tensors of a revision without checking files out."""

from __future__ import annotations

import fnmatch
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.chunkstore.store import ReadRequest
from mvc.dtypes import get_dtype, numpy_dtype, size_in_bytes
from mvc.errors import FormatError, NotFoundError, StorageError, UnsupportedError
from mvc.formats.layout import view_extent_bytes
from mvc.formats.manifest import cut_sizes, tensor_id
from mvc.workspace.manifests import find_manifest, stored_size
from mvc.workspace.pathspec import select_paths
from mvc.workspace.released import check_chunks, command_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from mvc.formats.layout import TensorView
    from mvc.formats.manifest import StoredSegment
    from mvc.history.values import TreeEntry
    from mvc.ids import GitId
    from mvc.workspace.context import Context


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor of a stored file lies.

    Attributes:
        path: the file.
        view: the tensor in its segment.
        stored: the segment and its chunks.
        chunk_bytes: where the segment is cut.
    """

    path: str
    view: TensorView
    stored: StoredSegment
    chunk_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements."""
        return size_in_bytes(get_dtype(self.view.dtype), self.view.shape)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a revision.

    Attributes:
        name: its name.
        dtype: canonical dtype name.
        shape: elements per dimension.
        size_bytes: bytes of its elements.
        chunks: chunks that hold it.
        id: its identity (hex): equal ids are equal bits.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    chunks: int
    id: str


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file of a revision.

    Attributes:
        path: repository path.
        mode: Git mode.
        blob: its Git blob.
        format: checkpoint format, or None for plain files and links.
        size_bytes: length of the file.
        tensors: its tensors, in file order.
    """

    path: str
    mode: int
    blob: GitId
    format: str | None
    size_bytes: int
    tensors: tuple[TensorInfo, ...]


def list_files(
    context: Context,
    revision: str = "HEAD",
    *,
    paths: Sequence[str] = (),
    tensors: str | None = None,
) -> list[FileInfo]:
    """Return the files of a revision with their tensors.

    Raises:
        NotFoundError: no such revision or path.
    """
    tree = context.history.read_tree(context.history.resolve(revision))
    chosen = select_paths(paths, list(tree))
    found = [_file_info(context, path, tree[path], tensors) for path in chosen]
    return found if tensors is None else [info for info in found if info.tensors]


def _file_info(context: Context, path: str, entry: TreeEntry, pattern: str | None) -> FileInfo:
    manifest = find_manifest(context, entry.blob)
    if manifest is None:
        size_bytes = stored_size(context, entry.blob)
        return FileInfo(path, entry.mode, entry.blob, None, size_bytes, ())
    infos = tuple(
        TensorInfo(
            view.name,
            view.dtype,
            view.shape,
            size_in_bytes(get_dtype(view.dtype), view.shape),
            len(stored.chunks),
            tensor_id(view, stored),
        )
        for view, stored in manifest.tensors()
        if pattern is None or fnmatch.fnmatchcase(view.name, pattern)
    )
    return FileInfo(path, entry.mode, entry.blob, manifest.format, manifest.size_bytes, infos)


def _find_entry(context: Context, revision: str, path: str) -> TreeEntry:
    entry = context.history.read_tree(context.history.resolve(revision)).get(path)
    if entry is None:
        raise NotFoundError(
            f"{revision} has no file {path!r}", hint=f'"mvc ls {revision}" lists what it has'
        )
    return entry


def read_plain_file(context: Context, revision: str, path: str) -> bytes | None:
    """Return a plain file's bytes or a link's text; None for a file that is kept in chunks.

    Raises:
        NotFoundError: no such revision or path.
    """
    blob = _find_entry(context, revision, path).blob
    if find_manifest(context, blob) is not None:
        return None
    return context.history.read_blob(blob)


def find_tensor(context: Context, revision: str, path: str, name: str) -> StoredTensor:
    """Return where a tensor of a revision is stored.

    Raises:
        NotFoundError: no such revision, path or tensor.
    """
    return find_tensor_in(context, _find_entry(context, revision, path).blob, path, name)


def _find_readable(context: Context, revision: str, path: str, name: str) -> StoredTensor:
    """Return where a tensor of a revision is stored, once its chunks are known to be there."""
    found = context.history.resolve(revision)
    entry = _find_entry(context, revision, path)
    tensor = find_tensor_in(context, entry.blob, path, name)
    command = command_text("mvc cat {}", [path, name])
    chunks = tensor.stored.chunks
    check_chunks(context, (path, entry.blob), chunks, commit=found, command=command)
    return tensor


def find_tensor_in(context: Context, blob: GitId, path: str, name: str) -> StoredTensor:
    """Return where a tensor of one stored file lies.

    Raises:
        NotFoundError: the file holds no such tensor.
    """
    manifest = find_manifest(context, blob)
    if manifest is None:
        raise NotFoundError(f"{path!r} is a plain file and holds no tensor")
    found = context.manifests.tensors(blob).get(name)
    if found is None:
        raise NotFoundError(
            f"{path!r} has no tensor {name!r}", hint=f'"mvc ls" lists the tensors of {path}'
        )
    view, stored = found
    return StoredTensor(path, view, stored, manifest.chunk_bytes)


def read_tensor(context: Context, revision: str, path: str, name: str) -> NDArray[np.generic]:
    """Return a tensor's values; only the chunks that hold it are read, each verified.

    Returns:
        A fresh C-contiguous array of the tensor's shape. Types that NumPy lacks come from
        ml_dtypes; packed types (4-bit, GGUF blocks) come as their bytes, one dimension of uint8.
    """
    import numpy as np  # noqa: PLC0415  import cost

    tensor = _find_readable(context, revision, path, name)
    view, dtype = tensor.view, get_dtype(tensor.view.dtype)
    raw = read_bytes_of(context, tensor)
    scalar = numpy_dtype(dtype)
    if scalar is None:
        return np.frombuffer(raw, np.uint8)
    if view.strides is None:
        return np.frombuffer(raw, scalar).reshape(view.shape)
    strides = tuple(stride * dtype.block_bytes for stride in view.strides)
    # Not as_strided, which does not know the types of ml_dtypes.
    return np.ascontiguousarray(np.ndarray(view.shape, scalar, raw, 0, strides))


def read_torch_tensor(context: Context, revision: str, path: str, name: str) -> torch.Tensor:
    """Return a tensor of a revision as a torch tensor; only its chunks are read, each verified.

    Raises:
        UnsupportedError: torch is not installed, or lacks the dtype.
    """
    try:
        from mvc.checkpoints.torch_values import make_tensor  # noqa: PLC0415  torch on demand
    except ImportError as error:
        raise UnsupportedError(
            "torch is not installed", hint='read it with framework="numpy"'
        ) from error
    tensor = _find_readable(context, revision, path, name)
    view = tensor.view
    return make_tensor(read_bytes_of(context, tensor), view.dtype, view.shape, view.strides)


def read_bytes_of(context: Context, tensor: StoredTensor) -> bytearray:
    """Return the bytes from a tensor's first element to behind its last one, verified."""
    check_fits(tensor)
    raw = bytearray(view_extent_bytes(tensor.view))
    read_tensor_into(context, tensor, memoryview(raw))
    return raw


def check_fits(tensor: StoredTensor) -> None:
    """Check that a tensor's values fit into this machine's memory.

    A few bytes may stand for any number of elements (a repeated chunk, a stride of 0).

    Raises:
        StorageError: they do not.
    """
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size_bytes = max(tensor.size_bytes, view_extent_bytes(tensor.view))
    if size_bytes > memory_bytes:
        raise StorageError(
            f"tensor {tensor.view.name!r} of {tensor.path} has {size_bytes:,} bytes, "
            f"more than the memory of this machine",
            hint="check the file out instead: that takes no more memory than a few chunks",
        )


def read_tensor_into(context: Context, tensor: StoredTensor, target: memoryview) -> None:
    """Fill ``target`` with the bytes from a tensor's first element to behind its last one.

    Raises:
        FormatError: ``target`` has another length.
        CorruptionError: a chunk is missing or damaged.
    """
    if len(target) != view_extent_bytes(tensor.view):
        raise FormatError(f"tensor {tensor.view.name!r} does not have {len(target)} bytes")

    def write_at(part: memoryview, offset: int) -> None:
        target[offset : offset + len(part)] = part

    read_parts(context, tensor, write_at)


def read_parts(
    context: Context, tensor: StoredTensor, write_at: Callable[[memoryview, int], None]
) -> None:
    """Read a tensor's bytes, verified, through ``write_at(bytes, offset in the tensor)``."""
    start = tensor.view.offset_bytes
    end = start + view_extent_bytes(tensor.view)

    def sink(request: ReadRequest, plain: memoryview) -> None:
        first, last = max(start, request.offset), min(end, request.offset + len(plain))
        write_at(plain[first - request.offset : last - request.offset], first - start)

    context.store.read_many(list(_requests_of(tensor, start, end)), sink)


def _requests_of(tensor: StoredTensor, start: int, end: int) -> Iterator[ReadRequest]:
    where = f"tensor {tensor.view.name!r} of {tensor.path}"
    sizes = cut_sizes(tensor.stored.segment.size_bytes, tensor.chunk_bytes)
    position = 0
    for chunk, size in zip(tensor.stored.chunks, sizes, strict=True):
        if position < end and position + size > start:
            yield ReadRequest(chunk, size, position, where)
        position += size

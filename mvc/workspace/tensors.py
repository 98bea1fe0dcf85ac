"""Where a tensor of a stored file is, and its bytes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mvc.chunkstore.values import ReadRequest
from mvc.dtypes import get_dtype, get_framework, numpy_dtype, size_in_bytes
from mvc.errors import (
    ConflictError,
    FormatError,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from mvc.formats.layout import view_extent_bytes
from mvc.formats.manifest import cut_run
from mvc.tensor_names import takes
from mvc.workspace.manifests import find_manifest
from mvc.workspace.pathspec import select_paths
from mvc.workspace.released import check_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from mvc.formats.layout import TensorView
    from mvc.formats.manifest import StoredSegment
    from mvc.ids import ChunkId
    from mvc.workspace.context import Context


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor of a stored file is: in a segment that is cut every ``chunk_bytes``."""

    path: str
    view: TensorView
    stored: StoredSegment
    chunk_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements."""
        return size_in_bytes(get_dtype(self.view.dtype), self.view.shape)


def select_tensors(
    context: Context, revision: str, paths: Sequence[str], pattern: str | None, command: str
) -> list[StoredTensor]:
    """Return tensors of a revision, no two of one name, after checking that none was released.

    ``paths`` and ``pattern`` are wildcards; ``command`` is what a ReleasedError proposes.
    """
    commit = context.history.resolve(revision)
    tree = context.history.read_tree(commit)
    chosen: dict[str, StoredTensor] = {}
    for path in select_paths(paths, list(tree)):
        manifest = find_manifest(context, tree[path].blob)
        if manifest is None:
            continue
        for view, stored in manifest.tensors():
            if pattern is not None and not takes(pattern, view.name):
                continue
            if view.name in chosen:
                raise ConflictError(
                    f"{chosen[view.name].path} and {path} both hold a tensor {view.name!r}",
                    hint="name one of the files",
                )
            chosen[view.name] = StoredTensor(path, view, stored, manifest.chunk_bytes)
    if not chosen:
        raise NotFoundError(f"no tensor of {revision} matches", hint='"mvc ls" lists them')
    by_path: dict[str, list[ChunkId]] = {}
    for tensor in chosen.values():
        by_path.setdefault(tensor.path, []).extend(tensor.stored.chunks)
    for path, chunks in by_path.items():
        check_chunks(context, (path, tree[path].blob), chunks, commit=commit, command=command)
    return list(chosen.values())


def read_bytes_of(context: Context, tensor: StoredTensor) -> NDArray[np.uint8]:
    """Return the bytes from a tensor's first element to its last, verified."""
    import numpy as np  # noqa: PLC0415  import cost

    check_fits(tensor.path, tensor.view)
    raw = np.empty(view_extent_bytes(tensor.view), np.uint8)  # a bytearray is zeroed first
    read_tensor_into(context, tensor, raw.data)
    return raw


def check_fits(path: str, view: TensorView) -> None:
    """Check that a tensor's values fit into this machine's memory.

    A few stored bytes can stand for any number of elements (a repeated chunk, a stride of 0).
    """
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size_bytes = max(size_in_bytes(get_dtype(view.dtype), view.shape), view_extent_bytes(view))
    if size_bytes > memory_bytes:
        raise StorageError(
            f"tensor {view.name!r} of {path} has {size_bytes:,} bytes, "
            f"more than the memory of this machine",
            hint="check the file out instead: that takes no more memory than a few chunks",
        )


def read_tensor_into(context: Context, tensor: StoredTensor, target: memoryview) -> None:
    """Fill ``target`` with the bytes from a tensor's first element to its last."""
    if len(target) != view_extent_bytes(tensor.view):
        raise FormatError(f"tensor {tensor.view.name!r} does not have {len(target)} bytes")
    stored = tensor.stored
    if tensor.view.offset_bytes == 0 and len(target) == stored.segment.size_bytes:
        # Whole chunks, which can be decoded in their place.
        run = cut_run(len(target), stored.chunks, tensor.chunk_bytes)
        parts = [(chunk, target[at : at + size]) for at, chunk, size in run]
        context.store.read_each(parts, context=_where(tensor))
        return

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
    where, stored = _where(tensor), tensor.stored
    for at, chunk, size in cut_run(stored.segment.size_bytes, stored.chunks, tensor.chunk_bytes):
        if at < end and at + size > start:
            yield ReadRequest(chunk, size, at, where)


def _where(tensor: StoredTensor) -> str:
    return f"tensor {tensor.view.name!r} of {tensor.path}"


def in_order(raw: bytearray | NDArray[np.uint8], view: TensorView) -> NDArray[np.uint8]:
    """Return a tensor's elements in C order, as bytes, given the bytes that it spans."""
    import numpy as np  # noqa: PLC0415  import cost

    flat, dtype = np.frombuffer(raw, np.uint8), get_dtype(view.dtype)
    if view.strides is None or not size_in_bytes(dtype, view.shape):
        return flat
    strides = tuple(stride * dtype.block_bytes for stride in view.strides)
    # Not as_strided: a stride that leaves the buffer must be an error.
    elements = np.ndarray(view.shape, f"V{dtype.block_bytes}", flat, 0, strides)
    return np.ascontiguousarray(elements).reshape(-1).view(np.uint8)


def find_maker(framework: str) -> Callable[[NDArray[np.uint8], TensorView], Any]:
    """Return what makes a new array or torch tensor of the bytes that a tensor spans.

    Raises:
        UnsupportedError: torch is not installed.
        UsageError: another framework.
    """
    if get_framework(framework) == "numpy":
        return _make_array
    try:
        from mvc.states.torch_arrays import make_tensor  # noqa: PLC0415  torch on demand
    except ImportError as error:
        raise UnsupportedError(
            "torch is not installed", hint='read it with framework="numpy"'
        ) from error
    return make_tensor


def _make_array(raw: NDArray[np.uint8], view: TensorView) -> NDArray[np.generic]:
    flat, scalar = in_order(raw, view), numpy_dtype(get_dtype(view.dtype))
    return flat if scalar is None else flat.view(scalar).reshape(view.shape)

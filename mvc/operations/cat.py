"""cat: one file or tensor of a revision, without checking anything out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.dtypes import get_dtype, numpy_dtype
from mvc.errors import NotFoundError, UnsupportedError
from mvc.workspace.manifests import find_manifest
from mvc.workspace.released import check_chunks, command_text
from mvc.workspace.tensors import StoredTensor, in_order, read_bytes_of

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from mvc.history.values import TreeEntry
    from mvc.ids import GitId
    from mvc.workspace.context import Context


def read_plain_file(context: Context, revision: str, path: str) -> bytes | None:
    """Return a plain file's bytes or a link's text; None for a file that is kept in chunks."""
    blob = _find_entry(context, context.history.resolve(revision), revision, path).blob
    if find_manifest(context, blob) is not None:
        return None
    return context.history.read_blob(blob)


def read_tensor(context: Context, revision: str, path: str, name: str) -> NDArray[np.generic]:
    """Return a tensor's values as a new C-contiguous array.

    Types that NumPy lacks come from ml_dtypes; packed types (4-bit, GGUF blocks) come as their
    bytes, one dimension of uint8.
    """
    tensor = _find_readable(context, revision, path, name)
    flat = in_order(read_bytes_of(context, tensor), tensor.view)
    scalar = numpy_dtype(get_dtype(tensor.view.dtype))
    return flat if scalar is None else flat.view(scalar).reshape(tensor.view.shape)


def read_torch_tensor(context: Context, revision: str, path: str, name: str) -> torch.Tensor:
    """Return the same as a torch tensor."""
    try:
        from mvc.states.torch_arrays import make_tensor  # noqa: PLC0415  torch on demand
    except ImportError as error:
        raise UnsupportedError(
            "torch is not installed", hint='read it with framework="numpy"'
        ) from error
    tensor = _find_readable(context, revision, path, name)
    view = tensor.view
    return make_tensor(read_bytes_of(context, tensor), view.dtype, view.shape, view.strides)


def _find_readable(context: Context, revision: str, path: str, name: str) -> StoredTensor:
    """Return where a tensor of a revision is stored, after checking that its chunks are there."""
    commit = context.history.resolve(revision)
    blob = _find_entry(context, commit, revision, path).blob
    manifest = find_manifest(context, blob)
    if manifest is None:
        raise NotFoundError(f"{path!r} is a plain file and holds no tensor")
    found = context.manifests.tensors(blob).get(name)
    if found is None:
        raise NotFoundError(
            f"{path!r} has no tensor {name!r}", hint=f'"mvc ls" lists the tensors of {path}'
        )
    view, stored = found
    command = command_text("mvc cat {}", [path, name])
    check_chunks(context, (path, blob), stored.chunks, commit=commit, command=command)
    return StoredTensor(path, view, stored, manifest.chunk_bytes)


def _find_entry(context: Context, commit: GitId, revision: str, path: str) -> TreeEntry:
    entry = context.history.read_tree(commit).get(path)
    if entry is None:
        raise NotFoundError(
            f"{revision} has no file {path!r}", hint=f'"mvc ls {revision}" lists what it has'
        )
    return entry

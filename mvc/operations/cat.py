"""cat: one file or tensor of a revision, without checking anything out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mvc.errors import CorruptionError, NotFoundError
from mvc.workspace.manifests import find_manifest
from mvc.workspace.released import check_chunks, command_text
from mvc.workspace.tensors import StoredTensor, find_maker, read_bytes_of, select_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from mvc.formats.layout import TensorView
    from mvc.history.values import TreeEntry
    from mvc.ids import GitId
    from mvc.workspace.context import Context


def read_plain_file(context: Context, revision: str, path: str) -> bytes | None:
    """Return a plain file's bytes or a link's text; None for a file that is kept in chunks."""
    blob = _find_entry(context, context.history.resolve(revision), revision, path).blob
    if find_manifest(context, blob) is not None:
        return None
    return context.history.read_blob(blob)


def read_tensor(
    context: Context, revision: str, path: str, name: str, framework: str = "numpy"
) -> Any:
    """Return a tensor's values as a new C-contiguous array or torch tensor.

    Types that NumPy lacks come from ml_dtypes; packed types (4-bit, GGUF blocks) come as their
    bytes, one dimension of uint8.
    """
    make = find_maker(framework)
    commit = context.history.resolve(revision)
    return make(*_read(context, commit, _find_tensor(context, commit, revision, path, name)))


def read_tensors(
    context: Context,
    revision: str,
    *,
    paths: Sequence[str] = (),
    tensors: str | None = None,
    framework: str = "numpy",
) -> Iterator[tuple[str, Any]]:
    """Return (name, values) of tensors in the order of their files; each is read when it is due."""
    make = find_maker(framework)
    commit = context.history.resolve(revision)
    chosen = select_tensors(context, revision, paths, tensors, "mvc checkout {}")
    return ((one.view.name, make(*_read(context, commit, one))) for one in chosen)


def _read(
    context: Context, commit: GitId, tensor: StoredTensor
) -> tuple[NDArray[np.uint8], TensorView]:
    try:
        return read_bytes_of(context, tensor), tensor.view
    except CorruptionError:  # damaged, or released?
        version = (tensor.path, context.history.read_tree(commit)[tensor.path].blob)
        command = command_text("mvc cat {}", [tensor.path, tensor.view.name])
        check_chunks(context, version, tensor.stored.chunks, commit=commit, command=command)
        raise


def _find_tensor(
    context: Context, commit: GitId, revision: str, path: str, name: str
) -> StoredTensor:
    """Return where a tensor of a revision is stored."""
    manifests = context.manifests
    blob = manifests.holders.get((commit, path))
    if blob is None:
        blob = _find_entry(context, commit, revision, path).blob
        if find_manifest(context, blob) is None:
            raise NotFoundError(f"{path!r} is a plain file and holds no tensor")
        manifests.holders[commit, path] = blob
    found = manifests.tensors(blob).get(name)
    if found is None:
        raise NotFoundError(
            f"{path!r} has no tensor {name!r}", hint=f'"mvc ls" lists the tensors of {path}'
        )
    return StoredTensor(path, *found, manifests.read(blob).chunk_bytes)


def _find_entry(context: Context, commit: GitId, revision: str, path: str) -> TreeEntry:
    entry = context.history.read_tree(commit).get(path)
    if entry is None:
        raise NotFoundError(
            f"{revision} has no file {path!r}", hint=f'"mvc ls {revision}" lists what it has'
        )
    return entry

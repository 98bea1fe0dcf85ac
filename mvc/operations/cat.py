"""cat: one file or tensor of a revision, without checking anything out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from mvc.errors import NotFoundError
from mvc.workspace.manifests import find_manifest
from mvc.workspace.models import select_tensors
from mvc.workspace.released import command_text
from mvc.workspace.tensors import ModelTensor, StoredSource, find_maker
from mvc.workspace.worktree import relative_paths

if TYPE_CHECKING:
    from mvc.history.values import TreeEntry
    from mvc.ids import GitId
    from mvc.workspace.context import Context
    from mvc.workspace.worktree import Paths, StrPath


def read_plain_file(context: Context, revision: str, path: StrPath) -> bytes | None:
    """Return a plain file's bytes or a link's text; None for a file that is kept in chunks.

    Raises:
        NotFoundError: no such revision or path.
    """
    (name,) = relative_paths(context, path)
    blob = _find_entry(context, context.history.resolve(revision), revision, name).blob
    if find_manifest(context, blob) is not None:
        return None
    return context.history.read_blob(blob)


def read_tensor(
    context: Context, revision: str, path: StrPath, name: str, framework: str = "numpy"
) -> Any:
    """Return a tensor's values as a new C-contiguous array or torch tensor.

    Types that NumPy lacks come from ml_dtypes; packed types (4-bit, GGUF blocks) come as their
    bytes, one dimension of uint8.
    """
    find_maker(framework)  # checked before anything is looked for
    (file,) = relative_paths(context, path)
    return _find_tensor(context, revision, file, name).read(framework)


def read_tensors(
    context: Context,
    revision: str = "HEAD",
    *,
    paths: Paths = (),
    tensors: str | None = None,
    framework: Literal["numpy", "np", "torch", "pt"] = "numpy",
) -> Iterator[tuple[str, Any]]:
    """Return (name, values) of a revision's tensors, file by file, each read when it is due.

    ``dict(repo.tensors("HEAD", framework="pt"))`` is a state dict.

    Args:
        revision: which commit.
        paths: only those of these files, folders or wildcards.
        tensors: only these.
        framework: as for ``tensor``.

    Raises:
        NotFoundError: no such revision or path, or no tensor matches.
        ConflictError: two files hold a tensor of the same name: say which with ``paths``.
    """
    find_maker(framework)
    files = relative_paths(context, paths)
    chosen = select_tensors(context, revision, files, tensors, "mvc checkout {}")
    return ((tensor.name, tensor.read(framework)) for tensor in chosen)


def _find_tensor(context: Context, revision: str, path: str, name: str) -> ModelTensor:
    commit = context.history.resolve(revision)
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
    view, stored = found
    chunk_bytes, command = (
        manifests.read(blob).chunk_bytes,
        command_text("mvc cat {}", [path, name]),
    )
    source = StoredSource(context, (path, blob, commit), stored, chunk_bytes, command)
    return ModelTensor(path, view, stored.segment, source, 0, stored.chunks, chunk_bytes)


def _find_entry(context: Context, commit: GitId, revision: str, path: str) -> TreeEntry:
    entry = context.history.read_tree(commit).get(path)
    if entry is None:
        raise NotFoundError(
            f"{revision} has no file {path!r}", hint=f'"mvc ls {revision}" lists what it has'
        )
    return entry

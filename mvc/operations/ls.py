"""ls: the files of a revision and their tensors, from manifests alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.dtypes import get_dtype, size_in_bytes
from mvc.formats.manifest import tensor_id
from mvc.tensor_names import takes
from mvc.workspace.manifests import read_stored
from mvc.workspace.pathspec import select_paths
from mvc.workspace.worktree import relative_paths

if TYPE_CHECKING:
    from mvc.history.values import TreeEntry
    from mvc.ids import GitId
    from mvc.workspace.context import Context
    from mvc.workspace.worktree import Paths


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a revision: ``name``, canonical ``dtype``, ``shape`` and identity.

    ``size_bytes`` are those of its elements, in so many ``chunks``; equal ``id`` (hex) is equal bits.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    chunks: int
    id: str


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file of a revision: ``path``, Git ``mode``, Git ``blob``, and length in ``size_bytes``.

    ``format`` is None for plain files and links; ``tensors`` are in file order.
    """

    path: str
    mode: int
    blob: GitId
    format: str | None
    size_bytes: int
    tensors: tuple[TensorInfo, ...]


def list_files(
    context: Context, revision: str = "HEAD", *, paths: Paths = (), tensors: str | None = None
) -> list[FileInfo]:
    """Return the files of a revision and their tensors; no tensor byte is read.

    Args:
        revision: which commit.
        paths: only these files, folders or wildcards.
        tensors: only these tensors, and files that have one.

    Raises:
        NotFoundError: no such revision or path.
    """
    chosen = relative_paths(context, paths)
    tree = context.history.read_tree(context.history.resolve(revision))
    chosen = select_paths(chosen, list(tree))
    found = [_file_info(context, path, tree[path], tensors) for path in chosen]
    return found if tensors is None else [info for info in found if info.tensors]


def _file_info(context: Context, path: str, entry: TreeEntry, pattern: str | None) -> FileInfo:
    manifest, size_bytes = read_stored(context, entry.blob)
    if manifest is None:
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
        if pattern is None or takes(pattern, view.name)
    )
    return FileInfo(path, entry.mode, entry.blob, manifest.format, size_bytes, infos)

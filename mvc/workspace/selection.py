"""The tensors of a revision that a command works on, whatever files they are in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.errors import ConflictError, NotFoundError
from mvc.tensor_names import takes
from mvc.workspace.dcp_folders import find_stored_folders, join_shards, shards_of
from mvc.workspace.manifests import find_manifest
from mvc.workspace.pathspec import select_paths
from mvc.workspace.released import check_chunks
from mvc.workspace.tensors import ModelTensor, stored_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mvc.history.values import TreeEntry
    from mvc.ids import ChunkId, GitId
    from mvc.workspace.context import Context

    Version = tuple[GitId, dict[str, TreeEntry]]


def select_tensors(
    context: Context, revision: str, paths: Sequence[str], pattern: str | None, command: str
) -> list[ModelTensor]:
    """Return tensors of a revision, no two of one name, after checking that none was released.

    ``paths`` and ``pattern`` are wildcards; ``command`` is what a ReleasedError proposes. The shards
    in a DCP folder whose files are all chosen are one tensor.
    """
    commit = context.history.resolve(revision)
    tree = context.history.read_tree(commit)
    chosen: dict[str, ModelTensor] = {}
    for tensor in find_tensors(context, (commit, tree), select_paths(paths, list(tree))):
        if pattern is not None and not takes(pattern, tensor.name):
            continue
        if tensor.name in chosen:
            raise ConflictError(
                f"{chosen[tensor.name].path} and {tensor.path} both hold a tensor {tensor.name!r}",
                hint="name one of the files",
            )
        chosen[tensor.name] = tensor
    if not chosen:
        what = "no tensor" if pattern is None else f"no tensor that matches {pattern!r}"
        raise NotFoundError(f"{revision} has {what}", hint=f'"mvc ls {revision}" lists them')
    check_there(context, (commit, tree), chosen.values(), command)
    return list(chosen.values())


def find_tensors(context: Context, version: Version, paths: Sequence[str]) -> Iterable[ModelTensor]:
    """Yield the tensors of some files of a commit, whole tensors in place of shards of DCP."""
    commit, tree = version
    folders = {
        folder.file(name): folder
        for folder in find_stored_folders(context, tree, paths)
        for name in folder.metadata.files
    }
    shards: dict[str, list[ModelTensor]] = {}
    for path in paths:
        manifest = find_manifest(context, tree[path].blob)
        if manifest is None:
            continue
        found = stored_tensors(context, (path, tree[path].blob, commit), manifest)
        if path in folders:
            shards.setdefault(folders[path].path, []).extend(found)
        else:
            yield from found
    for folder in {one.path: one for one in folders.values()}.values():
        yield from join_shards(folder, shards.get(folder.path, [])).values()


def check_there(
    context: Context, version: Version, tensors: Iterable[ModelTensor], command: str
) -> None:
    """Check that the content of tensors was not released."""
    commit, tree = version
    by_path: dict[str, list[ChunkId]] = {}
    for tensor in tensors:
        for shard in shards_of(tensor):
            by_path.setdefault(shard.path, []).extend(shard.chunks or ())
    for path, chunks in by_path.items():
        check_chunks(context, (path, tree[path].blob), chunks, commit=commit, command=command)

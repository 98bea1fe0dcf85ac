"""The tensors of a model, wherever it is: in a revision, in the worktree, in plain files.

What compares, verifies and merges works on a ``Model`` and never asks where it came from. A tensor
is read piece by piece in the order of its elements. One whose chunks are known has an id, so that
two of one id need not be read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mvc.checkpoints.detect import read_layout
from mvc.checkpoints.names import is_checkpoint_name
from mvc.errors import ConflictError, FormatError, NotFoundError, UsageError
from mvc.sources import FileSource
from mvc.tensor_names import takes
from mvc.workspace.dcp_folders import (
    find_stored_folders,
    find_worktree_folders,
    join_shards,
    shards_of,
)
from mvc.workspace.manifests import find_manifest
from mvc.workspace.pathspec import filter_paths, select_paths
from mvc.workspace.recorded import is_clean
from mvc.workspace.released import check_chunks
from mvc.workspace.tensors import ModelTensor, live_tensors, stored_tensors, tensors_of
from mvc.workspace.worktree import find_file_stat

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mvc.formats.manifest import Manifest
    from mvc.history.values import Index, TreeEntry
    from mvc.ids import ChunkId, GitId
    from mvc.workspace.context import Context
    from mvc.workspace.dcp_folders import DcpFolder

    Reader = Callable[[int, int], NDArray[np.uint8]]

    class LiveModel(Protocol):
        """A live model, such as a ``torch.nn.Module``."""

        def state_dict(self) -> Mapping[str, object]:
            """Return its tensors by name."""

    Operand = str | Path | Mapping[str, object] | LiveModel | None
    Version = tuple[GitId, dict[str, TreeEntry]]


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """All tensors of one side, in the order of their files.

    Attributes:
        label: what the user called it.
        tensors: its tensors; two files may hold the same name.
        commit: the commit it is read from, or None.
        plain: path → blob of the files of a commit that hold no tensor.
        root: the folder that paths count from, if it is not the current one.
        ties: of a live model, (path, name) of the tensors that are one in memory.
        folders: the DCP folders whose shards are among the tensors.
    """

    label: str
    tensors: tuple[ModelTensor, ...]
    commit: GitId | None = None
    plain: Mapping[str, GitId] | None = None
    root: Path | None = None
    ties: tuple[frozenset[tuple[str, str]], ...] = ()
    folders: tuple[DcpFolder, ...] = ()


@contextmanager
def open_model(
    context: Context | None, operand: Operand, paths: Sequence[str] = ()
) -> Iterator[Model]:
    """Open one side of a comparison.

    Args:
        context: the repository, or None outside of one.
        operand: a revision, ``REV:PATH``, a checkpoint file or a folder of them; None is the
            worktree. A name that is both is refused; a ``Path`` is never a revision. A mapping, or
            what has a ``state_dict``, is a live state, which must not change meanwhile.
        paths: of a revision or the worktree, only these files, folders or wildcards.

    Raises:
        NotFoundError: it is none of these.
        UsageError: it is more than one of these, of another type, or has no ``paths`` to choose from.
    """
    with ExitStack() as stack:
        if operand is None:
            if context is None:
                raise UsageError("there is no worktree outside a repository")
            yield read_worktree(context, stack, paths)
        elif isinstance(operand, Mapping):
            yield read_live(operand)
        elif not isinstance(operand, (str, Path)):
            yield read_live(_find_state(operand))
        elif _is_files(context, operand):
            if paths:
                raise UsageError(
                    f"paths select files of a revision, but {str(operand)!r} is not one"
                )
            yield read_files(context, Path(operand), stack)
        else:
            assert context is not None
            model = read_revision(context, str(operand), paths)
            if ":" in str(operand) and not model.tensors:
                raise NotFoundError(f"{operand} holds no tensor")
            yield model


def _is_files(context: Context | None, operand: str | Path) -> bool:
    """Return whether an operand names files, not a revision."""
    is_path = os.path.exists(operand)
    if context is None or isinstance(operand, Path):
        if not is_path:
            raise NotFoundError(f"{str(operand)!r} does not exist")
        return True
    revision, colon, _ = operand.partition(":")
    try:
        context.history.resolve(revision if colon and not is_path else operand)
    except NotFoundError as error:
        if is_path:
            return True
        raise NotFoundError(
            f"{operand!r} is neither a revision nor a file",
            hint=error.hint or '"mvc log" lists revisions',
        ) from error
    if is_path:
        raise UsageError(
            f"{operand!r} is both a revision and a path",
            hint=f"write {'./' + operand!r} for the path",
        )
    return False


def _find_state(operand: LiveModel) -> Mapping[str, object]:
    state = operand.state_dict() if hasattr(operand, "state_dict") else None
    if not isinstance(state, Mapping):
        raise UsageError(
            f"{type(operand).__name__} is not a model",
            hint="give a revision, a path, a model or a state dict",
        )
    return state


def read_live(state: Mapping[str, object]) -> Model:
    """Return the model in live arrays: of NumPy or torch, nested in any way."""
    from mvc.states.encode import EncodeWalk  # noqa: PLC0415  files need none of it
    from mvc.states.state import encode_walk  # noqa: PLC0415  as above

    walk = EncodeWalk()
    encoded = encode_walk(state, walk)
    tensors = [
        tensor
        for file in encoded.files
        for tensor in live_tensors(file.path, file.source, file.layout.segments)
    ]
    drafts = walk.files.values()
    names = {id(array): (file.path, name) for file in drafts for name, array in file.arrays}
    ties = tuple(
        frozenset(names[id(walk.placed[member].array)] for member in group.members)
        for group in encoded.groups
        if group.is_tie
    )
    if not tensors:
        raise UsageError("the live state holds no tensor")
    return Model("live state", tuple(tensors), plain={}, ties=ties)


def read_revision(context: Context, text: str, paths: Sequence[str] = ()) -> Model:
    """Return the model of ``REV`` or ``REV:PATH``, where PATH is a file, folder or wildcard."""
    revision, colon, path = text.partition(":")
    if colon and paths:
        raise UsageError(f"{text!r} names a path already")
    commit = context.history.resolve(revision or "HEAD")
    tree = context.history.read_tree(commit)
    chosen = filter_paths([path] if colon else paths, tree)
    if colon and not chosen:
        raise NotFoundError(
            f"{revision} has no file {path!r}", hint=f'"mvc ls {revision}" lists what it has'
        )
    return read_tree_model(context, {one: tree[one] for one in chosen}, text, commit)


def read_tree_model(
    context: Context, tree: Mapping[str, TreeEntry], label: str, commit: GitId | None = None
) -> Model:
    """Return the model of some files of a tree."""
    tensors: list[ModelTensor] = []
    plain: dict[str, GitId] = {}
    for path, entry in tree.items():
        manifest = find_manifest(context, entry.blob)
        if manifest is None or not manifest.segments:
            plain[path] = entry.blob
            continue
        tensors += stored_tensors(context, (path, entry.blob, commit), manifest)
    folders = find_stored_folders(context, tree, tree)
    return Model(label, tuple(tensors), commit, plain, folders=tuple(folders))


def read_worktree(context: Context, stack: ExitStack, paths: Sequence[str] = ()) -> Model:
    """Return the model in the tracked files of the worktree, which stay open with ``stack``."""
    index = context.history.read_index()
    tensors: list[ModelTensor] = []
    chosen = filter_paths(paths, index.entries)
    for path in chosen:
        entry = index.entries[path]
        if entry.skip_worktree and not os.path.lexists(context.worktree / path):
            tensors += read_tree_model(context, {path: entry.version}, "").tensors
        elif os.path.isfile(context.worktree / path) and (
            is_checkpoint_name(path) or find_manifest(context, index.entries[path].blob) is not None
        ):
            tensors += _read_file(context, context.worktree / path, path, index, stack)
    folders = find_worktree_folders(context.worktree, chosen)
    return Model("the worktree", tuple(tensors), root=context.worktree, folders=tuple(folders))


def read_files(context: Context | None, path: Path, stack: ExitStack) -> Model:
    """Return the model in a checkpoint file, or in all that a folder holds."""
    if path.is_dir():
        files = sorted(one for one in path.iterdir() if is_checkpoint_name(one.name))
        if not files:
            raise NotFoundError(f"folder {str(path)!r} holds no checkpoint")
    else:
        files = [path]
    index = None if context is None else context.history.read_index()
    tensors: list[ModelTensor] = []
    for file in files:
        tensors += _read_file(context, file, str(file), index, stack)
    if not tensors:
        raise FormatError(f"no tensor can be found in {str(path)!r}")
    folders = find_worktree_folders(Path(), map(str, files))
    return Model(str(path), tuple(tensors), folders=tuple(folders))


def _read_file(
    context: Context | None, file: Path, shown: str, index: Index | None, stack: ExitStack
) -> list[ModelTensor]:
    """Open a file and return its tensors, with their chunks if the index knows them."""
    # Links lead to the real file, as in the folders that model hubs make.
    source = stack.enter_context(FileSource.open(file.resolve()))
    manifest = None
    if context is not None and index is not None:
        manifest = _find_clean(context, index, file)
    if manifest is not None:
        return [
            tensor
            for stored in manifest.segments
            for tensor in tensors_of(
                shown, stored, source, stored.segment.start, manifest.chunk_bytes
            )
        ]
    layout = read_layout(source, file.name)
    if not layout.segments and layout.warning is not None:
        raise FormatError(f"no tensor can be found in {shown!r}: {layout.warning}")
    return list(live_tensors(shown, source, layout.segments))


def _find_clean(context: Context, index: Index, file: Path) -> Manifest | None:
    """Return the manifest of a file of the worktree that is as the index says, or None."""
    if file.is_symlink() or not file.absolute().is_relative_to(context.worktree):
        return None
    path = file.absolute().relative_to(context.worktree).as_posix()
    entry = index.entries.get(path)
    stat = None if entry is None else find_file_stat(context.worktree, path)
    if entry is None or stat is None or not is_clean(context, index, entry, stat):
        return None
    return find_manifest(context, entry.blob)


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
    for folder in {folder.path: folder for folder in folders.values()}.values():
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

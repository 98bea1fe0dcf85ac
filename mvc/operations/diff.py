"""diff: which files and tensors differ between two states, by identity; no tensor byte is read.

A side is a path → (mode, blob) mapping: a commit's tree, the index, or the worktree. A changed
worktree file is hashed (as ``add`` would) but nothing is stored. Where only names are asked for, it
is read up to the first difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from mvc.errors import UsageError
from mvc.history.values import NO_ID, Index, TreeEntry
from mvc.operations.file_diff import FileDiff, FileSide, compare_file, find_manifest_of
from mvc.workspace.pathspec import filter_paths
from mvc.workspace.recorded import head_tree, holds, is_clean, pair_renames, staged_tree, tree_of
from mvc.workspace.recovery import recover
from mvc.workspace.worktree import find_file_stat, git_mode, relative_paths

if TYPE_CHECKING:
    from mvc.workspace.context import Context
    from mvc.workspace.worktree import Paths


@dataclass(frozen=True, slots=True)
class Scope:
    """What a comparison is limited to, as for ``Repo.diff``."""

    paths: tuple[str, ...] = ()
    tensors: str | None = None
    with_tensors: bool = True


def diff(
    context: Context,
    old: str | None = None,
    new: str | None = None,
    *,
    staged: bool = False,
    paths: Paths = (),
    tensors: str | None = None,
    with_tensors: bool = True,
) -> list[FileDiff]:
    """Compare by identity: index with worktree, a revision with either, or two revisions.

    Args:
        old: revision before; defaults to the index (HEAD with ``staged``).
        new: revision after; defaults to the worktree (the index with ``staged``).
        staged: compare with the index instead of the worktree.
        paths: only these files, folders or wildcards.
        tensors: only these tensors.
        with_tensors: find which tensors differ, not only which files.

    Raises:
        UsageError: ``new`` without ``old``, or two revisions and ``staged``.
    """
    scope = Scope(tuple(relative_paths(context, paths)), tensors, with_tensors)
    if new is not None and (old is None or staged):
        raise UsageError("two revisions are compared only with each other")
    if new is not None:
        return _compare(context, _commit_sides(context, old), _commit_sides(context, new), scope)
    recover(context)
    index = context.history.read_index().as_ours()
    entries = _tree_sides(staged_tree(index))
    before = entries if old is None and not staged else _commit_sides(context, old)
    after = entries
    if not staged:
        after = _worktree_sides(context, index, entries, before, scope)
    return _compare(context, before, after, scope)


def changes(
    context: Context,
    revision: str = "HEAD",
    *,
    paths: Paths = (),
    tensors: str | None = None,
    with_tensors: bool = True,
) -> list[FileDiff]:
    """Return what a commit changed against its first parent; all of it for a first commit.

    Raises:
        NotFoundError: no such revision.
    """
    scope = Scope(tuple(relative_paths(context, paths)), tensors, with_tensors)
    return diff_commit(context, revision, scope)


def diff_commit(context: Context, revision: str, scope: Scope | None = None) -> list[FileDiff]:
    """Compare a commit with its first parent, or with nothing if it has none."""
    info = context.history.read_commit(context.history.resolve(revision))
    before = _tree_sides(tree_of(context, info.parents[0] if info.parents else None))
    return _compare(context, before, _tree_sides(tree_of(context, info.id)), scope or Scope())


def _commit_sides(context: Context, revision: str | None) -> dict[str, FileSide]:
    if revision is None:
        return _tree_sides(head_tree(context))
    return _tree_sides(context.history.read_tree(context.history.resolve(revision)))


def _tree_sides(tree: Mapping[str, TreeEntry]) -> dict[str, FileSide]:
    return {path: FileSide(entry.mode, entry.blob) for path, entry in tree.items()}


def _worktree_sides(
    context: Context,
    index: Index,
    entries: Mapping[str, FileSide],
    before: Mapping[str, FileSide],
    scope: Scope,
) -> dict[str, FileSide]:
    """Return the tracked files of the worktree; those that changed are hashed if that is needed."""
    sides: dict[str, FileSide] = {}
    for path in filter_paths(scope.paths, entries):
        entry, stat = index.entries[path], find_file_stat(context.worktree, path)
        if stat is None or not (stat.is_regular or stat.is_symlink):
            if entry.skip_worktree:
                sides[path] = entries[path]
        elif is_clean(context, index, entry, stat):
            sides[path] = entries[path]
        elif path in before and not scope.with_tensors:
            known = before[path]
            is_same = known != entries[path] and holds(context, index, path, known.mode, known.blob)
            sides[path] = known if is_same else FileSide(git_mode(stat), NO_ID)
        else:
            from mvc.progress import announce  # noqa: PLC0415  few comparisons need it
            from mvc.workspace.files import hash_file  # noqa: PLC0415  brings every file format

            announce(stat.size_bytes)
            hashed = hash_file(context, path)
            sides[path] = FileSide(hashed.mode, hashed.blob, hashed.manifest, hashed.size_bytes)
    return sides


def _compare(
    context: Context, before: Mapping[str, FileSide], after: Mapping[str, FileSide], scope: Scope
) -> list[FileDiff]:
    """Compare two sides path by path; a file that moved unchanged was renamed."""
    chosen = filter_paths(scope.paths, {*before, *after})
    changed = [path for path in chosen if before.get(path) != after.get(path)]
    gone = {path: before[path].blob for path in changed if path not in after}
    came = ((path, after[path].blob) for path in changed if path not in before)
    renamed = pair_renames(gone, came)
    compare = partial(compare_file, context, with_tensors=scope.with_tensors)
    compared: list[FileDiff] = []
    for path in changed:
        old_path = renamed.get(path, path)
        if path in after:
            new, old = after[path], before.get(old_path)
            compared.append(compare(old_path, path, old, new))
    compared.extend(
        compare(path, path, before[path], None) for path in gone.keys() - renamed.values()
    )
    compared.sort(key=lambda file: file.path)
    if scope.with_tensors:
        compared = _find_moved(context, compared, before, after)
    return compared if scope.tensors is None else _only_tensors(compared, scope.tensors)


def _find_moved(
    context: Context,
    files: Sequence[FileDiff],
    before: Mapping[str, FileSide],
    after: Mapping[str, FileSide],
) -> list[FileDiff]:
    """Leave out the tensors that only moved to other files, and count them."""
    from mvc.operations.tensor_diff import by_name, pair_moved  # noqa: PLC0415  names need none

    changes = {file.path: file.tensors for file in files if file.tensors}
    changes, moved = pair_moved(
        changes,
        lambda path: by_name(find_manifest_of(context, before[path])),
        lambda path: by_name(find_manifest_of(context, after[path])),
    )
    return [
        replace(
            file,
            tensors=changes.get(file.path, ()),
            moved_from=tuple((old, n) for (old, new), n in moved.items() if new == file.path),
            moved_to=tuple((new, n) for (old, new), n in moved.items() if old == file.path),
        )
        for file in files
    ]


def _only_tensors(files: Iterable[FileDiff], pattern: str) -> list[FileDiff]:
    from mvc.tensor_names import takes  # noqa: PLC0415  names of files need none

    matching: list[FileDiff] = []
    for file in files:
        kept = tuple(
            tensor
            for tensor in file.tensors
            if takes(pattern, tensor.name) or takes(pattern, tensor.old_name or "")
        )
        if kept:
            matching.append(
                FileDiff(
                    file.path,
                    file.status,
                    file.old_path,
                    file.format,
                    kept,
                    file.tensors_total,
                    size_bytes=file.size_bytes,
                )
            )
    return matching

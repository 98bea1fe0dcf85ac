"""rm: tracked files out of the index and out of the worktree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, UsageError
from mvc.fs import remove_empty_dirs, remove_file
from mvc.workspace.pathspec import is_wildcard, select_paths
from mvc.workspace.recorded import head_tree, is_clean, update_index
from mvc.workspace.recovery import recover
from mvc.workspace.worktree import find_file_stat, relative_paths

if TYPE_CHECKING:
    from mvc.history.values import Index
    from mvc.workspace.context import Context
    from mvc.workspace.worktree import Paths


def remove(
    context: Context,
    paths: Paths,
    *,
    cached: bool = False,
    force: bool = False,
    recursive: bool = False,
) -> tuple[str, ...]:
    """Untrack files and delete them; return their paths.

    Args:
        paths: files, wildcards, or (``recursive``) folders.
        cached: keep the files on disk.
        force: even if they have changes that no commit holds.
        recursive: allow folders.

    Raises:
        NotFoundError: a path is not tracked.
        ConflictError: changes would be lost, and not ``force``.
        UsageError: a folder, and not ``recursive``.
    """
    patterns = relative_paths(context, paths)
    if not patterns:
        raise UsageError("no path to remove")
    recover(context)
    index = context.history.read_index()
    tracked = {**index.entries, **index.unmerged}
    chosen = select_paths(patterns, list(tracked))
    if not recursive:
        for pattern in patterns:
            if pattern not in tracked and not is_wildcard(pattern):
                raise UsageError(
                    f"{pattern or '.'!r} is a folder", hint="`recursive` removes all files in it"
                )
    if not force:
        _check_committed(context, index, chosen, cached=cached)
    # The index first: a crash then leaves untracked files, not tracked ones that are gone.
    update_index(context, {}, chosen)
    if not cached:
        _remove_files(context, chosen)
    return tuple(chosen)


def _remove_files(context: Context, paths: Sequence[str]) -> None:
    stats = {path: find_file_stat(context.worktree, path) for path in paths}
    targets = [
        context.worktree / path for path, stat in stats.items() if stat and not stat.is_directory
    ]
    remove_file(*targets)
    for folder in {target.parent for target in targets}:
        remove_empty_dirs(folder, context.worktree)


def _check_committed(context: Context, index: Index, paths: Sequence[str], *, cached: bool) -> None:
    committed = head_tree(context)
    for path in paths:
        if path in index.unmerged:
            continue  # as in Git: that decides it
        entry, kept = index.entries[path], committed.get(path)
        stat = find_file_stat(context.worktree, path)
        is_there = stat is not None and not stat.is_directory
        staged = kept != entry.version
        changed = is_there and stat is not None and not is_clean(context, index, entry, stat)
        if (staged and changed) or (not cached and (staged or changed)):
            raise ConflictError(
                f"{path!r} has changes that no commit holds",
                hint="commit it, keep the file with `cached`, or discard the changes with `force`",
            )

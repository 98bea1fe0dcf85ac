"""mv: tracked files or folders under another name. Everything is checked before anything moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, NotFoundError, UsageError
from mvc.fs import fsync_dir, make_dirs, remove_empty_dirs, replace_staged
from mvc.history.names import find_path_fault
from mvc.workspace.context import Context, holds_sweep_lock
from mvc.workspace.recorded import make_entry, update_index
from mvc.workspace.recovery import recover
from mvc.workspace.worktree import check_parents, find_file_stat, relative_paths

if TYPE_CHECKING:
    from mvc.history.values import Index, IndexEntry
    from mvc.workspace.worktree import Paths, StrPath


@dataclass(frozen=True, slots=True)
class _Rename:
    """One file or folder to rename, and the tracked paths that change with it.

    ``on_disk`` is false if the files were committed from memory and never checked out.
    """

    source: str
    place: str
    paths: tuple[tuple[str, str], ...]
    on_disk: bool


@holds_sweep_lock
def move(
    context: Context, sources: Paths, target: StrPath, *, force: bool = False
) -> tuple[tuple[str, str], ...]:
    """Rename tracked files or folders; return an (old, new) pair for each tracked path.

    Args:
        sources: tracked files or folders.
        target: the new name, or an existing folder to move them into.
        force: replace a file that has the new name.

    Raises:
        NotFoundError: a source is not tracked, or missing.
        ConflictError: the target exists, and not ``force``.
        UsageError: an impossible target, or sources that contain each other.
    """
    names, (into_path,) = relative_paths(context, sources), relative_paths(context, target)
    if not names:
        raise UsageError("nothing to move")
    recover(context)
    index = context.history.read_index()
    into = find_file_stat(context.worktree, into_path) if into_path else None
    is_folder = not into_path or (into is not None and into.is_directory)
    if len(names) > 1 and not is_folder:
        raise UsageError(f"{into_path!r} is not a folder")
    renames: list[_Rename] = []
    for source in names:
        name = source.rpartition("/")[2]
        place = (f"{into_path}/{name}" if into_path else name) if is_folder else into_path
        renames.append(_plan_rename(context, index, source, place, force=force))
    _check_apart(renames)
    return _run(context, index, renames)


def _plan_rename(
    context: Context, index: Index, source: str, place: str, *, force: bool
) -> _Rename:
    below = source + "/"
    tracked = [path for path in index.entries if path == source or path.startswith(below)]
    if not tracked:
        raise NotFoundError(f"path {source!r} is not tracked", hint='"mvc add" it first')
    if place == source or place.startswith(below):
        raise UsageError(f"cannot move {source!r} into itself")
    is_folder = source not in index.entries
    on_disk = _is_on_disk(context, index, source, tracked)
    paths = tuple((path, place + path.removeprefix(source)) for path in tracked)
    _check_place(context, index, place, force=force, is_folder=is_folder and on_disk)
    for _, new in paths:
        fault = find_path_fault(new)
        if fault is not None:
            raise UsageError(f"path {new[:200]!r} {fault}")
    for old, new in paths:
        if old.endswith(".shards") and not index.entries[old].skip_worktree:
            from mvc.operations.data_places import check_root  # noqa: PLC0415  few files are maps

            check_root(context, old, new, (source, place))
    return _Rename(source, place, paths, on_disk)


def _check_place(
    context: Context, index: Index, place: str, *, force: bool, is_folder: bool
) -> None:
    check_parents(context.worktree, place)
    stat = find_file_stat(context.worktree, place)
    if stat is not None and (stat.is_directory or not force):
        hint = "move it away" if stat.is_directory else "`force` replaces it"
        raise ConflictError(f"{place!r} already exists", hint=hint)
    if stat is not None and is_folder:
        raise ConflictError(f"{place!r} is a file, which a folder cannot replace")
    if place in index.entries and not force:
        raise ConflictError(f"{place!r} is already tracked", hint="`force` replaces it")


def _is_on_disk(context: Context, index: Index, source: str, tracked: Sequence[str]) -> bool:
    """Return whether a source is in the worktree, as the kind of thing that is tracked."""
    wanted = [(path, False) for path in tracked if not index.entries[path].skip_worktree]
    is_something = find_file_stat(context.worktree, source) is not None
    if is_something:  # but perhaps something else of that name
        wanted.append((source, source not in index.entries))
    for path, is_folder in wanted:
        stat = find_file_stat(context.worktree, path)
        if stat is None or stat.is_directory != is_folder:
            hint = '"mvc add" records what was moved by hand'
            raise NotFoundError(f"path {path!r} does not exist", hint=hint)
    return is_something


def _check_apart(renames: Sequence[_Rename]) -> None:
    sources = {rename.source for rename in renames}
    places = {rename.place for rename in renames}
    if len(sources) < len(renames) or len(places) < len(renames):
        raise UsageError("two of the paths would get the same name")
    for one in sources:
        if any(other.startswith(one + "/") for other in sources):
            raise UsageError(f"{one!r} contains another path to move")


def _run(context: Context, index: Index, renames: Sequence[_Rename]) -> tuple[tuple[str, str], ...]:
    """Rename, then put what was renamed into the index, even if a later rename fails."""
    entries: dict[str, IndexEntry] = {}
    done: list[tuple[str, str]] = []
    try:
        for rename in renames:
            # Asked before the rename: afterwards nothing is left to compare.
            clean = set[str]()
            for old, _ in rename.paths:
                entry, stat = index.entries[old], find_file_stat(context.worktree, old)
                if stat is not None and entry.matches(stat) and not index.is_racy(entry):
                    clean.add(old)
            if rename.on_disk:
                _rename_on_disk(context, rename)
            for old, new in rename.paths:
                stat = find_file_stat(context.worktree, new) if old in clean else None
                entry = index.entries[old]
                # A rename changes the ctime: with the old one, status would read the file again.
                entries[new] = (
                    replace(entry, path=new)
                    if stat is None
                    else make_entry(new, entry.mode, entry.blob, stat)
                )
            done.extend(rename.paths)
    finally:
        if done:
            update_index(context, entries, [old for old, _ in done])
    return tuple(done)


def _rename_on_disk(context: Context, rename: _Rename) -> None:
    check_parents(context.worktree, rename.place)
    source, place = context.worktree / rename.source, context.worktree / rename.place
    make_dirs(place.parent)
    replace_staged(source, place)
    fsync_dir(place.parent)
    if source.parent != place.parent:
        fsync_dir(source.parent)
    remove_empty_dirs(source.parent, context.worktree)

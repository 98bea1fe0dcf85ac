"""Taking the worktree, the index and HEAD from one state to another, all or nothing.

    plan ──► stage every new file beside the repository, durable
         ──► write a journal of all that is to happen, durable      ← the point of no return
         ──► apply: remove, rename into place, index, HEAD
         ──► remove the journal

A crash before the journal leaves the old state and a scratch folder; a crash after it leaves a
journal, and ``recover`` applies it again before anything else looks at the worktree. Applying is
idempotent: a step already done is recognised and passed over. A file that the user changed
between crash and recovery is left alone and shows as modified.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import msgspec

from mvc.errors import ConflictError, CorruptionError, FormatError
from mvc.fs import (
    FileStat,
    find_stat,
    fsync_dir,
    make_dirs,
    remove_empty_dirs,
    remove_file,
    replace_staged,
    write_durable,
)
from mvc.history.values import Identity, Index, IndexEntry
from mvc.ids import GitId
from mvc.operations.files import stage_file
from mvc.operations.staging import staging_folder, sync_staged
from mvc.operations.worktree import check_parents

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mvc.operations.context import Context

JOURNAL_NAME = "transition.json"
_VERSION = 1


class Was(msgspec.Struct, frozen=True):
    """The stat of a file before the transition; a file that looks otherwise is the user's.

    Not its inode: a repository that was copied or restored after a crash has others.
    """

    size_bytes: int
    mtime_ns: int


class FileWrite(msgspec.Struct, frozen=True):
    """One file to put in place; ``staged`` is where its durable bytes wait.

    ``into_index`` false leaves the index entry alone (``restore --source`` of Git).
    """

    path: str
    mode: int
    blob: str
    into_index: bool = True
    staged: str = ""
    staged_mark: Was | None = None
    was: Was | None = None


class FileRemoval(msgspec.Struct, frozen=True):
    """One file to take away."""

    path: str
    was: Was | None = None


class EntryChange(msgspec.Struct, frozen=True):
    """One index entry to set without touching a file; blob None drops the entry."""

    path: str
    mode: int = 0
    blob: str | None = None
    skip_worktree: bool = False


class HeadMove(msgspec.Struct, frozen=True):
    """Where HEAD goes: onto a branch, detached onto a commit, or its branch moves to a commit."""

    kind: str  # "branch", "detach" or "move"
    target: str
    expected: str | None
    message: str
    name: str
    email: str


class Transition(msgspec.Struct, frozen=True):
    """Everything that is to happen, in the order in which it happens."""

    writes: tuple[FileWrite, ...] = ()
    removals: tuple[FileRemoval, ...] = ()
    entries: tuple[EntryChange, ...] = ()
    head: HeadMove | None = None
    version: int = _VERSION


_DECODER = msgspec.json.Decoder(Transition)


def stat_mark(stat: FileStat | None) -> Was | None:
    """Return what is remembered of a file before it is replaced."""
    return None if stat is None else Was(stat.size_bytes, stat.mtime_ns)


def run(
    context: Context,
    transition: Transition,
    index: Index,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Carry out a transition that was planned against ``index``.

    Raises:
        ConflictError: the index or HEAD moved since the plan was made; nothing was changed.
        CorruptionError: a file to write is damaged in the store; nothing was changed.
    """
    with staging_folder(context.git_dir) as folder:
        staged = _stage(context, transition.writes, folder, progress)
        ready = msgspec.structs.replace(transition, writes=staged)
        with context.history.lock():
            _check_unmoved(context, ready, index)
            write_durable(_journal(context), [msgspec.json.encode(ready)])
            _apply(context, ready)


def recover(context: Context) -> bool:
    """Finish a transition that a crash interrupted; tell whether there was one.

    Raises:
        CorruptionError: the journal itself is damaged.
    """
    journal = _journal(context)
    if not journal.exists():
        return False
    with context.history.lock():
        try:
            transition = _DECODER.decode(journal.read_bytes())
        except FileNotFoundError:
            return False  # the process that wrote it was alive and has finished
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CorruptionError(
                f"the journal of an interrupted checkout is damaged: {error}",
                hint=f'remove {journal} and run "mvc status"',
            ) from error
        _apply(context, transition)
    return True


def _journal(context: Context) -> Path:
    return context.git_dir / JOURNAL_NAME


def _stage(
    context: Context,
    writes: Sequence[FileWrite],
    folder: Path,
    progress: Callable[[int], None] | None,
) -> tuple[FileWrite, ...]:
    staged: list[FileWrite] = []
    for write in writes:
        place = _staging_place(context, write.path, folder)
        path = stage_file(context, write.path, write.mode, GitId(write.blob), place, progress)
        if place != folder:
            fsync_dir(place)
        mark = stat_mark(find_stat(path))
        # Relative, so that a repository that was moved after a crash still finds it.
        name = path.relative_to(context.worktree).as_posix()
        staged.append(msgspec.structs.replace(write, staged=name, staged_mark=mark))
    sync_staged(folder)
    return tuple(staged)


def _staging_place(context: Context, path: str, folder: Path) -> Path:
    """Return the staging folder, or one beside the target where that is another file system."""
    parent = (context.worktree / path).parent
    while not parent.is_dir():
        parent = parent.parent
    same_device = parent.stat().st_dev == folder.stat().st_dev
    return folder if same_device else parent


def _check_unmoved(context: Context, transition: Transition, planned: Index) -> None:
    current = context.history.read_index()
    touched = (
        *(write.path for write in transition.writes),
        *(removal.path for removal in transition.removals),
        *(entry.path for entry in transition.entries),
    )
    for path in touched:
        before, after = planned.entries.get(path), current.entries.get(path)
        if (before and (before.blob, before.mode)) != (after and (after.blob, after.mode)):
            raise ConflictError(f"{path!r} was staged by another process", hint="try again")
    head = transition.head
    if head is not None and head.expected != context.history.head().commit:
        raise ConflictError("HEAD moved while files were prepared", hint="try again")
    for write in transition.writes:
        _check_still(context, write.path, write.was)
        check_parents_after(context, write.path, transition.removals)
    for removal in transition.removals:
        _check_still(context, removal.path, removal.was)


def _check_still(context: Context, path: str, was: Was | None) -> None:
    stat = find_stat(context.worktree / path)
    if stat is not None and stat.is_directory:
        return  # emptied by the removals; renaming onto a filled folder fails on its own
    if stat_mark(stat) != was:
        raise ConflictError(
            f"{path!r} changed while files were prepared", hint="try again, or commit it first"
        )


def check_parents_after(context: Context, path: str, removals: Sequence[FileRemoval]) -> None:
    """Check that the folders above a path are real ones, once the removals are done."""
    removed = {removal.path for removal in removals}
    parents = path.split("/")[:-1]
    if any("/".join(parents[: depth + 1]) in removed for depth in range(len(parents))):
        return
    check_parents(context.worktree, path)


def _apply(context: Context, transition: Transition) -> None:
    if transition.version != _VERSION:
        raise FormatError(f"journal of version {transition.version}", hint="upgrade mvc")
    for removal in transition.removals:
        _remove(context, removal)
    folders = {_put(context, write) for write in transition.writes}
    for folder in sorted(folder for folder in folders if folder is not None):
        fsync_dir(folder)
    _apply_index(context, transition)
    if transition.head is not None:
        _apply_head(context, transition.head)
    remove_file(_journal(context))


def _remove(context: Context, removal: FileRemoval) -> None:
    target = context.worktree / removal.path
    stat = find_stat(target)
    if stat is None or stat.is_directory or stat_mark(stat) != removal.was:
        return
    remove_file(target)
    remove_empty_dirs(target.parent, context.worktree)


def _put(context: Context, write: FileWrite) -> Path | None:
    target, staged = context.worktree / write.path, context.worktree / write.staged
    if find_stat(staged) is None:
        return None  # renamed before the crash
    stat = find_stat(target)
    if stat is not None and stat.is_directory:
        with contextlib.suppress(OSError):
            _remove_empty_tree(target)
        stat = find_stat(target)
    if stat is not None and stat_mark(stat) != write.was:
        return None
    check_parents(context.worktree, write.path)
    make_dirs(target.parent)
    replace_staged(staged, target)
    return target.parent


def _remove_empty_tree(folder: Path) -> None:
    for root, folders, _ in os.walk(folder, topdown=False):
        for name in folders:
            os.rmdir(os.path.join(root, name))
    folder.rmdir()


def _apply_index(context: Context, transition: Transition) -> None:
    index = context.history.read_index()
    entries = dict(index.entries)
    for removal in transition.removals:
        entries.pop(removal.path, None)
    for change in transition.entries:
        if change.blob is None:
            entries.pop(change.path, None)
        else:
            entries[change.path] = _entry_without_stat(change)
    for write in transition.writes:
        if not write.into_index:
            continue
        stat = find_stat(context.worktree / write.path)
        if stat_mark(stat) != write.staged_mark:
            stat = None  # the user's own file is there: let status compare the content
        entries[write.path] = make_entry(write.path, write.mode, GitId(write.blob), stat)
    context.history.write_index(Index(entries))


def make_entry(path: str, mode: int, blob: GitId, stat: FileStat | None) -> IndexEntry:
    """Return the index entry of a file that was just written or read."""
    if stat is None:
        return _entry_without_stat(EntryChange(path, mode, blob))
    return IndexEntry(
        path=path,
        blob=blob,
        mode=mode,
        size_bytes=stat.size_bytes,
        mtime_ns=stat.mtime_ns,
        ctime_ns=stat.ctime_ns,
        inode=stat.inode,
        device=stat.device,
    )


def _entry_without_stat(change: EntryChange) -> IndexEntry:
    return IndexEntry(
        path=change.path,
        blob=GitId(change.blob or ""),
        mode=change.mode,
        size_bytes=0,
        mtime_ns=0,
        ctime_ns=0,
        inode=0,
        device=0,
        skip_worktree=change.skip_worktree,
    )


def _apply_head(context: Context, move: HeadMove) -> None:
    history, who = context.history, Identity(move.name, move.email)
    if move.kind == "branch":
        history.set_head_branch(move.target, message=move.message, who=who)
    elif move.kind == "detach":
        history.detach_head(GitId(move.target), message=move.message, who=who)
    elif history.head().commit != move.target:
        expected = None if move.expected is None else GitId(move.expected)
        history.update_head(GitId(move.target), expected=expected, message=move.message, who=who)

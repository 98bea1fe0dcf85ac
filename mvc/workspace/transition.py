"""Taking the worktree, the index and HEAD from one state to another, all or nothing.

    plan ──► stage every new file next to the repository, durable
         ──► write a journal of all that is to happen, durable      ← the point of no return
         ──► apply: remove, rename into place, index, HEAD
         ──► remove the journal

A crash before the journal leaves the old state and a scratch folder; a crash after it leaves a
journal, and ``finish`` applies it again before anything else looks at the worktree. Applying is
idempotent: a step already done is recognised and skipped. A file that the user changed between crash
and recovery is left alone and shows as modified.

Only a failing machine can stop ``apply`` half-way, and then the journal waits as after a crash. A
full disk must not: the space that index and refs will take is reserved first.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from mvc.errors import (
    ConflictError,
    CorruptionError,
    FormatError,
    NotFoundError,
    UsageError,
    translate_os_errors,
)
from mvc.fs import (
    find_stat,
    fsync_dir,
    make_dirs,
    remove_empty_dirs,
    remove_file,
    replace_staged,
    reserve_space,
    write_durable,
)
from mvc.history.locks import check_git_lock
from mvc.history.names import HEADS
from mvc.history.values import Head, Identity, Index, IndexEntry, Stamp
from mvc.ids import GitId
from mvc.workspace.content import content_matches
from mvc.workspace.context import JOURNAL_NAME, Context
from mvc.workspace.journal import (
    FileRemoval,
    FileWrite,
    HeadMove,
    Transition,
    Was,
    encode_journal,
    read_journal,
)
from mvc.workspace.recorded import drop_clashing, make_entry
from mvc.workspace.staging import stage_all, staging_folder, stat_mark, sweep
from mvc.workspace.worktree import check_parents, find_file_stat, find_obstacle, folders_above

if TYPE_CHECKING:
    from pathlib import Path


_RESERVE_NAME = "reserve.mvc-tmp"
_RESERVE_BYTES = 2**17
_BLOCK_BYTES = 4096
_INDEX_ENTRY_BYTES = 80


def plan_head_move(
    kind: str,
    target: str,
    head: Head,
    message: str,
    stamp: Stamp,
    *,
    branch_at: GitId | None = None,
) -> HeadMove:
    """Return a move of HEAD from where it is now."""
    who = stamp.identity
    return HeadMove(kind, target, head.branch, head.commit, message, who.name, who.email, branch_at)


def plan_switch(
    branch: str | None, commit: GitId, head: Head, message: str, stamp: Stamp
) -> HeadMove:
    """Return a move of HEAD to a branch that is at ``commit``, or to the commit alone."""
    if branch is None:
        return plan_head_move("detach", commit, head, message, stamp)
    return plan_head_move("branch", branch, head, message, stamp, branch_at=commit)


def head_moved() -> ConflictError:
    """Return the error for a move of HEAD between plan and execution."""
    return ConflictError("HEAD moved while this was prepared", hint="try again")


def run(
    context: Context,
    transition: Transition,
    index: Index,
    *,
    before: Callable[[], None] | None = None,
) -> None:
    """Carry out a transition that was planned against ``index``.

    If it raises, nothing was changed, or the machine failed and the journal waits. ``before`` is
    called under the repository's lock once nothing is in the way; what it makes durable precedes
    everything of the transition.
    """
    with contextlib.ExitStack() as stack:
        ready = transition
        if transition.writes:
            with context.history.lock():
                finish(context)
                sweep(context.git_dir)
                folder = stack.enter_context(staging_folder(context.git_dir))
            writes = stage_all(context, transition.writes, folder, stack)
            ready = msgspec.structs.replace(transition, writes=writes)
        with context.history.lock():
            finish(context)  # for a process that died while files were staged here
            _check_unmoved(context, ready, index)
            _check_unlocked(context, ready)
            if before is not None:
                before()
            _write_journal(context, ready, _space_bytes(ready, index))
            _apply(context, ready)
            sweep(context.git_dir)


def _write_journal(context: Context, transition: Transition, space_bytes: int) -> None:
    """Write the journal once there is space for all that follows, or leave none."""
    journal, reserve = _journal(context), context.git_dir / _RESERVE_NAME
    reserve_space(reserve, space_bytes)
    try:
        write_durable(journal, [encode_journal(transition)])
    except BaseException:
        with contextlib.suppress(OSError):  # it may be in place, but nothing of it is done
            journal.unlink()
        raise
    finally:
        with contextlib.suppress(OSError):  # the next transition reuses it
            reserve.unlink()


def finish(context: Context) -> bool:
    """Finish a transition that a crash interrupted; return whether there was one."""
    journal = _journal(context)
    if find_stat(journal) is None:
        return False
    with context.history.lock(), contextlib.ExitStack() as stack:
        transition = read_journal(journal)
        if transition is None:
            return False  # the process that wrote it was alive and has finished it
        scratch = cache(lambda: stack.enter_context(staging_folder(context.git_dir)))
        try:
            writes = tuple(_sound_write(context, write, scratch) for write in transition.writes)
            _apply(context, msgspec.structs.replace(transition, writes=writes))
        except (FormatError, NotFoundError, UsageError) as error:
            raise CorruptionError(
                f"an interrupted checkout cannot be finished: {error.message}",
                hint='"mvc fsck --data" shows what is damaged; to abandon that checkout, '
                f'remove {journal}: "mvc status" then shows how far it got',
            ) from error
    return True


def _journal(context: Context) -> Path:
    return context.git_dir / JOURNAL_NAME


def _sound_write(context: Context, write: FileWrite, scratch: Callable[[], Path]) -> FileWrite:
    """Return a write with a staged file that holds what it should, if it is still needed."""
    target = stat_mark(find_file_stat(context.worktree, write.path))
    if target is not None and target != write.was:
        return write  # done before the crash, or changed by the user since: leave it alone
    staged = find_file_stat(context.worktree, write.staged)
    if staged is not None and content_matches(
        context, write.staged, staged, write.mode, GitId(write.blob)
    ):
        return write
    return stage_all(context, (write,), scratch())[0]


def _space_bytes(transition: Transition, index: Index) -> int:
    """Return how much space applying may need, generously."""
    paths = {*index.entries, *transition.paths()}
    folders = {write.path.rpartition("/")[0] for write in transition.writes}
    index_bytes = sum(_INDEX_ENTRY_BYTES + len(path.encode(errors="replace")) for path in paths)
    return index_bytes + _BLOCK_BYTES * len(folders) + _RESERVE_BYTES


def _check_unmoved(context: Context, transition: Transition, planned: Index) -> None:
    current = context.history.read_index()
    move, head = transition.head, context.history.head()
    if move is not None and (move.on_branch, move.expected) != (head.branch, head.commit):
        raise head_moved()
    if move is not None and move.kind == "branch":
        tip = context.history.find_ref(HEADS + move.target)
        if tip != move.branch_at:
            raise ConflictError(
                f"branch {move.target!r} moved while this was prepared", hint="try again"
            )
    for path in transition.paths():
        before, after = planned.entries.get(path), current.entries.get(path)
        if (before and (before.blob, before.mode)) != (after and (after.blob, after.mode)):
            raise ConflictError(f"{path!r} was staged by another process", hint="try again")
    removed = {removal.path for removal in transition.removals}
    for write in transition.writes:
        _check_still(context, write.path, write.was)
        if removed.isdisjoint(folders_above(write.path)):
            check_parents(context.worktree, write.path)
    for removal in transition.removals:
        _check_still(context, removal.path, removal.was)


def _check_unlocked(context: Context, transition: Transition) -> None:
    """Check that no Git process holds what applying is going to lock: the journal would wait for it."""
    move = transition.head
    names = ["index"] if transition.paths() else []
    if move is not None and move.kind != "stay":
        is_branch = move.kind == "move" and move.on_branch is not None
        names.append(f"{HEADS}{move.on_branch}" if is_branch else "HEAD")
    for name in names:
        check_git_lock(context.git_dir / name)


def _check_still(context: Context, path: str, was: Was | None) -> None:
    stat = find_file_stat(context.worktree, path)
    if stat is not None and stat.is_directory:
        return  # emptied by the removals; renaming onto a non-empty folder fails
    if stat_mark(stat) != was:
        raise ConflictError(
            f"{path!r} changed while files were prepared", hint="try again, or commit it first"
        )


def _apply(context: Context, transition: Transition) -> None:
    for removal in transition.removals:
        _remove(context, removal)
    for write in transition.writes:
        _put(context, write)
    _sync_folders(context, transition)
    if transition.paths():
        _apply_index(context, transition)
    if transition.head is not None:
        _apply_head(context, transition.head)
    for mark in transition.marks:
        path = context.git_dir / mark.name
        if mark.content is None:
            remove_file(path)
        else:
            make_dirs(path.parent)
            write_durable(path, [mark.content.encode("latin-1")])
    remove_file(_journal(context))


def _remove(context: Context, removal: FileRemoval) -> None:
    """Remove a file, and folders that this empties; ``_sync_folders`` makes it durable."""
    target = context.worktree / removal.path
    mark = stat_mark(find_file_stat(context.worktree, removal.path))
    if mark is None or mark != removal.was:
        return
    with translate_os_errors(f"remove {target}"):
        target.unlink(missing_ok=True)
    remove_empty_dirs(target.parent, context.worktree)


def _put(context: Context, write: FileWrite) -> None:
    """Rename a staged file into place, unless that is done or the user put something there."""
    target, staged = context.worktree / write.path, context.worktree / write.staged
    if find_file_stat(context.worktree, write.staged) is None:
        return
    if find_obstacle(context.worktree, write.path) is not None:
        return
    stat = find_stat(target)
    if stat is not None and stat.is_directory:
        with contextlib.suppress(OSError):
            for root, folders, _ in os.walk(target, topdown=False):
                for name in folders:
                    os.rmdir(os.path.join(root, name))
            target.rmdir()
        stat = find_stat(target)
    if stat is not None and (stat.is_directory or stat_mark(stat) != write.was):
        return
    make_dirs(target.parent)
    replace_staged(staged, target)


def _sync_folders(context: Context, transition: Transition) -> None:
    """Make all that this process, or one that died, has renamed and removed durable."""
    paths = [write.path for write in transition.writes]
    paths += [removal.path for removal in transition.removals]
    folders: set[Path] = set()
    for path in paths:
        parent = path.rpartition("/")[0]
        while parent and find_file_stat(context.worktree, parent) is None:
            parent = parent.rpartition("/")[0]  # removed with what was in it
        folders.add(context.worktree / parent)
    for folder in sorted(folders):
        if folder.is_dir():
            fsync_dir(folder)


def _apply_index(context: Context, transition: Transition) -> None:
    index = context.history.read_index()
    entries = dict(index.entries)
    for removal in transition.removals:
        if removal.from_index:
            entries.pop(removal.path, None)
    for change in transition.entries:
        if change.blob is None:
            entries.pop(change.path, None)
        else:
            blob = GitId(change.blob)
            entries[change.path] = IndexEntry(
                change.path, blob, change.mode, skip_worktree=change.skip_worktree
            )
    for write in transition.writes:
        if not write.into_index:
            continue
        stat = find_file_stat(context.worktree, write.path)
        if stat_mark(stat) != write.staged_mark:
            stat = None  # the user's own file is there: status has to compare the content
        entries[write.path] = make_entry(write.path, write.mode, GitId(write.blob), stat)
    placed = [write.path for write in transition.writes if write.into_index]
    placed += [change.path for change in transition.entries if change.blob is not None]
    drop_clashing(entries, placed)
    touched = set(transition.paths())
    unmerged = {path: it for path, it in index.unmerged.items() if path not in touched}
    for entry in transition.undecided:
        unmerged[entry.path] = entry.entries()
        entries.pop(entry.path, None)
    asleep = index.asleep | {entry.path for entry in transition.undecided if entry.asleep}
    context.history.write_index(Index(entries, unmerged=unmerged, asleep=asleep))


def _apply_head(context: Context, move: HeadMove) -> None:
    history, target = context.history, move.target
    stamp = Stamp.now(Identity(move.name, move.email))
    head = history.head()
    if (head.branch, head.commit) != (move.on_branch, move.expected):
        return  # moved before the crash, or by another process since
    if move.kind == "stay":
        return
    if move.kind == "branch":
        if history.find_ref(HEADS + target) is not None:
            history.set_head_branch(target, message=move.message, stamp=stamp)
    elif move.kind == "detach":
        history.detach_head(GitId(target), message=move.message, stamp=stamp)
    elif head.commit != target:
        history.update_head(GitId(target), expected=head.commit, message=move.message, stamp=stamp)

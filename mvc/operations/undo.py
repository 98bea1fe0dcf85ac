"""undo: take back the last move of HEAD or its branch, as the reflog records it.

What undoing means depends on the move:

    commit, amend           the branch moves; index and files stay, so the work is staged again
    checkout, switch        HEAD goes back to the branch or commit it came from
    merge, reset, others    the branch moves, index and files go with it

The last two carry local changes along like ``switch``, or refuse if those would be lost. No history
is ever lost: the commit that is left stays in the reflog.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, NotFoundError
from mvc.history.names import HEADS, TAGS
from mvc.ids import GitId, is_git_id
from mvc.operations.rollback import RollbackTrace, find_trace
from mvc.workspace.checkout_plan import CheckoutPlan, execute, plan_move
from mvc.workspace.pending import check_nothing_pending
from mvc.workspace.recovery import recover
from mvc.workspace.transition import head_moved, plan_head_move, plan_switch

if TYPE_CHECKING:
    from mvc.history.values import Head, ReflogEntry, Stamp
    from mvc.workspace.context import Context

_UNDO, _REDO = "undo: ", "redo: "
_DETACHED = " (detached)"
# A stock Git need not have written the files of its merge.
_COMMIT = re.compile(r"commit\b|merge (?!.*: (Merge made by mvc|Fast-forward))")


@dataclass(frozen=True, slots=True)
class UndoResult:
    """What an undo or redo did, or would do.

    ``action`` is in the words of the reflog; ``kind`` is ``commit``, ``switch`` or ``reset``. HEAD
    went from ``left_branch`` and ``left`` to ``branch`` and ``commit``: a branch is None if HEAD is
    detached, a commit is None before the first one. Files were ``written`` and ``removed``.
    ``diverged_branch`` went with the rollback that was undone, or came again with a redone one.
    ``tags`` were moved after HEAD was, and stay: undo is about HEAD.
    """

    action: str
    kind: str
    branch: str | None
    commit: GitId | None
    left_branch: str | None
    left: GitId | None
    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    diverged_branch: str | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Step:
    """A move of HEAD to make: onto a branch, or onto a commit, with the message it gets."""

    action: str
    kind: str
    branch: str | None
    commit: GitId | None
    message: str


def undo(
    context: Context, *, redo: bool = False, force: bool = False, dry_run: bool = False
) -> UndoResult:
    """Take back the last move of HEAD or its branch; call it again to step further back.

    After a commit, amend or merge the branch moves back and the work is staged again; after a
    switch HEAD returns to where it was; after a reset the branch, index and files return.

    Args:
        redo: redo what the last undo took back.
        force: discard local changes that are in the way.
        dry_run: only return what would be done.

    Raises:
        NotFoundError: there is nothing to undo or redo.
        ConflictError: local changes would be lost, and not ``force``; or the last move cannot
            be undone.
    """
    with contextlib.nullcontext() if dry_run else context.history.no_sweep():
        recover(context, dry_run=dry_run)
        return _undo(context, redo=redo, force=force, dry_run=dry_run)


def _undo(context: Context, *, redo: bool, force: bool, dry_run: bool) -> UndoResult:
    head = context.history.head()
    entries = context.history.read_reflog("HEAD")
    done, undone = _read_stacks(entries)
    if not force:
        check_nothing_pending(context)
    if entries:
        _check_place(head, entries[0])
    step = _plan_redo(context, head, undone) if redo else _plan_undo(context, head, done)
    stamp, trace = context.stamp(), None if dry_run else _find_trace(head, step, redo=redo)
    if step.commit is None:
        plan = CheckoutPlan()
        if not dry_run:
            _unmake_branch(context, head, step, stamp)
    else:
        before = None if trace is None or not redo else partial(trace.make, context, stamp)
        plan = _go(context, head, step, stamp, before, force=force, dry_run=dry_run)
    diverged = None
    if trace is not None:
        diverged = trace.find_branch(context) if redo else trace.remove(context, stamp)
    return UndoResult(
        action=step.action,
        kind=step.kind,
        branch=step.branch,
        commit=step.commit,
        left_branch=head.branch,
        left=head.commit,
        written=tuple(path for path, _ in plan.write),
        removed=plan.remove,
        diverged_branch=diverged,
        tags=() if redo or not entries else _find_moved_tags(context, entries[0].time_s),
    )


def _read_stacks(
    entries: Sequence[ReflogEntry],
) -> tuple[list[ReflogEntry], list[tuple[ReflogEntry, ReflogEntry]]]:
    """Return the moves that stand, and (move, its undo) of those that can be redone."""
    done: list[ReflogEntry] = []
    undone: list[tuple[ReflogEntry, ReflogEntry]] = []
    for entry in reversed(entries):
        text = entry.message
        if text.startswith(_UNDO):
            if done and text in _undo_texts(done[-1]):
                undone.append((done.pop(), entry))
        elif text.startswith(_REDO):
            if undone and text == _REDO + undone[-1][0].message:
                done.append(undone.pop()[0])
        else:
            before, after = entry.switch or (entry.old, entry.new)
            if before != after:  # a renamed branch changed nothing, a switch always does
                done.append(entry)
                undone.clear()
    return done, undone


def _undo_texts(move: ReflogEntry) -> tuple[str, str]:
    """Return what the undo of a move is called; the second is for an undo that left a detached HEAD."""
    return _UNDO + move.message, _UNDO + move.message + _DETACHED


def _find_moved_tags(context: Context, since_s: int) -> tuple[str, ...]:
    """Return the tags that were moved since, as a person may have meant those."""
    history = context.history
    logs = {
        ref: history.read_reflog(ref) for ref in history.list_refs(TAGS) if history.is_alias(ref)
    }
    return tuple(
        ref.removeprefix(TAGS)
        for ref, log in sorted(logs.items())
        if log and log[0].old is not None and log[0].time_s >= since_s
    )


def _find_trace(head: Head, step: _Step, *, redo: bool) -> RollbackTrace | None:
    """Return the trace of the rollback that a step takes back or makes again, if it does."""
    if head.branch is None or head.commit is None or step.commit is None:
        return None
    tip, target = (head.commit, step.commit) if redo else (step.commit, head.commit)
    return find_trace(head.branch, tip, target, step.action)


def _plan_undo(context: Context, head: Head, done: Sequence[ReflogEntry]) -> _Step:
    if not done:
        raise NotFoundError(
            "there is nothing to undo: the log of HEAD holds no earlier move",
            hint='"mvc reflog" lists what it holds',
        )
    move = done[-1]
    if move.switch is None:
        _check_place(head, move)
        return _move_step(context, head, move, move.old, _undo_texts(move)[0])
    source, _ = move.switch
    message = _undo_texts(move)[head.branch is None]
    tip = context.history.find_ref(HEADS + source)
    if tip is not None:
        return _Step(move.message, "switch", source, tip, message)
    if not is_git_id(source) or move.old is None:
        raise NotFoundError(
            f"HEAD came from branch {source!r}, which is gone",
            hint=f'"mvc branch {source} {move.old}" restores it' if move.old else None,
        )
    _check_exists(context, move.old)
    return _Step(move.message, "switch", None, move.old, message)


def _plan_redo(
    context: Context, head: Head, undone: Sequence[tuple[ReflogEntry, ReflogEntry]]
) -> _Step:
    if not undone:
        raise NotFoundError("there is nothing to redo: the last move was not an undo")
    move, taken_back = undone[-1]
    message = _REDO + move.message
    if move.switch is None:
        if head.commit != move.old:
            raise _moved(f"it was at {move.old} when {move.message!r} was undone")
        return _move_step(context, head, move, move.new, message)
    _, target = move.switch
    tip, left = context.history.find_ref(HEADS + target), taken_back.old
    if taken_back.message == _undo_texts(move)[1] and left is not None:
        _check_exists(context, left)
        return _Step(move.message, "switch", None, left, message)
    if tip is None:
        raise NotFoundError(
            f"branch {target!r} is gone", hint=f'"mvc branch {target} {left}" restores it'
        )
    return _Step(move.message, "switch", target, tip, message)


def _check_place(head: Head, entry: ReflogEntry) -> None:
    if head.commit != entry.new:
        raise _moved(f"{entry.message!r} left it at {entry.new or 'no commit'}")


def _moved(fact: str) -> ConflictError:
    return ConflictError(
        f"HEAD is not where its log says: {fact}",
        hint='"mvc reflog" lists where it was; "mvc reset" goes there',
    )


def _move_step(
    context: Context, head: Head, move: ReflogEntry, target: GitId | None, message: str
) -> _Step:
    """Return the move of HEAD's branch (or detached HEAD) to one end of a logged move."""
    kind = "commit" if _COMMIT.match(move.message) else "reset"
    if target is not None:
        _check_exists(context, target)
    elif head.branch is None:
        raise ConflictError(
            f"{move.message!r} made the first commit, and HEAD is no longer on a branch",
            hint='"mvc switch" to one first',
        )
    return _Step(move.message, kind, head.branch, target, message)


def _check_exists(context: Context, commit: GitId) -> None:
    if not context.history.has_object(commit):
        raise NotFoundError(
            f"commit {commit} no longer exists", hint='"mvc gc" or stock Git has removed it'
        )


def _go(
    context: Context,
    head: Head,
    step: _Step,
    stamp: Stamp,
    before: Callable[[], None] | None,
    *,
    force: bool,
    dry_run: bool,
) -> CheckoutPlan:
    """Move HEAD, with index and files unless the move made a commit; return what that took."""
    assert step.commit is not None
    index, plan = context.history.read_index(), CheckoutPlan()
    if step.kind != "commit":
        is_switch = step.kind == "switch"
        plan = plan_move(
            context, index, head.commit, step.commit, force=force, materialise=is_switch
        )
    if dry_run:
        plan.check()
        return plan
    if step.kind != "switch":
        move = plan_head_move("move", step.commit, head, step.message, stamp)
    else:
        move = plan_switch(step.branch, step.commit, head, step.message, stamp)
    execute(context, plan, index, move, before=before)
    return plan


def _unmake_branch(context: Context, head: Head, step: _Step, stamp: Stamp) -> None:
    """Undo the first commit of all: its branch is again one without a commit."""
    assert head.branch is not None
    assert head.commit is not None
    with context.history.lock():
        if context.history.head() != head:
            raise head_moved()
        context.history.delete_ref(
            HEADS + head.branch, expected=head.commit, message=step.message, stamp=stamp
        )

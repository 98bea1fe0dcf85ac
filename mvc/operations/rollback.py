"""rollback: a branch goes back to an earlier commit; what it leaves stays for inspection.

    plan   one way to say the target ──► the commit, and what is abandoned
    run    ``diverged/<branch>/<step>`` on the tip, durable
           ──► a note on the tip: why, and where the branch went, durable
           ──► the branch moves by compare-and-swap; HEAD, index and files too, if HEAD is on it

History is never rewritten: the abandoned commits keep their ids and their content (``prune`` spares
``diverged/``), and ``undo`` brings the branch back. A crash before the last step leaves a branch too
many, never a commit too few.

Undoing a rollback takes away what it made, and redoing makes it again:

    undo   the branch is back at the tip ──► the note's paragraph goes ──► the diverged branch goes
    redo   both are made again, as by the rollback ──► the branch leaves the tip

So something names the abandoned tip at every moment. A branch that has moved since, or that
something else made, stays.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, FormatError, UsageError
from mvc.history.names import HEADS
from mvc.upkeep.retention import DIVERGED
from mvc.workspace.checkout_plan import execute, plan_move
from mvc.workspace.context import Context, holds_sweep_lock
from mvc.workspace.notebook import one_line
from mvc.workspace.recovery import recover
from mvc.workspace.rollback_target import ROLLBACK_COMMAND, SHORT_ID, BranchLine, check_whole
from mvc.workspace.trailers import check_steps, read_annotations
from mvc.workspace.transition import head_moved, plan_head_move
from mvc.workspace.verdicts import (
    DIVERGED_REF,
    DIVERGENCES,
    Divergence,
    add_divergence,
    parse_divergences,
)

if TYPE_CHECKING:
    from mvc.history.values import Head, Stamp
    from mvc.ids import GitId

_ROLLBACK = re.compile(r"rollback: to [0-9a-f]{7,40}(?: \(step [0-9]+\))?(?:: (.*))?")
_UNDONE = re.compile(
    r"the rollback from commit ([0-9a-f]{40}) was undone(?: \(at step ([0-9]{1,18})\))?"
)


@dataclass(frozen=True, slots=True)
class RollbackPlan:
    """Where a branch would go back to, and what it would leave.

    Attributes:
        branch: the branch.
        tip: where it is; the plan holds only as long as it is there.
        target: where it would go; the tip itself if there is nothing to do.
        tip_step: training step of the tip, or None.
        target_step: training step of the target, or None.
        choice: how the target was found, for people.
        abandoned: how many commits the tip reaches and the target does not.
        diverged_branch: the branch that would keep them; None if there is nothing to do.
        at_step: the step at which the trouble was seen, or None.
    """

    branch: str
    tip: GitId
    target: GitId
    tip_step: int | None
    target_step: int | None
    choice: str
    abandoned: int
    diverged_branch: str | None
    at_step: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the branch is there already."""
        return self.target == self.tip


@dataclass(frozen=True, slots=True)
class RollbackResult:
    """What a rollback did: ``branch`` went from ``left`` to ``commit``.

    ``diverged_branch`` keeps the commits that were ``abandoned`` (so many); it is None if there was
    nothing to do. Files were ``written`` and ``removed`` on the way.
    """

    branch: str
    commit: GitId
    left: GitId
    diverged_branch: str | None
    abandoned: int
    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def plan_rollback(
    context: Context,
    revision: str | None = None,
    *,
    step: int | None = None,
    steps_back: int | None = None,
    healthy: bool = False,
    branch: str | None = None,
    at_step: int | None = None,
) -> RollbackPlan:
    """Return where a branch would roll back to, and what it would leave; nothing is changed.

    Name the target in one way; without any, it is the newest healthy commit. Unless it is
    named by revision, commits whose content was released are skipped.

    Args:
        revision: this commit.
        step: the commit of this training step, or else the newest one before it.
        steps_back: the newest commit at least this many steps before the tip.
        healthy: the newest commit below the tip that ``mark_healthy`` marked.
        branch: the branch to move; defaults to the current one.
        at_step: the step at which the trouble was seen, which names the branch that keeps the
            abandoned commits; defaults to the step of the tip.

    Raises:
        UsageError: more than one way, a negative number, or no branch while HEAD is detached.
        NotFoundError: no such branch or revision, or no commit that fits.
        ConflictError: the revision is not an ancestor of the branch.
    """
    ways = (revision is not None, step is not None, steps_back is not None, healthy)
    if sum(ways) > 1:
        raise UsageError(
            "a rollback has one target: a revision, a step, a number of steps back or healthy"
        )
    at_step = None if at_step is None else check_steps("at_step", at_step)
    line = BranchLine.find(context, branch)
    if revision is not None:
        target, choice = line.find_ancestor(revision)
    elif step is not None:
        target, choice = line.find_step(check_steps("step", step))
    elif steps_back is not None:
        target, choice = line.find_back(check_steps("steps_back", steps_back))
    else:
        target, choice = line.find_healthy()
    plan = RollbackPlan(
        branch=line.name,
        tip=line.tip.id,
        target=target.id,
        tip_step=read_annotations(line.tip).step,
        target_step=read_annotations(target).step,
        choice=choice,
        abandoned=line.count_left(target),
        diverged_branch=None,
        at_step=at_step,
    )
    return plan if plan.is_empty else _with_name(context, plan)


def _with_name(context: Context, plan: RollbackPlan) -> RollbackPlan:
    """Return a plan with the name that keeps what it leaves: a free one, or one that does so."""
    step = plan.tip_step if plan.at_step is None else plan.at_step
    label = plan.tip[:SHORT_ID] if step is None else str(step)
    base = f"{DIVERGED}{plan.branch}/{label}"
    refs = context.history.list_refs(HEADS + DIVERGED)
    names = (base if number == 1 else f"{base}-{number}" for number in count(1))
    name = next(name for name in names if _is_usable(refs, HEADS + name, plan.tip))
    return replace(plan, diverged_branch=name)


def _is_usable(refs: Mapping[str, GitId], ref: str, tip: GitId) -> bool:
    if any(other.startswith(ref + "/") for other in refs):
        return False  # Git keeps refs as files, and a folder of that name is in the way
    return refs.get(ref, tip) == tip


@holds_sweep_lock
def run_rollback(
    context: Context, plan: RollbackPlan, *, reason: str = "", force: bool = False
) -> RollbackResult:
    """Roll a branch back as planned; what it leaves stays on ``diverged/<branch>/<step>``.

    If HEAD is on the branch, index and files follow, and ``undo`` brings everything back.

    Args:
        plan: from ``plan_rollback``.
        reason: why, on one line; the log shows it at the abandoned tip.
        force: discard local changes that are in the way.

    Raises:
        ConflictError: the branch moved since it was planned, or local changes would be lost,
            and not ``force``; nothing was changed.
    """
    if plan.is_empty:
        return _result(plan)
    recover(context)
    head = context.history.head()
    _check_tip(context, plan)
    check_whole(context, plan.target)
    move = _Move(context, plan, one_line(reason), context.stamp())
    if head.branch == plan.branch:
        return move.with_files(head, force=force)
    return move.alone()


def _check_tip(context: Context, plan: RollbackPlan) -> None:
    tip = context.history.find_ref(HEADS + plan.branch)
    if tip != plan.tip:
        raise ConflictError(
            f"branch {plan.branch!r} moved since the rollback was planned: it was at "
            f"{plan.tip[:SHORT_ID]} and is {f'at {tip[:SHORT_ID]}' if tip else 'gone'}",
            hint="plan it again",
        )


class _Move:
    def __init__(self, context: Context, plan: RollbackPlan, reason: str, stamp: Stamp) -> None:
        self._context = context
        self._plan = plan
        self._reason = reason
        self._stamp = stamp
        step = "" if plan.target_step is None else f" (step {plan.target_step})"
        self._message = f"rollback: to {plan.target[:SHORT_ID]}{step}"
        if reason:
            self._message += f": {reason}"

    def with_files(self, head: Head, *, force: bool) -> RollbackResult:
        """Move the branch that HEAD is on, index and files with it, all or nothing."""
        context, plan = self._context, self._plan
        if head.commit != plan.tip:
            raise head_moved()
        index = context.history.read_index()
        checkout = plan_move(context, index, plan.tip, plan.target, force=force, materialise=False)
        move = plan_head_move("move", plan.target, head, self._message, self._stamp)
        done = execute(
            context,
            checkout,
            index,
            move,
            source=plan.target,
            command=ROLLBACK_COMMAND,
            before=self.keep_tip,
        )
        return _result(self._plan, done.written, done.removed)

    def alone(self) -> RollbackResult:
        """Move a branch that HEAD is not on."""
        history, plan = self._context.history, self._plan
        with history.lock():
            if history.head().branch == plan.branch:
                raise head_moved()
            _check_tip(self._context, plan)
            self.keep_tip()
            history.update_ref(
                HEADS + plan.branch,
                plan.target,
                expected=plan.tip,
                message=self._message,
                stamp=self._stamp,
            )
        return _result(self._plan)

    def keep_tip(self) -> None:
        """Name the tip and say why it is left, durably; under the lock, before the branch moves."""
        # Another process may have taken the planned name since.
        self._plan = plan = _with_name(self._context, self._plan)
        history, ref = self._context.history, f"{HEADS}{plan.diverged_branch}"
        if history.find_ref(ref) is None:
            history.update_ref(
                ref, plan.tip, expected=None, message=self._message, stamp=self._stamp
            )
        divergence = Divergence(
            self._reason, plan.branch, plan.target, plan.target_step, plan.at_step, int(time.time())
        )
        add_divergence(self._context, plan.tip, divergence, stamp=self._stamp)


def _result(
    plan: RollbackPlan, written: tuple[str, ...] = (), removed: tuple[str, ...] = ()
) -> RollbackResult:
    name = plan.diverged_branch
    return RollbackResult(
        plan.branch, plan.target, plan.tip, name, plan.abandoned, written, removed
    )


@dataclass(frozen=True, slots=True)
class RollbackTrace:
    """A rollback of ``branch`` from ``tip`` to ``target``; ``action`` is its line in the reflog."""

    branch: str
    tip: GitId
    target: GitId
    action: str
    reason: str

    def make(self, context: Context, stamp: Stamp) -> None:
        """Make branch and note again."""
        read_commit, at_step = context.history.read_commit, self._find_step(context)
        tip_step, target_step = (
            read_annotations(read_commit(commit)).step for commit in (self.tip, self.target)
        )
        plan = RollbackPlan(
            self.branch, self.tip, self.target, tip_step, target_step, "", 0, None, at_step
        )
        _Move(context, plan, self.reason, stamp).keep_tip()

    def remove(self, context: Context, stamp: Stamp) -> str | None:
        """Remove note and branch; return the branch, or None if it stays."""
        with context.history.lock():
            self._drop_note(context, stamp)
            name = self.find_branch(context)
            if name is not None:
                context.history.delete_ref(HEADS + name, expected=self.tip, stamp=stamp)
        return name

    def find_branch(self, context: Context) -> str | None:
        """Return the branch that this rollback made, if it is still there."""
        refs = context.history.list_refs(f"{HEADS}{DIVERGED}{self.branch}/")
        for ref in (ref for ref, commit in refs.items() if commit == self.tip):
            if [move.message for move in context.history.read_reflog(ref)] == [self.action]:
                return ref.removeprefix(HEADS)
        return None

    def _drop_note(self, context: Context, stamp: Stamp) -> None:
        notes = context.notebook(DIVERGENCES)
        try:
            paragraphs = notes.find_paragraphs(self.tip)
        except FormatError:
            return  # fsck reports it
        for number in reversed(range(len(paragraphs))):
            for divergence in parse_divergences(self.tip, paragraphs[number]):
                if (divergence.branch, divergence.target) == (self.branch, self.target):
                    del paragraphs[number]
                    message = f"the rollback from commit {self.tip} was undone"
                    if divergence.at_step is not None:
                        message += f" (at step {divergence.at_step})"
                    notes.write({self.tip: paragraphs}, message=message, stamp=stamp)
                    return

    def _find_step(self, context: Context) -> int | None:
        """Return the step that the note named: the commit that took the note away says it."""
        commit = context.history.find_ref(DIVERGED_REF)
        while commit is not None:
            info = context.history.read_commit(commit)
            match = _UNDONE.match(info.message)
            if match and match[1] == self.tip:
                return int(match[2]) if match[2] else None
            commit = info.parents[0] if info.parents else None
        return None


def find_trace(branch: str, tip: GitId, target: GitId, action: str) -> RollbackTrace | None:
    """Return the trace of a rollback, or None for any other move."""
    match = _ROLLBACK.fullmatch(action)
    return RollbackTrace(branch, tip, target, action, match[1] or "") if match else None

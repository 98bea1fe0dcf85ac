"""snapshot → writer → report: everything between a frozen state and a durable commit.

A snapshot goes to the writer when its copies are done (at once on a host). Its memory comes back to
the pool with the writer's answer, and not before. ``pump`` moves all that can be moved and never
waits; it is called at every step.

A writer may die between moving the branch and saying so. Whether its commit was made is then read
from the branch: a run that took it for lost would find, from the next commit on, that "somebody
else" moved its branch.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mvc import MvcError
from mvc_hooks.reports import CommitReport
from mvc_hooks.writer.messages import Answer, Commit, MarkHealthy
from mvc_hooks.writer.process import LOST, WriterProcess
from mvc_hooks.writer.recall import recall_commit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mvc_hooks.snapshot.image import MemoryPool, Snapshot
    from mvc_hooks.writer.process import WriterSettings

log = logging.getLogger("mvc_hooks")

_MARK_TRIES = 2


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """What a commit says beside the state.

    Attributes:
        branch: to move.
        message: subject and body.
        metrics: name → number.
        meta: name → text.
        delta: as for ``Repo.commit_state``.
    """

    branch: str
    message: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    meta: Mapping[str, str] = field(default_factory=dict)
    delta: bool | None = None


@dataclass(slots=True, eq=False)
class _Pending:
    """A commit that has no answer yet."""

    number: int
    snapshot: Snapshot
    plan: CommitPlan
    queue_depth: int
    is_borrowed: bool
    request: Commit | None = None

    @property
    def is_sent(self) -> bool:
        """Whether a writer has it."""
        return self.request is not None


class Committer:
    """Commits snapshots through a writer process, which is started again when it died.

    Attributes:
        tips: branch → commit that this run left it at; "" for a branch without one.
    """

    def __init__(self, settings: WriterSettings, pool: MemoryPool) -> None:
        """Start the writer.

        Args:
            settings: of the writer.
            pool: gets the memory back.
        """
        self._settings = settings
        self._pool = pool
        self._writer = WriterProcess(settings)
        self._pending: deque[_Pending] = deque()
        self._marks: dict[int, tuple[MarkHealthy, int]] = {}
        self._reports: list[CommitReport] = []
        self._number = 0
        self.tips: dict[str, str] = {}

    @property
    def depth(self) -> int:
        """Snapshots that wait for the writer or are being written."""
        return len(self._pending)

    def submit(self, snapshot: Snapshot, plan: CommitPlan, *, is_borrowed: bool = False) -> None:
        """Commit a snapshot; returns at once.

        Args:
            snapshot: its memory goes to the pool when it is committed.
            plan: what the commit says.
            is_borrowed: the memory belongs to somebody else, who does not change it meanwhile.
        """
        self._number += 1
        depth = len(self._pending) + 1
        snapshot.readers += 1
        self._pending.append(_Pending(self._number, snapshot, plan, depth, is_borrowed))
        self._send_ready()

    def mark_healthy(self, commit: str, note: str) -> None:
        """Have a commit marked as healthy; returns at once."""
        self._number += 1
        self._mark(MarkHealthy(self._number, commit, note), tries=1)

    def pump(self) -> list[CommitReport]:
        """Hand over what is ready and return what was committed since; never waits."""
        if self._pending or self._marks:
            self._send_ready()
            self._settle(self._writer.poll())
        return self._take_reports()

    def wait(self, at_most: int = 0, *, with_marks: bool = False) -> list[CommitReport]:
        """Wait until at most so many snapshots are left; return what was committed.

        Args:
            at_most: snapshots that may still be under way.
            with_marks: wait for the health marks as well.
        """
        while len(self._pending) > at_most or (with_marks and self._marks):
            for pending in self._pending:
                pending.snapshot.fence.wait()
            self._send_ready()
            if len(self._pending) > at_most or (with_marks and self._marks):
                self._settle(self._writer.wait())
        return self._take_reports()

    def close(self) -> list[CommitReport]:
        """Let the writer finish, and end it; return the last reports."""
        reports = self.wait()
        self._settle(self._writer.close())
        return [*reports, *self._take_reports()]

    def _take_reports(self) -> list[CommitReport]:
        reports, self._reports = self._reports, []
        return reports

    def _send_ready(self) -> None:
        """Hand over the snapshots whose copies are done, in order; settle the torn ones."""
        for pending in list(self._pending):
            if pending.is_sent:
                continue
            if not pending.snapshot.fence.is_done():
                break
            if pending.snapshot.fence.is_torn:
                why = "the state changed while it was copied; only optimizer.step may change it"
                self._finish(pending, Answer(pending.number, error="torn", message=why))
                continue
            try:
                self._send(pending)
            except MvcError as error:  # no writer can be started
                text = Answer(pending.number, error=error.kind, message=str(error), hint=error.hint)
                self._finish(pending, text)

    def _send(self, pending: _Pending) -> None:
        self._revive()
        plan, snapshot = pending.plan, pending.snapshot
        meta = {
            **plan.meta,
            "stall_ms": f"{snapshot.stall_s * 1e3:.1f}",
            "queue_depth": str(pending.queue_depth),
        }
        # Behind a commit that is not answered yet the writer knows better where the branch is.
        is_first = not any(one.is_sent for one in self._pending if one.plan.branch == plan.branch)
        pending.request = Commit(
            pending.number,
            snapshot.memory.size_bytes,
            snapshot.places,
            plan.branch,
            self.tips.get(plan.branch) if is_first else None,
            plan.message,
            snapshot.step,
            {k: v if math.isfinite(v) else repr(v) for k, v in plan.metrics.items()},
            meta,
            plan.delta,
        )
        self._writer.commit(pending.request, snapshot.memory)

    def _mark(self, request: MarkHealthy, tries: int) -> None:
        try:
            self._revive()
        except MvcError as error:
            log.warning("commit %s is not marked as healthy: %s", request.commit[:10], error)
            return
        self._marks[request.number] = (request, tries)
        self._writer.mark(request)

    def _revive(self) -> None:
        """Start a new writer where the last one died, once all it owed is settled.

        Raises:
            StorageError: the machine refused.
        """
        if not self._writer.in_flight:
            self._writer.poll()  # says whether it is still there
        if self._writer.is_lost and not self._writer.in_flight:
            self._writer.close(0)
            self._writer = WriterProcess(self._settings)

    def _settle(self, answers: list[Answer]) -> None:
        """Take answers, which are in the order of the requests."""
        by_number = {pending.number: pending for pending in self._pending}
        for answer in answers:
            pending = by_number.get(answer.number)
            if pending is None:
                self._settle_mark(answer)
            elif answer.error == LOST and pending.request is not None:
                tip = self.tips.get(pending.plan.branch)
                made = recall_commit(self._settings.worktree, pending.request, tip)
                self._finish(pending, answer if made is None else made)
            else:
                self._finish(pending, answer)

    def _settle_mark(self, answer: Answer) -> None:
        request, tries = self._marks.pop(answer.number)
        if answer.error == LOST and tries < _MARK_TRIES:
            self._mark(request, tries + 1)
        elif answer.error is not None:
            why = answer.message
            log.warning("commit %s is not marked as healthy: %s", request.commit[:10], why)

    def _finish(self, pending: _Pending, answer: Answer) -> None:
        self._pending.remove(pending)
        snapshot = pending.snapshot
        snapshot.readers -= 1
        if not pending.is_borrowed:
            self._pool.give_back(snapshot.memory)
        elif snapshot.is_dropped and not snapshot.readers:
            snapshot.memory.close()
        if answer.commit is not None:
            self.tips[pending.plan.branch] = answer.commit
        error = None if answer.error is None else answer.message
        if error is not None and answer.hint:
            error = f"{error} ({answer.hint})"
        report = CommitReport(
            step=pending.snapshot.step,
            commit=answer.commit,
            branch=pending.plan.branch,
            subject=pending.plan.message.split("\n", 1)[0],
            stall_s=pending.snapshot.stall_s,
            write_s=answer.write_s,
            written_bytes=answer.written_bytes,
            plain_bytes=answer.plain_bytes,
            queue_depth=pending.queue_depth,
            error=error,
        )
        self._reports.append(report)

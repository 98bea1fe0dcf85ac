"""snapshot → writer → report: everything between a frozen state and a durable commit.

A snapshot goes to the writer once its copies are done (at once on a host). Its memory returns to
the pool with the writer's answer, never before. ``pump`` moves whatever can be moved and never
waits; it is called at every step.

A writer that dies costs nothing but time: a new one gets what the last one owed, until three in a
row have died without a commit. A writer may die between moving the branch and reporting it. The
branch then decides whether the commit was made: a run that wrote it off would find, from the next
commit on, that its branch was moved by a stranger.

In a sharded run every rank has a queue, and each commit is a turn that all ranks take. A rank whose part of
a commit fails tells the others: through its writer or, if none can be started, by itself.
A turn is not tried again: that would take all ranks.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from mvc import GateError, MvcError
from mvc_hooks.reports import CommitReport
from mvc_hooks.snapshot.ring import MemoryPool
from mvc_hooks.writer.dialing import tell
from mvc_hooks.writer.messages import GONE, LOST, Answer, AwaitCopy, Commit, MarkHealthy
from mvc_hooks.writer.process import WriterProcess
from mvc_hooks.writer.sharing import recall_commit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc_hooks.snapshot.ring import Snapshot
    from mvc_hooks.writer.messages import Open, RankCrew
    from mvc_hooks.writer.place import Listeners

log = logging.getLogger("mvc_hooks")

_MARK_TRIES = 2
_DEATHS = 3


@dataclass(slots=True, eq=False)
class _Pending:
    """A commit without an answer yet; without a snapshot none could be taken."""

    request: Commit
    snapshot: Snapshot | None
    queue_depth: int
    is_sent: bool = False

    @property
    def is_ready(self) -> bool:
        """Whether it can be handed over."""
        return self.snapshot is None or self.snapshot.fence.is_done()

    @property
    def is_torn(self) -> bool:
        """Whether its state changed while it was copied, which no other rank knows yet."""
        is_new = self.request.settled is None
        return is_new and self.snapshot is not None and self.snapshot.fence.is_torn


class CommitQueue:
    """Commits snapshots through a writer process, which is restarted if it dies.

    In a sharded run it has the ``place`` where its writers listen, which it closes, and the ``crew``
    of all ranks, whose commits so far ``turn`` counts, alike on all. ``tips`` are branch → commit that this run left it at; "" if it has none. ``has_ended``
    is turned off by a run that ends in a way that it may be started again after.
    """

    def __init__(
        self,
        opening: Open,
        *,
        held: Sequence[int] = (),
        tips: dict[str, str] | None = None,
        delta: bool | None = None,
        place: Listeners | None = None,
        crew: RankCrew | None = None,
    ) -> None:
        self.pool = MemoryPool()
        self.tips: dict[str, str] = {} if tips is None else tips
        self.has_ended = True
        self._place, self.crew = place, crew
        listening = () if place is None else place.descriptors
        self._opening = msgspec.structs.replace(opening, crew=crew, listening=listening)
        self._held, self._delta = (*held, *listening), delta
        self._telling: list[threading.Thread] = []
        self.turn = 0
        self._writer: WriterProcess | None = None
        self._pending: deque[_Pending] = deque()
        self._marks: dict[int, tuple[MarkHealthy | AwaitCopy, int]] = {}
        self._reports: list[CommitReport] = []
        self._number = self._deaths = 0
        self._uncopied: str | None = None

    @property
    def depth(self) -> int:
        """Snapshots that wait for the writer or are being written."""
        return len(self._pending)

    def submit(
        self,
        snapshot: Snapshot,
        branch: str,
        message: str,
        metrics: Mapping[str, float] | None = None,
        facts: Mapping[str, str] | None = None,
        *,
        no_gate: bool = False,
        texts: Mapping[str, bytes] | None = None,
        seen: tuple[int, int] = (0, 0),
    ) -> None:
        """Commit a snapshot to a branch, with facts to record, and release it then; returns at once.

        ``no_gate`` is for what is known to be bad and kept as it is; ``texts`` are small files for the
        same commit; ``seen`` are the samples of this rank, which are added up.
        """
        self._number += 1
        depth = len(self._pending) + 1
        numbers = {k: v if math.isfinite(v) else repr(v) for k, v in (metrics or {}).items()}
        meta = {"stall_ms": f"{snapshot.stall_s * 1e3:.1f}", "queue_depth": str(depth)}
        request = Commit(
            number=self._number,
            size_bytes=snapshot.memory.size_bytes,
            places=snapshot.places,
            branch=branch,
            parent=None,
            message=message,
            step=snapshot.step,
            metrics=numbers,
            meta={**(facts or {}), **meta},
            delta=self._delta,
            no_gate=no_gate,
            turn=self._next_turn(),
            form=snapshot.form,
            texts=dict(texts or {}),
            seen=seen,
        )
        self._pending.append(_Pending(request, snapshot, depth))
        self._send_ready()

    def skip(self, step: int, branch: str, message: str, error: MvcError) -> None:
        """Let a commit fail on all ranks, since this one could take no snapshot; returns at once."""
        self._number += 1
        request = Commit(
            self._number, 0, {}, branch, None, message, step, {}, {}, None, turn=self._next_turn()
        )
        pending = _Pending(request, None, len(self._pending) + 1)
        self._pending.append(pending)
        if self._give_up(pending, Answer.of(self._number, error)):
            self._send_ready()

    def _next_turn(self) -> int:
        self.turn += self.crew is not None
        return self.turn

    def mark_healthy(self, commit: str, note: str) -> None:
        """Have a commit marked as healthy; returns at once."""
        self._number += 1
        self._mark(MarkHealthy(self._number, commit, note), tries=1)

    def pump(self) -> list[CommitReport]:
        """Hand over what is ready and return what was committed since; never waits."""
        if self._pending or self._marks:
            self._send_ready()
            if self._writer is not None:
                self._settle(self._writer.poll())
                self._send_ready()  # the other ranks wait to hear of what was lost
        return self._take_reports()

    def wait(self, at_most: int = 0, *, with_marks: bool = False) -> list[CommitReport]:
        """Wait until at most that many snapshots are left, and with marks no mark; return new reports."""

        def has_more() -> bool:
            return len(self._pending) > at_most or (with_marks and bool(self._marks))

        while has_more():
            for pending in self._pending:
                if pending.snapshot is not None:
                    pending.snapshot.fence.wait()
            self._send_ready()  # settles torn ones, and all of them if no writer can be started
            if self._writer is not None and has_more():
                if len(self._pending) > at_most:
                    self._writer.hurry(self._pending[-1 - at_most].request.number)
                self._settle(self._writer.wait())
        return self._take_reports()

    def wait_copied(self) -> list[CommitReport]:
        """Wait until another machine holds the last commit's memory, if it is to; return new reports."""
        if self._opening.replicates and self._writer is not None:
            self._number += 1
            self._mark(AwaitCopy(self._number), tries=1)
        return self.wait(with_marks=True)

    def close(self) -> list[CommitReport]:
        """Let the writer finish, and end it; free the memory; return the last reports."""
        try:
            reports = self.wait()
            if self._writer is not None:
                self._settle(self._writer.close(has_ended=self.has_ended))
            for thread in self._telling:
                thread.join()
            return [*reports, *self._take_reports()]
        finally:
            self.pool.close()
            if self._place is not None:
                self._place.close()

    def _take_reports(self) -> list[CommitReport]:
        reports, self._reports = self._reports, []
        return reports

    def _send_ready(self) -> None:
        """Hand over the snapshots whose copies are done, in order; settle the torn ones."""
        for pending in list(self._pending):
            if pending.is_sent:
                continue
            if not pending.is_ready:
                break
            number = pending.request.number
            if pending.is_torn:
                why = "the state changed while it was copied; only optimizer.step may change it"
                if not self._give_up(pending, Answer(number, error="torn", message=why)):
                    continue
            try:
                self._send(pending)
            except MvcError as error:  # no writer can be started
                self._give_up(pending, Answer.of(number, error), can_write=False)

    def _send(self, pending: _Pending) -> None:
        writer = self.start_writer()
        branch = pending.request.branch
        # While a commit to this branch is unanswered, the writer knows better where the branch is.
        if not any(other.is_sent for other in self._pending if other.request.branch == branch):
            tip = self.tips.get(branch)
            pending.request = msgspec.structs.replace(pending.request, parent=tip)
        pending.is_sent = True
        if pending.request.settled is not None or pending.snapshot is None:
            writer.ask(pending.request)
        else:
            writer.ask(pending.request, pending.snapshot.memory.descriptor)

    def _give_up(self, pending: _Pending, answer: Answer, *, can_write: bool = True) -> bool:
        """End a commit that came to nothing; return True if the writer has to tell the others first."""
        crew, request = self.crew, pending.request
        if crew is None:
            self._finish(pending, answer)
            return False
        settled = request.settled
        if settled is None:
            text = answer.message if answer.commit else f"rank {crew.rank}: {answer.message}"
            settled = msgspec.structs.replace(answer, number=request.turn, message=text)
            pending.request = msgspec.structs.replace(request, settled=settled)
        if can_write:
            pending.is_sent = False
            return True
        ranks = [0] if crew.rank else list(range(1, crew.ranks))
        self._telling.append(
            threading.Thread(target=tell, args=(crew, ranks, settled), daemon=True)
        )
        self._telling[-1].start()
        self._finish(pending, msgspec.structs.replace(settled, number=request.number))
        return False

    def _mark(self, request: MarkHealthy | AwaitCopy, tries: int) -> None:
        try:
            writer = self.start_writer()
        except MvcError as error:
            _warn_unmarked(request, error.message)
            return
        self._marks[request.number] = (request, tries)
        writer.ask(request)

    def start_writer(self) -> WriterProcess:
        """Return the writer; start one if there is none, or the last one died and owes nothing."""
        writer = self._writer
        if writer is not None and not writer.in_flight:
            writer.poll()  # notices that it is gone
            if writer.is_lost:
                writer.close(0)
                writer = None
        if writer is None:
            writer = self._writer = WriterProcess(self._opening, self._held)
        return writer

    def _settle(self, answers: list[Answer]) -> None:
        """Take answers, which come in the order of the requests."""
        by_number = {pending.request.number: pending for pending in self._pending}
        self._deaths += any(
            answer.error == LOST and answer.number in by_number for answer in answers
        )
        for answer in answers:
            pending = by_number.get(answer.number)
            if pending is None:
                request, tries = self._marks.pop(answer.number)
                self._note_copy(answer)
                if answer.error == LOST and tries < _MARK_TRIES:
                    self._mark(request, tries + 1)
                elif answer.error is not None:
                    _warn_unmarked(request, answer.message)
            elif answer.error == LOST:
                self._settle_lost(pending, answer)
            else:
                self._finish(pending, answer)

    def _settle_lost(self, pending: _Pending, answer: Answer) -> None:
        """Find the commit that a dead writer did not report, or leave it to the next writer."""
        if self.crew is not None:
            self._settle_lost_turn(pending, answer, self.crew)
            return
        made = self._recall(pending.request)
        if made is not None:
            self._finish(pending, made)
        elif self._deaths < _DEATHS:
            pending.is_sent = False
            log.warning(
                "commit of step %d failed: %s; a new writer tries again",
                pending.request.step,
                answer.message,
            )
        else:
            text = f"{answer.message}, number {self._deaths} in a row without a commit"
            self._finish(pending, msgspec.structs.replace(answer, message=text))

    def _settle_lost_turn(self, pending: _Pending, answer: Answer, crew: RankCrew) -> None:
        """Tell the other ranks what became of a turn whose writer was lost, by the next writer."""
        if pending is not self._pending[0]:
            pending.is_sent = False  # a turn begins when the last one is over, so this had not
            return
        made = None if crew.rank else self._recall(pending.request)
        what = f"its writer{answer.message.removeprefix('the writer process')}"
        failure = msgspec.structs.replace(answer, error=GONE, message=what)
        is_again = pending.request.settled is not None
        self._give_up(pending, made or failure, can_write=not is_again)

    def _recall(self, request: Commit) -> Answer | None:
        tip = self.tips.get(request.branch)
        return recall_commit(self._opening.worktree, request, tip, request.meta)

    def _finish(self, pending: _Pending, answer: Answer) -> None:
        self._pending.remove(pending)
        snapshot, step = pending.snapshot, pending.request.step
        if snapshot is not None:
            snapshot.release()
        if answer.commit is not None:
            self.tips[pending.request.branch] = answer.commit
            self._deaths = 0
        if answer.unsent is not None:
            log.warning("commit of step %d is here, but not on the store: %s", step, answer.unsent)
        self._note_copy(answer)
        error = None if answer.error is None else answer.message
        is_refused = answer.error == GateError.kind
        if error is not None and answer.hint and not is_refused:
            error = f"{error} ({answer.hint})"
        report = CommitReport(
            step=step,
            commit=answer.commit,
            branch=pending.request.branch,
            subject=pending.request.message.split("\n", 1)[0],
            stall_s=0.0 if snapshot is None else snapshot.stall_s,
            write_s=answer.write_s,
            written_bytes=answer.written_bytes,
            plain_bytes=answer.plain_bytes,
            queue_depth=pending.queue_depth,
            error=error,
            is_refused=is_refused,
            failed_gates=answer.failed_gates,
            agreement=answer.agreement,
        )
        self._reports.append(report)

    def _note_copy(self, answer: Answer) -> None:
        """Tell, once, that copies do not get to the other machine."""
        if answer.uncopied is not None and answer.uncopied != self._uncopied:
            log.warning("a commit's memory is not on another machine: %s", answer.uncopied)
        self._uncopied = answer.uncopied


def _warn_unmarked(request: MarkHealthy | AwaitCopy, why: str) -> None:
    if isinstance(request, MarkHealthy):
        log.warning("commit %s is not marked as healthy: %s", request.commit[:10], why)

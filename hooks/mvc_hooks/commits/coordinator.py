"""The commits of a run: when one is made, what it says, and what became of it.

Every rank of a distributed run has a ``Commits``. All come to the same decisions without a message:
from the number of the step, and from notes that travel with the readings. Every rank freezes what it
keeps of the state, and hands it to a writer of its own; the writers make one commit of it, or none, and
every rank gets a report. A failure waits for rank 0's next note, so that all ranks stop at the same step.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from mvc import MvcError, UsageError
from mvc_hooks.log import ranged
from mvc_hooks.ranks.messages import Note
from mvc_hooks.ranks.pieces import naming
from mvc_hooks.reports import CommitFailedError, CommitReport
from mvc_hooks.snapshot.ring import Snapshot, SnapshotRing, take_snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mvc_hooks.commits.queue import CommitQueue
    from mvc_hooks.ranks.own import RankView
    from mvc_hooks.session import Session


class Schedule:
    """When a commit is due: by steps, by seconds since the last commit, by both or by neither."""

    def __init__(self, every: int | None, every_seconds: float | None) -> None:
        self._every = every
        self._every_seconds = every_seconds
        self._last_s: float | None = None

    @property
    def is_on(self) -> bool:
        """Whether any commit will ever be due."""
        return self._every is not None or self._every_seconds is not None

    def is_due(self, step: int, now_s: float | None) -> bool:
        """Return whether a commit is due after this step; without a clock, by steps alone."""
        if self._every is not None and step % self._every == 0:
            return True
        return now_s is not None and self.is_late(now_s)

    def is_late(self, now_s: float) -> bool:
        """Return whether a commit is due by the clock alone."""
        if self._every_seconds is None:
            return False
        if self._last_s is None:
            self._last_s = now_s
        return now_s - self._last_s >= self._every_seconds

    def note(self, now_s: float) -> None:
        """Record that a commit was made, or that the run starts."""
        self._last_s = now_s


class Commits:
    """Freezes states of a run and has them committed to its branch.

    Methods that hear from the writer raise ``CommitFailedError`` if a commit failed and that is to
    stop the run.
    """

    def __init__(self, session: Session, queue: CommitQueue, last_step: int | None) -> None:
        self.queue, self._session, settings = queue, session, session.settings
        self._run, self._judge, self._settings = session.run, session.judge, settings
        self._ranks, self._talk, self._log = session.ranks, session.talk, session.log
        self.schedule = Schedule(settings.every, settings.every_seconds)
        self.schedule.note(time.monotonic())
        self.ring = None if settings.ring is None else SnapshotRing(settings.ring)
        self.reports: list[CommitReport] = []
        self.skipped: list[int] = []
        self.last_step = last_step  # newest step that is committed or on its way, or None
        self._newest_step: int | None = None  # of a commit of this process
        self._first_round = last_step or 0
        self._disputed = 0  # commits until all has been checked again
        # A failed commit that is to stop the run; ranks stop together, when rank 0's note says so.
        self.failure: CommitFailedError | None = None
        self._recorded: dict[int, tuple[dict[str, str], dict[str, bytes]]] = {}

    @property
    def _step(self) -> int:
        return self._run.counters.step

    # To the writer.

    def commit(self, message: str, metrics: Mapping[str, float], *, is_asked: bool) -> None:
        """Freeze the live state and hand it to the writer, even if that is behind and ``is_asked``."""
        self._settle()
        since_s = time.perf_counter()
        is_behind = self._is_behind
        numbers = as_numbers(metrics)
        if self._make_room(is_asked=is_asked):
            snapshot = None
            try:
                snapshot = self.freeze(since_s)
            except MvcError as error:
                if self._ranks.size == 1:
                    raise
                # The other ranks count on this one.
                self.queue.skip(self._step, self._session.branch, message, error)
            self._hand_over(snapshot, message, numbers)
            if is_behind and self._settings.when_behind == "sync":
                self._take(self.queue.wait())
            self.schedule.note(time.monotonic())
        self.pump()

    def _hand_over(
        self, snapshot: Snapshot | None, message: str, numbers: Mapping[str, float]
    ) -> None:
        step = self._step
        self.last_step = self._newest_step = step
        session = self._session
        # Kept until the answer comes: if this commit fails, the next one records them.
        self._recorded[step] = facts, texts = session.facts, session.texts
        session.facts, session.texts = {}, {}
        more = self._run.extensions.describe(step)
        if snapshot is not None:
            self.queue.submit(
                snapshot,
                session.branch,
                message,
                {**self._judge.read_metrics(step), **more.metrics, **numbers},
                {**more.facts, **facts},
                texts=texts,
                seen=more.seen,
            )
            self._log.snapshot(snapshot)

    def _settle(self) -> None:
        """Have extensions refuse to commit what they know to be wrong; every rank must call it."""
        for extension in self._session.extensions:
            extension.settle()

    def commit_first(self) -> None:
        """Commit the start of a run that commits by steps or seconds, to have a place to go back to."""
        if self.schedule.is_on and self.last_step is None:
            # What cannot be stored on one rank now never could: then no rank begins, and all say why.
            snapshot = self._ranks.together(self.freeze)
            self._hand_over(snapshot, "step 0", {})
            self.schedule.note(time.monotonic())
            self.pump()

    @property
    def _is_behind(self) -> bool:
        return self.queue.depth >= self._settings.in_flight

    @ranged("mvc.make_room")
    def _make_room(self, *, is_asked: bool) -> bool:
        """Wait for the writer, if it is behind; return False if this commit is not to be made.

        Every rank comes to the same answer: of what is known here alone, nothing counts.
        """
        policy = self._settings.when_behind
        if policy == "skip" and not is_asked:
            if self._ranks.is_alone:
                has_room = not self._is_behind
            else:
                has_room = self._talk.has_room(self._newest_step)
            if not has_room:
                self.skipped.append(self._step)
                self._log.skip(self._step, policy)
            return has_room
        if self._is_behind:
            began_s = time.perf_counter()
            self._take(self.queue.wait(self._settings.in_flight - 1))
            self._log.wait(time.perf_counter() - began_s)
        return True

    def write_note(self, signal: str | None) -> dict[str, float]:
        """Return what goes to the other ranks along with a reading."""
        self._take(self.queue.pump())
        is_first = self._ranks.is_first
        is_due = is_first and self.schedule.is_late(time.monotonic())
        failed = is_first and self.failure is not None
        return self._talk.write(Note(signal, is_due, failed, self._is_behind))

    @ranged("mvc.freeze")
    def freeze(self, since_s: float | None = None) -> Snapshot:
        """Freeze the live state, of several ranks what this one keeps of it, to be submitted or released."""
        tensors, view = self._run.fenced_tensors(), self._run.view(self._judge.capture())
        pool, terms = self.queue.pool, self._terms(view)
        with naming(view.own):
            snapshot = take_snapshot(
                view.shared, self._step, pool, tensors, since_s=since_s, **terms
            )
        self._run.stand_before_step(snapshot.fence)
        return snapshot

    @ranged("mvc.freeze_light")
    def freeze_light(self) -> None:
        """Put the state into the ring, if there is one and it is time."""
        if self.ring is None or not self.ring.is_due(self._step):
            return
        state = self._run.capture(self._judge.capture())
        snapshot = self.ring.take(state, self._step, self._run.fenced_tensors())
        self._run.stand_before_step(snapshot.fence)

    def prepare(self) -> None:
        """Have memory allocated before the first snapshot is due."""
        view = self._run.view(self._judge.capture())
        with naming(view.own):
            self.queue.pool.prepare(view.shared, **self._terms(view))

    def _terms(self, view: RankView) -> dict[str, Any]:
        """Return the terms of ``layout_state``; the check goes on where the run before was resumed."""
        if self._ranks.size == 1:
            return view.terms()
        return {
            **view.terms(),
            "check": (self._first_round + self.queue.turn, self._session.repo.chunk_bytes),
        }

    def commit_last(self, message: str) -> None:
        """Commit the state of the last complete step, or the newest consistent one."""
        self._settle()
        done, step = self._ranks.share(self.last_step), self._step
        if all(self._ranks.exchange(self._run.is_clean)):
            if step and done != step:
                self.commit(message, {}, is_asked=True)
            return
        # The live state is between two steps; the ring may have one from after the last commit.
        frozen = None if self.ring is None else self.ring.find(step)
        if self._ranks.size == 1 and frozen is not None and (done is None or frozen.step > done):
            text = f"{message} (as of step {frozen.step})"
            self.queue.submit(frozen.hold(), self._session.branch, text)
            self.last_step = frozen.step
        if step and (self.last_step is None or self.last_step < step):
            self._log.lose(self.last_step or 0, step)

    # From the writer.

    @ranged("mvc.pump")
    def pump(self) -> None:
        """Take in what the writer has done; never waits."""
        self._take(self.queue.pump())
        self._mark_healthy()

    def wait(self, *, with_marks: bool = False) -> None:
        """Wait on every rank until all commits, and if wanted the health marks, are durable."""
        self._take(self.queue.wait())
        self.raise_failure()
        self._mark_healthy()
        if with_marks:
            self.queue.wait(with_marks=True)

    def wait_copied(self) -> None:
        """Wait until another machine holds what the newest commit was made of, if it is to."""
        self._take(self.queue.wait_copied())

    def raise_failure(self) -> None:
        """Raise rank 0's failure, if there is one, on every rank, once; every rank must call this."""
        failure, self.failure = self.failure, None
        text = self._ranks.share(None if failure is None else failure.message)
        if text is not None:
            difference = self._run.find_difference()
            raise _fail(f"{text}; {difference}" if difference else text)

    def _take(self, reports: list[CommitReport]) -> None:
        self.reports += reports
        failed = [report for report in reports if report.commit is None and not report.is_refused]
        for report in reports:
            if report.branch == self._session.branch:
                facts, texts = self._recorded.pop(report.step, ({}, {}))
                if report.commit is None:
                    self._session.facts = facts | self._session.facts
                    self._session.texts = texts | self._session.texts
                else:
                    for extension in self._session.extensions:
                        extension.note_durable(report.step)
            if self._ranks.is_first:  # which alone speaks, and marks commits
                self._log.commit(report)
                self._judge_commit(report)
        for report in failed:
            if self.last_step == report.step:
                self.last_step = None  # so that the end of the run commits the state once more
        if failed and self._settings.on_failure == "raise":
            self.failure = _fail(str(failed[-1]))
            if self._ranks.size == 1:
                self.raise_failure()

    def _judge_commit(self, report: CommitReport) -> None:
        if report.branch != self._session.branch:
            return
        # What differs is checked again within that many rounds; until then, no commit is known to be good.
        agreement = report.agreement
        if agreement is not None and agreement.differed:
            self._disputed = agreement.rounds
        elif report.commit is not None:
            self._disputed = max(0, self._disputed - 1)
        if report.commit is not None and not report.failed_gates and not self._disputed:
            self._judge.note_commit(report.step, report.commit)
        if report.is_refused or report.failed_gates or report.is_disputed:
            self._judge.note_bad_state(report.step)

    def _mark_healthy(self) -> None:
        for step, commit in self._judge.take_healthy():
            self.queue.mark_healthy(commit, f"{self._settings.healthy_after} calm steps")
            self._log.healthy(step, commit)

    # The run goes back, or ends.

    def forget_after(self, step: int, commit: str | None) -> None:
        """Go back with the run: later snapshots are of a run that is gone."""
        if self.ring is not None:
            self.ring.forget_after(step)
        self.last_step = step if commit is not None else None
        if commit is not None:  # all ranks have the same bytes again
            self._disputed = 0
        if self._newest_step is not None:
            self._newest_step = step

    def close(self) -> None:
        """Wait for all commits, end the writer, free the memory."""
        try:
            self._take(self.queue.close())
            if self.failure is not None:
                raise self.failure
        finally:
            if self.ring is not None:
                self.ring.close()


def _fail(text: str) -> CommitFailedError:
    hint = 'the last good commit stays good; on_failure="continue" would go on'
    return CommitFailedError(text, hint=hint)


def as_count(name: str, value: Any) -> int:
    """Return a count as an int, or raise UsageError."""
    try:
        count = int(value)
        if count >= 0 and count == value:
            return count
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    raise UsageError(f"{name} is {value!r}, not a whole number from 0 on")


def as_numbers(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics as numbers; a UsageError names one that is not."""
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        try:
            # A tensor with a gradient would have torch warn.
            numbers[name] = float(getattr(value, "detach", lambda value=value: value)())
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"metric {name!r} is not a number: {error}") from error
    return numbers

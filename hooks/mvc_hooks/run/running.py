"""What a run has open, and the steps it takes: judged, committed, agreed upon by all ranks.

``Checkpointer`` is what the user sees of it. Here is what happens behind ``step()`` and ``commit()``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mvc import UsageError
from mvc_hooks.ranks.notes import Talk
from mvc_hooks.run.signals import SignalWatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mvc import Repo
    from mvc_hooks.commits.coordinator import Commits
    from mvc_hooks.commits.rankcommits import FollowingCommits
    from mvc_hooks.commits.schedule import Schedule
    from mvc_hooks.divergence.judge import Judge
    from mvc_hooks.divergence.ladder import Action
    from mvc_hooks.ranks.ranks import Ranks
    from mvc_hooks.run.live import LiveRun
    from mvc_hooks.run.log import RunLog
    from mvc_hooks.settings import Settings

_SETTLED_STEPS = 2
"""Steps after which an optimizer has made its state, so that the size of a snapshot is known."""


@dataclass(slots=True, eq=False)
class Running:
    """A run that is under way.

    Attributes:
        settings: of the checkpointer.
        repo: the repository.
        branch: the branch that the run writes.
        run: everything that is alive in it.
        judge: of its readings.
        commits: to that branch.
        ranks: of a distributed run.
        log: is told of everything.
        schedule: when a commit is due.
        talk: what the ranks tell each other beside the readings.
        signals: those that wait to be obeyed.
        calls: how often ``take_step`` was called.
    """

    settings: Settings
    repo: Repo
    branch: str
    run: LiveRun
    judge: Judge
    commits: Commits | FollowingCommits
    ranks: Ranks
    log: RunLog
    schedule: Schedule
    talk: Talk = field(default_factory=Talk)
    signals: SignalWatch = field(default_factory=SignalWatch)
    calls: int = 0

    @property
    def step(self) -> int:
        """Completed steps."""
        return self.run.counters.step

    def check(self, loss: object, grad_norm: object) -> bool:
        """Judge a step that is not complete; return whether it will be taken."""
        action = self.judge.check(self.step + 1, loss, grad_norm, self.log, self._write_note())
        if action is None or not action.skip:
            return True
        self.run.drop_next_step()
        self.run.scale_lr(action.lr_factor)
        return False

    def take_step(
        self, loss: object, grad_norm: object, tokens: int, samples: int
    ) -> Action | None:
        """Count a complete step and judge it; return the answer to an alarm, or None."""
        self.calls += 1
        self.run.complete_step(tokens, samples)
        note = self._write_note()
        action = self.judge.judge(self.step, loss, grad_norm, self.log, note)
        self._read_notes()
        self.pump()
        if action is None and self.judge.latest is not None:
            self.log.step(self.judge.latest, self.run.lr)
        return action

    def freeze(self, metrics: Mapping[str, float]) -> None:
        """Commit the state of this step where that is due, and put it into the ring."""
        if self._is_due():
            self.commit(f"step {self.step}", metrics, is_asked=False)
        self.commits.freeze_light(self._capture_here, self.step)

    def prepare(self) -> None:
        """Have memory allocated once it is known how much a snapshot takes."""
        every = self.settings.every
        if self.calls == _SETTLED_STEPS and (every is None or every > _SETTLED_STEPS):
            self.commits.prepare(self.capture())

    def _is_due(self) -> bool:
        # The clock is rank 0's; the others hear of it.
        now_s = None if self.ranks.size > 1 else time.monotonic()
        return self.schedule.is_due(self.step, now_s) or self.talk.take_due()

    def capture(self) -> dict[str, object]:
        """Return the whole state; of all ranks, on rank 0."""
        return self.run.capture(self.judge.capture())

    def _capture_here(self) -> dict[str, object]:
        return self.run.capture(self.judge.capture(), gather=False)

    def commit(self, message: str, metrics: Mapping[str, float], *, is_asked: bool) -> None:
        """Freeze the live state and hand it to the writer.

        Args:
            message: subject, and body after an empty line.
            metrics: name → number.
            is_asked: by the user; then it is not left out where the writer is behind.

        Raises:
            UsageError: a metric that is no number.
            CommitFailedError: an earlier commit failed, and that is to stop the run.
        """
        latest = self.judge.latest
        numbers: dict[str, float] = {}
        if latest is not None and latest.step == self.step:
            read = {"loss": latest.loss, "grad_norm": latest.grad_norm}
            numbers = {name: value for name, value in read.items() if value is not None}
        numbers |= _as_numbers(metrics)
        if self.commits.commit(self.capture, self.step, message, numbers, is_asked=is_asked):
            self.schedule.note(time.monotonic())
        self.pump()

    def commit_last(self, message: str) -> None:
        """Commit the state of the last complete step, or the newest that is consistent."""
        done, step = self.ranks.share(self.commits.last_step), self.step
        if all(self.ranks.exchange(self.run.is_clean)):
            if step and done != step:
                self.commit(message, {}, is_asked=True)
            return
        ring = self.commits.ring
        frozen = None if ring is None else ring.find(step)
        if self.ranks.size == 1 and frozen is not None and (done is None or frozen.step > done):
            self.commits.commit_frozen(frozen, f"{message} (as of step {frozen.step})")

    def pump(self) -> None:
        """Take in what the writer has done; never waits."""
        self.commits.pump()
        self.mark_healthy()

    def settle(self) -> None:
        """Wait until all commits are durable, and marked where they are healthy."""
        self.commits.wait()
        self.mark_healthy()
        self.commits.settle()

    def mark_healthy(self) -> None:
        """Have those commits marked that have become healthy."""
        for step, commit in self.judge.take_healthy():
            self.commits.mark_healthy(step, commit)

    # What the ranks tell each other.

    def find_signal(self) -> str | None:
        """Return the name of the signal that all ranks obey now, or None."""
        return self.signals.caught if self.ranks.is_alone else self.talk.heard.signal

    def _write_note(self) -> float:
        if self.ranks.is_alone:
            return 0.0
        is_due = self.ranks.is_first and self.schedule.is_late(time.monotonic())
        failed = self.commits.failure is not None
        return self.talk.write(self.signals.caught, is_due=is_due, has_failed=failed)

    def _read_notes(self) -> None:
        if self.ranks.is_alone:
            return
        self.talk.read(self.judge.take_notes())
        if self.talk.heard.has_failed:
            self.ranks.ask_first(self._raise_failure)

    def _raise_failure(self) -> None:
        if self.commits.failure is not None:
            raise self.commits.failure


def _as_numbers(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics as plain numbers; tensors and arrays of one element are taken, too."""
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"metric {name!r} is no number: {error}") from error
    return numbers

"""Checkpointer: a commit every so many steps beside the training, and a way back when it diverges.

    ckpt = Checkpointer("runs/gpt", model=model, optimizer=optimizer, dataloader=loader, every=1000)
    for step in ckpt.steps(100_000):
        loss = train_step(ckpt.next_batch())
        ckpt.step(loss=loss)

The end of ``step()`` is the one place where the state of the run is consistent: there it is judged
(did it diverge?), frozen, and brought back. Everything that takes long happens in another process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn, Self

from mvc import MvcError, NotFoundError, Repo, UsageError
from mvc_hooks.branchlock import BranchLock
from mvc_hooks.divergence.rungs import rollback as roll_back_rung
from mvc_hooks.environment import compare_environments
from mvc_hooks.errors import DivergedError
from mvc_hooks.judge import Judge
from mvc_hooks.liverun import LiveRun
from mvc_hooks.notes import Talk
from mvc_hooks.rankcommits import make_commits
from mvc_hooks.ranks import Ranks
from mvc_hooks.recovery import Order, name_diverged, roll_back
from mvc_hooks.runlog import RunLog
from mvc_hooks.schedule import Schedule
from mvc_hooks.settings import Settings
from mvc_hooks.signals import SignalWatch
from mvc_hooks.sources import CommitSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from mvc import Identity
    from mvc_hooks.divergence.history import History
    from mvc_hooks.divergence.ladder import Action
    from mvc_hooks.divergence.rungs import Rollback, Rung
    from mvc_hooks.reports import CommitReport, RollbackReport
    from mvc_hooks.settings import OnFailure, WhenBehind
    from mvc_hooks.snapshot.ring import Ring


_SETTLED_STEPS = 2
"""Steps after which an optimizer has made its state, so that the size of a snapshot is known."""


class Checkpointer:
    """Commits a training run to a branch, resumes it from there, and rolls it back.

    Usable as a context manager: an exception in its block commits a last time where the state is
    consistent, and the end of the block waits until everything is durable.

    Attributes:
        repo: the repository.
        branch: the branch that this run writes.
        rollbacks: a report for every rollback, oldest first.
        environment_changes: items of the environment that are not as they were in the commit that
            was resumed from: (item, then, now).
        resumed_from: id of that commit, or None.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        every: int | None = 1000,
        every_seconds: float | None = None,
        branch: str | None = None,
        resume: bool = True,
        detectors: Iterable[Callable[[History], object]] | None = None,
        ladder: Iterable[Rung] | None = None,
        when_behind: WhenBehind = "wait",
        on_failure: OnFailure = "raise",
        in_flight: int = 1,
        healthy_after: int = 100,
        delta: bool | None = None,
        writer_threads: int | None = None,
        allow: Sequence[str] = (),
        ring: Ring | None = None,
        keep_diverged: bool = True,
        signals: bool = True,
        identity: Identity | None = None,
        warm_up: Callable[[], object] | None = None,
        **parts: object,
    ) -> None:
        """Open or create the repository, take the branch, and go on where it stands.

        Args:
            path: folder of the repository; made where missing.
            every: steps between two commits, which fall on its multiples; None: not by steps.
            every_seconds: seconds between two commits; None: not by time.
            branch: which branch; the current one where None.
            resume: give the state of the branch's tip back to the parts. Without it, a branch that
                has commits is an error.
            detectors: judge the readings; ``default_detectors()`` where None, none where empty.
            ladder: what is done about alarms; ``default_ladder()`` where None.
            when_behind: what a commit does while earlier ones are still being written: ``wait``
                for room, be left out (``skip``), or wait until it is durable itself (``sync``).
            on_failure: whether a commit that failed stops the run (``raise``) or is only told of
                (``continue``).
            in_flight: snapshots that may wait for the writer; each takes the size of the state.
            healthy_after: steps without alarm that make a commit healthy.
            delta: whether tensors are stored as differences, as for ``Repo.commit_state``.
            writer_threads: workers of the writer; all cores at low priority where None.
            allow: patterns of what may differ at a resume (``model.head.*``); it stays as it is.
            ring: light snapshots for short rollbacks, or None.
            keep_diverged: commit what diverged to the branch that is left behind.
            signals: commit a last time at SIGTERM and SIGINT.
            identity: who commits; the repository's where None.
            warm_up: runs one forward and backward pass through DistributedDataParallel, on any
                batch. It is called before a resume, which puts back all that it touches, so that
                DDP has put the gradients into its final buckets by then: PowerSGD needs that, and
                with more than two ranks the order of summation depends on it.
            **parts: what the run consists of, by name: ``model``, ``optimizer``, ``scheduler``,
                ``scaler``, ``dataloader``, ... None is left out.

        Raises:
            UsageError: settings that make no sense, no parts, or a part that mvc cannot take.
            ConflictError: another checkpointer writes the branch, or its tip does not fit the
                parts; nothing was changed.
            NotFoundError, CorruptionError: the tip is no training state, or damaged.
        """
        self._is_closed = True  # until all of it stands
        self._settings = Settings(
            every=every,
            every_seconds=every_seconds,
            when_behind=when_behind,
            on_failure=on_failure,
            in_flight=in_flight,
            healthy_after=healthy_after,
            delta=delta,
            writer_threads=writer_threads,
            allow=allow,
            ring=ring,
            keep_diverged=keep_diverged,
            signals=signals,
        )
        self.rollbacks: list[RollbackReport] = []
        self.environment_changes: list[tuple[str, object, object]] = []
        self.resumed_from: str | None = None
        self._step_calls = 0
        self._pid = os.getpid()
        self._ranks = Ranks()
        with contextlib.ExitStack() as undo:
            self._run = LiveRun(parts, self._ranks)
            undo.callback(self._run.remove)
            self._judge = Judge(detectors, ladder, healthy_after, has_scaler=self._run.has_scaler)
            self._ranks.on_first(lambda: Repo.init(path))
            self.repo = Repo.init(path)
            self.repo.identity = identity
            self.branch = branch or self._ranks.ask_first(self._current_branch)
            self._lock = self._ranks.on_first(lambda: BranchLock(self.repo.git_dir, self.branch))
            undo.callback(self._release)
            is_first = self._ranks.is_first
            self._log = RunLog(self.repo.open_feed(self.branch) if is_first else None)
            undo.callback(self._log.close)
            self._start(identity, warm_up, resume=resume)
            undo.pop_all()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _current_branch(self) -> str:
        branch = self.repo.head.branch
        if branch is None:
            raise UsageError("HEAD is on no branch", hint="pass branch=...")
        return branch

    def _start(
        self, identity: Identity | None, warm_up: Callable[[], object] | None, *, resume: bool
    ) -> None:
        settings = self._settings
        tip = self._ranks.ask_first(self._find_tip)
        self._log.start(0, settings.every, self._run.parts)
        if tip is not None:
            if not resume:
                raise UsageError(
                    f"branch {self.branch!r} has commits, and resume is off",
                    hint="pass branch=... for a run of its own",
                )
            if warm_up is not None:
                warm_up()
            self._ranks.together(lambda: self._resume(tip))
            self.environment_changes = self._ranks.share(self.environment_changes)
        self._commits = make_commits(
            self._ranks,
            self.repo,
            self.branch,
            self._run,
            settings=settings,
            log=self._log,
            lock=self._lock,
            identity=identity,
            on_commit=self._note,
        )
        self._commits.tips[self.branch] = tip or ""
        if tip is not None:
            self._commits.last_step = self.step_count
            self._judge.note_commit(self.step_count, tip)
        self._schedule = Schedule(settings.every, settings.every_seconds)
        self._schedule.note(time.monotonic())
        self._talk = Talk()
        self._signals = SignalWatch()
        if settings.signals:
            self._signals.start()
        atexit.register(self._at_exit)
        self._is_closed = False

    def _find_tip(self) -> str | None:
        with contextlib.suppress(NotFoundError):
            return self.repo.resolve(f"refs/heads/{self.branch}")
        return None

    def _resume(self, tip: str) -> None:
        started_s = time.perf_counter()
        stored = self._run.restore(CommitSource(self.repo, tip), allow=self._settings.allow)
        self._run.counters = stored.counters
        self._run.is_clean = True
        self._judge.restore(stored.watch, stored.ladder)
        self.resumed_from = tip
        self.environment_changes = list(
            compare_environments(stored.environment, self._run.environment)
        )
        seconds = time.perf_counter() - started_s
        self._log.resume(self.step_count, tip, seconds, self.environment_changes)

    # How far it is.

    @property
    def step_count(self) -> int:
        """Completed steps."""
        return self._run.counters.step

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, by the user or at a signal."""
        return self._is_closed

    @property
    def epoch(self) -> int:
        """Passes over the data that ``next_batch`` completed."""
        return 0 if self._run.data is None else self._run.data.epoch

    @property
    def tokens(self) -> int:
        """Tokens seen, as far as ``step`` was told."""
        return self._run.counters.tokens

    @property
    def samples(self) -> int:
        """Samples seen, as far as ``step`` was told."""
        return self._run.counters.samples

    @property
    def batch_index(self) -> int:
        """Batches drawn so far, left out ones included: the index of the next batch.

        For data that is found by a number: unlike the step it moves on when a rollback leaves
        batches out.
        """
        return self._run.counters.batches

    @property
    def commits(self) -> list[CommitReport]:
        """A report for every commit that was tried and has ended, oldest first."""
        return list(self._commits.reports)

    @property
    def skipped(self) -> list[int]:
        """Steps whose commit was left out because the writer was behind."""
        return list(self._commits.skipped)

    @property
    def queue_depth(self) -> int:
        """Snapshots that wait for the writer or are being written."""
        return self._commits.depth

    # The loop.

    def steps(self, total: int) -> Iterator[int]:
        """Yield the number of completed steps until it is ``total``, as ``range(total)`` would.

        It begins where the branch stands, goes back when the run does, and commits the last state.

        Raises:
            UsageError: the body did not call ``step()``, or ``total`` is no number of steps.
        """
        self._check_open()
        if type(total) is not int or total < 0:
            raise UsageError(f"{total!r} is no number of steps")
        while self.step_count < total:
            calls = self._step_calls
            yield self.step_count
            if self._step_calls == calls:
                raise UsageError("the body of the loop over steps() did not call step()")
        if self._ranks.share(self._commits.last_step) != self.step_count and self.step_count:
            self._commit(f"step {self.step_count}, the last one", {}, is_asked=True)
        self.wait()

    def next_batch(self) -> Any:
        """Return the next batch of the data loader, across epochs and rollbacks.

        Raises:
            UsageError: no loader was passed, or several.
        """
        self._check_open()
        return self._run.next_batch()

    def batches(self, total: int) -> Iterator[Any]:
        """Yield a batch for every step until ``total`` steps are complete; see ``steps``."""
        for _ in self.steps(total):
            yield self.next_batch()

    def check(self, *, loss: object = None, grad_norm: object = None) -> bool:
        """Judge a step before ``optimizer.step()``, so that it can still be skipped.

        Where the ladder answers an alarm with ``skip_step``, the next ``optimizer.step()`` does
        nothing. On CUDA this waits for the device. ``step()`` needs no loss then.

        Returns:
            Whether the step will be taken.
        """
        self._check_open()
        note = self._write_note()
        action = self._judge.check(self.step_count + 1, loss, grad_norm, self._log, note)
        if action is None or not action.skip:
            return True
        self._run.drop_next_step()
        self._run.scale_lr(action.lr_factor)
        return False

    def step(
        self,
        *,
        loss: object = None,
        grad_norm: object = None,
        tokens: int = 0,
        samples: int = 0,
        **metrics: float,
    ) -> RollbackReport | None:
        """Say that a step is complete; everything else follows from here.

        Args:
            loss: of the step: a number or a tensor of one element, on any device.
            grad_norm: of the step, the same.
            tokens: seen in this step; counted.
            samples: seen in this step; counted.
            **metrics: numbers for the commit of this step, if there is one.

        Returns:
            A report where the run was rolled back: parts and counters are those of an earlier
            step now. None otherwise.

        Raises:
            CommitFailedError: an earlier commit failed, and ``on_failure`` is "raise".
            DivergedError: the ladder says to stop, or there is nothing to go back to.
        """
        self._check_open()
        started_s = time.perf_counter()
        self._step_calls += 1
        self._run.complete_step(tokens, samples)
        note = self._write_note()
        action = self._judge.judge(self.step_count, loss, grad_norm, self._log, note)
        self._read_notes()
        self._pump()
        report = None
        if action is not None:
            report = self._act(action, started_s)
        else:
            if self._judge.latest is not None:
                self._log.step(self._judge.latest, self._run.lr)
            self._freeze(metrics)
        every = self._settings.every
        if self._step_calls == _SETTLED_STEPS and (every is None or every > _SETTLED_STEPS):
            self._commits.prepare(self._capture())
        self._obey_signal()
        return report

    def _freeze(self, metrics: dict[str, float]) -> None:
        if self._is_due():
            self._commit(f"step {self.step_count}", metrics, is_asked=False)
        self._commits.freeze_light(self._capture_here, self.step_count)

    def _is_due(self) -> bool:
        # The clock is rank 0's; the others hear of it.
        now_s = None if self._ranks.size > 1 else time.monotonic()
        return self._schedule.is_due(self.step_count, now_s) or self._talk.take_due()

    def _capture(self) -> dict[str, object]:
        return self._run.capture(self._judge.capture())

    def _capture_here(self) -> dict[str, object]:
        return self._run.capture(self._judge.capture(), gather=False)

    # What the ranks tell each other.

    def _write_note(self) -> float:
        if self._ranks.is_alone:
            return 0.0
        is_due = self._ranks.is_first and self._schedule.is_late(time.monotonic())
        failed = self._commits.failure is not None
        return self._talk.write(self._signals.caught, is_due=is_due, has_failed=failed)

    def _read_notes(self) -> None:
        if self._ranks.is_alone:
            return
        self._talk.read(self._judge.take_notes())
        if self._talk.heard.has_failed:
            self._ranks.ask_first(self._raise_failure)

    def _raise_failure(self) -> None:
        if self._commits.failure is not None:
            raise self._commits.failure

    def commit(self, message: str, **metrics: float) -> None:
        """Commit the live state now, beside the training; between two steps, as a rule.

        In the middle of gradient accumulation the gradients are part of it.

        Args:
            message: subject of the commit, and body after an empty line.
            **metrics: name → number.

        Raises:
            UsageError: no message.
            CommitFailedError: as for ``step``.
        """
        self._check_open()
        if not str(message).strip():
            raise UsageError("a commit needs a message")
        self._commit(message, metrics, is_asked=True)

    def _commit(
        self,
        message: str,
        metrics: dict[str, float],
        *,
        is_asked: bool,
        branch: str | None = None,
    ) -> None:
        latest = self._judge.latest
        numbers: dict[str, float] = {}
        if latest is not None and latest.step == self.step_count:
            read = {"loss": latest.loss, "grad_norm": latest.grad_norm}
            numbers = {name: value for name, value in read.items() if value is not None}
        made = self._commits.commit(
            self._capture, self.step_count, message, {**numbers, **_as_numbers(metrics)},
            is_asked=is_asked, branch=branch,
        )  # fmt: skip
        if made and branch is None:
            self._schedule.note(time.monotonic())
        self._pump()

    def wait(self) -> None:
        """Wait until all commits are durable.

        Raises:
            CommitFailedError: one failed, and ``on_failure`` is "raise".
        """
        self._check_open()
        self._commits.wait()
        self._mark_healthy()

    def _pump(self) -> None:
        self._commits.pump()
        self._mark_healthy()

    def _settle(self) -> None:
        """Wait until all commits are durable, and marked where they are healthy."""
        self._commits.wait()
        self._mark_healthy()
        self._commits.settle()

    def _mark_healthy(self) -> None:
        for step, commit in self._judge.take_healthy():
            self._commits.mark_healthy(step, commit)

    def _note(self, report: CommitReport) -> None:
        if report.branch == self.branch and report.commit is not None:
            self._judge.note_commit(report.step, report.commit)

    # Going back.

    def roll_back(self, to: str = "healthy", reason: str = "by hand") -> RollbackReport:
        """Go back to an earlier commit now.

        Args:
            to: ``healthy``, ``last``, or a revision.
            reason: why, one line.

        Raises:
            DivergedError: there is nothing to go back to.
            NotFoundError, ConflictError: no such revision, or the branch does not come from it;
                nothing was changed.
        """
        self._check_open()
        rung = roll_back_rung(to=to, min_steps_back=0, skip_batches=0)
        self._judge.ladder.forget()
        return self._go_back(rung, 0, self.step_count, reason, time.perf_counter())

    def _act(self, action: Action, started_s: float) -> RollbackReport | None:
        verdict = self._judge.verdict
        assert verdict is not None
        if action.stop:
            self._give_up(action.reason)
        if action.rollback is None:
            self._run.scale_lr(action.lr_factor)
            return None
        self._run.is_clean = False  # should the way back fail, this is not committed at the end
        return self._go_back(
            action.rollback, action.skip_batches, verdict.onset_step, action.reason, started_s
        )

    def _give_up(self, reason: str, cause: Exception | None = None) -> NoReturn:
        self._log.stop(self.step_count, reason)
        self._run.is_clean = False  # what diverged is not committed at the end
        raise DivergedError(
            f"the run diverged: {reason}", hint="mvc log --graph --all shows what was tried"
        ) from cause

    def _go_back(
        self, rung: Rollback, skip_batches: int, onset_step: int, reason: str, started_s: float
    ) -> RollbackReport:
        self._settle()
        frozen_step = self.step_count
        tip = self._ranks.share(self._commits.tips.get(self.branch))
        keeps = self._settings.keep_diverged and bool(tip)
        frozen = self._commits.freeze(self._capture, frozen_step) if keeps else None
        if frozen is not None:
            frozen.fence.wait()  # the restore below changes what is being copied
        try:
            report, stored = roll_back(
                self.repo, self._run, self._commits,
                Order(rung, skip_batches, onset_step, reason), started_s, self._ranks,
            )  # fmt: skip
        except MvcError as error:
            if frozen is not None:
                self._commits.drop(frozen)
            if isinstance(error, DivergedError):
                self._give_up(error.message, error)
            raise
        self._run.is_clean = True
        before = self._judge.ladder.lr_factor
        self._run.scale_lr(before / _lr_factor(stored.ladder))
        self._judge.forget_after(report.to_step)
        self._talk.forget()
        self._commits.forget_after(report.to_step, report.to_commit)
        if frozen is not None and tip:
            name = report.diverged_branch or name_diverged(self.repo, self.branch, frozen_step, tip)
            self._commits.tips[name] = tip
            self._commits.submit(frozen, name, f"diverged at step {frozen_step}: {reason}", {})
        self._commits.facts |= {
            "rolled_back_from": f"step {report.from_step}",
            "rolled_back_to": f"step {report.to_step}",
            "rolled_back_because": reason,
            "skipped_batches": report.skipped,
        }
        self.rollbacks.append(report)
        self._log.rollback(report)
        return report

    # The end.

    def _obey_signal(self) -> None:
        name = self._signals.caught if self._ranks.is_alone else self._talk.heard.signal
        if name is None:
            return
        self._signals.take(name)
        self._log.stop(self.step_count, name)
        self.close(last=f"step {self.step_count}, at {name}")
        self._signals.deliver()

    def close(self, *, last: str | None = None) -> None:
        """Wait until everything is durable, and let go of run, branch and writer.

        Args:
            last: commit the state of the last complete step first, with this message, where it is
                consistent and not committed yet.

        Raises:
            CommitFailedError: a commit failed, and ``on_failure`` is "raise".
        """
        if self._is_closed or os.getpid() != self._pid:  # a forked child leaves it to its parent
            return
        try:
            if last is not None:
                self._commit_last(last)
            self._settle()
            self._log.end(self.step_count)
        finally:
            self._is_closed = True
            atexit.unregister(self._at_exit)
            self._signals.stop()
            self._run.remove()
            try:
                self._commits.close()
            finally:
                self._release()
                self._log.close()

    def _commit_last(self, message: str) -> None:
        done, step = self._ranks.share(self._commits.last_step), self.step_count
        if all(self._ranks.exchange(self._run.is_clean)):
            if step and done != step:
                self._commit(message, {}, is_asked=True)
            return
        ring = self._commits.ring
        frozen = None if ring is None else ring.find(step)
        if self._ranks.size == 1 and frozen is not None and (done is None or frozen.step > done):
            self._commits.commit_frozen(frozen, f"{message} (as of step {frozen.step})")

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(kind)

    def _end(self, kind: type[BaseException] | None) -> None:
        if kind is None:
            self.close(last=f"step {self.step_count}, the last one")
            return
        if self._is_closed:
            return
        self._log.stop(self.step_count, kind.__name__)
        self._ranks.leave()  # nobody knows where the others are
        # The error on its way out must not be hidden by one of ours; the log has it.
        with contextlib.suppress(Exception):
            is_last = self._ranks.size == 1 and not issubclass(kind, DivergedError)
            self.close(last=f"step {self.step_count}, at {kind.__name__}" if is_last else None)

    def _at_exit(self) -> None:
        error = getattr(sys, "last_value", None)
        self._end(None if error is None else type(error))

    def remove(self) -> None:
        """Take all hooks off and close; the handle that other libraries expect."""
        self.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError("this checkpointer is closed", hint="make a new one; it resumes")


def _as_numbers(metrics: dict[str, float]) -> dict[str, float]:
    """Return metrics as plain numbers; tensors and arrays of one element are taken, too."""
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"metric {name!r} is no number: {error}") from error
    return numbers


def _lr_factor(ladder: object) -> float:
    factor = ladder.get("lr_factor") if isinstance(ladder, dict) else None
    return factor if isinstance(factor, float) and factor > 0 else 1.0

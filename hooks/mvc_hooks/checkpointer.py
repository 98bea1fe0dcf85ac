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
from typing import TYPE_CHECKING, Any, Self

from mvc import NotFoundError, Repo, UsageError
from mvc_hooks.commits.branchlock import BranchLock
from mvc_hooks.commits.rankcommits import make_commits
from mvc_hooks.commits.schedule import Schedule
from mvc_hooks.divergence.judge import Judge
from mvc_hooks.divergence.ladder import Rollback
from mvc_hooks.environment import compare_environments
from mvc_hooks.errors import DivergedError
from mvc_hooks.parts.sources import CommitSource
from mvc_hooks.ranks.ranks import Ranks
from mvc_hooks.recovery.answers import answer, go_back
from mvc_hooks.recovery.rollback import RollbackRequest
from mvc_hooks.run.live import LiveRun
from mvc_hooks.run.log import RunLog
from mvc_hooks.run.running import Running
from mvc_hooks.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from mvc import Identity
    from mvc_hooks.divergence.history import History
    from mvc_hooks.divergence.ladder import LadderStep
    from mvc_hooks.reports import CommitReport, RollbackReport
    from mvc_hooks.settings import OnFailure, WhenBehind
    from mvc_hooks.snapshot.ring import Ring


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
        ladder: Iterable[LadderStep] | None = None,
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
        settings = Settings(
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
        self._pid = os.getpid()
        ranks = Ranks()
        with contextlib.ExitStack() as undo:
            run = LiveRun(parts, ranks)
            undo.callback(run.remove)
            judge = Judge(detectors, ladder, healthy_after, has_scaler=run.has_scaler)
            ranks.on_first(lambda: Repo.init(path))
            self.repo = Repo.init(path)
            self.repo.identity = identity
            self.branch = branch or ranks.ask_first(self._current_branch)
            self._lock = ranks.on_first(lambda: BranchLock(self.repo.git_dir, self.branch))
            undo.callback(self._release)
            log = RunLog(self.repo.open_feed(self.branch) if ranks.is_first else None)
            undo.callback(log.close)
            log.start(0, every, run.parts)
            tip = ranks.ask_first(self._find_tip)
            if tip is not None:
                self._check_may_resume(resume=resume)
                if warm_up is not None:
                    warm_up()
                ranks.together(lambda: self._resume(run, judge, log, tip, allow))
                self.environment_changes = ranks.share(self.environment_changes)
            commits = make_commits(
                ranks, self.repo, self.branch, run, settings=settings, log=log, lock=self._lock,
                identity=identity, on_commit=self._note,
            )  # fmt: skip
            schedule = Schedule(every, every_seconds)
            self._running = Running(
                settings, self.repo, self.branch, run, judge, commits, ranks, log, schedule
            )
            self._start(tip)
            undo.pop_all()

    def _start(self, tip: str | None) -> None:
        running = self._running
        running.commits.tips[self.branch] = tip or ""
        if tip is not None:
            running.commits.last_step = self.step_count
            running.judge.note_commit(self.step_count, tip)
        running.schedule.note(time.monotonic())
        if running.settings.signals:
            running.signals.start()
        atexit.register(self._at_exit)
        self._is_closed = False

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _current_branch(self) -> str:
        branch = self.repo.head.branch
        if branch is None:
            raise UsageError("HEAD is on no branch", hint="pass branch=...")
        return branch

    def _check_may_resume(self, *, resume: bool) -> None:
        if not resume:
            raise UsageError(
                f"branch {self.branch!r} has commits, and resume is off",
                hint="pass branch=... for a run of its own",
            )

    def _find_tip(self) -> str | None:
        with contextlib.suppress(NotFoundError):
            return self.repo.resolve(f"refs/heads/{self.branch}")
        return None

    def _resume(
        self, run: LiveRun, judge: Judge, log: RunLog, tip: str, allow: Sequence[str]
    ) -> None:
        started_s = time.perf_counter()
        stored = run.restore(CommitSource(self.repo, tip), allow=allow)
        run.counters = stored.counters
        run.is_clean = True
        judge.restore(stored.watch, stored.ladder)
        self.resumed_from = tip
        self.environment_changes = list(compare_environments(stored.environment, run.environment))
        seconds = time.perf_counter() - started_s
        log.resume(run.counters.step, tip, seconds, self.environment_changes)

    def _note(self, report: CommitReport) -> None:
        if report.branch == self.branch and report.commit is not None:
            self._running.judge.note_commit(report.step, report.commit)

    # How far it is.

    @property
    def step_count(self) -> int:
        """Completed steps."""
        return self._running.run.counters.step

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, by the user or at a signal."""
        return self._is_closed

    @property
    def epoch(self) -> int:
        """Passes over the data that ``next_batch`` completed."""
        return 0 if self._running.run.data is None else self._running.run.data.epoch

    @property
    def tokens(self) -> int:
        """Tokens seen, as far as ``step`` was told."""
        return self._running.run.counters.tokens

    @property
    def samples(self) -> int:
        """Samples seen, as far as ``step`` was told."""
        return self._running.run.counters.samples

    @property
    def batch_index(self) -> int:
        """Batches drawn so far, left out ones included: the index of the next batch.

        For data that is found by a number: unlike the step it moves on when a rollback leaves
        batches out.
        """
        return self._running.run.counters.batches

    @property
    def commits(self) -> list[CommitReport]:
        """A report for every commit that was tried and has ended, oldest first."""
        return list(self._running.commits.reports)

    @property
    def skipped(self) -> list[int]:
        """Steps whose commit was left out because the writer was behind."""
        return list(self._running.commits.skipped)

    @property
    def queue_depth(self) -> int:
        """Snapshots that wait for the writer or are being written."""
        return self._running.commits.depth

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
            calls = self._running.calls
            yield self.step_count
            if self._running.calls == calls:
                raise UsageError("the body of the loop over steps() did not call step()")
        running = self._running
        if running.ranks.share(running.commits.last_step) != self.step_count and self.step_count:
            running.commit(f"step {self.step_count}, the last one", {}, is_asked=True)
        self.wait()

    def next_batch(self) -> Any:
        """Return the next batch of the data loader, across epochs and rollbacks.

        Raises:
            UsageError: no loader was passed, or several.
        """
        self._check_open()
        return self._running.run.next_batch()

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
        return self._running.check(loss, grad_norm)

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
        running = self._running
        action = running.take_step(loss, grad_norm, tokens, samples)
        report = None
        if action is None:
            running.freeze(metrics)
        else:
            report = answer(running, action, started_s)
        if report is not None:
            self.rollbacks.append(report)
        running.prepare()
        self._obey_signal()
        return report

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
        self._running.commit(message, metrics, is_asked=True)

    def wait(self) -> None:
        """Wait until all commits are durable.

        Raises:
            CommitFailedError: one failed, and ``on_failure`` is "raise".
        """
        self._check_open()
        self._running.commits.wait()
        self._running.mark_healthy()

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
        self._running.judge.ladder.forget()
        target = Rollback(to, min_steps_back=0, skip_batches=(0, 0))
        request = RollbackRequest(target, 0, self.step_count, reason)
        report = go_back(self._running, request, time.perf_counter())
        self.rollbacks.append(report)
        return report

    # The end.

    def _obey_signal(self) -> None:
        running = self._running
        name = running.find_signal()
        if name is None:
            return
        running.signals.take(name)
        running.log.stop(self.step_count, name)
        self.close(last=f"step {self.step_count}, at {name}")
        running.signals.deliver()

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
        running = self._running
        try:
            if last is not None:
                running.commit_last(last)
            running.settle()
            running.log.end(self.step_count)
        finally:
            self._is_closed = True
            atexit.unregister(self._at_exit)
            running.signals.stop()
            running.run.remove()
            try:
                running.commits.close()
            finally:
                self._release()
                running.log.close()

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
        self._running.log.stop(self.step_count, kind.__name__)
        self._running.ranks.leave()  # nobody knows where the others are
        # The error on its way out must not be hidden by one of ours; the log has it.
        with contextlib.suppress(Exception):
            is_last = self._running.ranks.size == 1 and not issubclass(kind, DivergedError)
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

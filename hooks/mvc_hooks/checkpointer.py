"""Checkpointer: a commit every N steps in the background, and a rollback when the run diverges.

    ckpt = Checkpointer("runs/gpt", model=model, optimizer=optimizer, dataloader=loader, every=1000)
    for step in ckpt.steps(100_000):
        loss = train_step(ckpt.next_batch())
        ckpt.step(loss=loss)

The end of ``step()`` is the one place where the state of a run is consistent: there it is judged
(did it diverge?), frozen, and rolled back. Everything that takes long happens in another process.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from typing import TYPE_CHECKING, Any

from mvc import UsageError
from mvc_hooks.commits.coordinator import as_count, as_numbers
from mvc_hooks.divergence.ladder import Action, Rollback, Steps
from mvc_hooks.ending import EndingRun, end_earlier
from mvc_hooks.log import ranged
from mvc_hooks.opening import open_run
from mvc_hooks.parts.make import join_parts
from mvc_hooks.recovery import RollbackRequest
from mvc_hooks.session import OnFailure, Replicate, Settings, WhenBehind

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mvc import Identity
    from mvc_hooks.divergence.watch import Judges
    from mvc_hooks.extension import Extension
    from mvc_hooks.reports import CommitReport, RollbackReport
    from mvc_hooks.run.audit import Audit
    from mvc_hooks.snapshot.ring import Ring

_LOOKS = (2, 3, 10, 100, 1000)
"""Steps of this process after which to look for state that no part covers."""
_FIRST_STEPS = 2
"""Steps of this process to doubt; after them an optimizer has its state, so a snapshot its size."""


class Checkpointer(EndingRun):
    """Commits a training run to a branch, resumes it from there, and rolls it back.

    Usable as a context manager: an exception in its block commits a last time if the state is
    consistent, and the end of the block waits until everything is durable. So does the end of the
    program, and, in a run of one process, the end of the checkpointer: ``del ckpt``, or another one
    that is made for the same branch, as when a cell of a notebook runs again.

    Attributes:
        repo: the repository.
        branch: the branch that this run writes.
        rollbacks: a report for every rollback, oldest first.
        consistency: compares the ranks, if it was passed.
        environment_changes: what changed in the environment since the commit that the run
            resumed from: (item, then, now).
        resumed_from: id of that commit, or None.

    Args:
        path: folder of the repository; created if missing.
        every: commit at every multiple of this many steps; None: not by steps.
        every_seconds: seconds between two commits; None: not by time.
        branch: which branch; defaults to the current one.
        resume: restore the parts from the branch's tip. If False, a branch that already has
            commits is an error.
        detectors: judge the readings, one or several; defaults to ``NotFinite()``, ``Spike()`` and
            ``Trend()``, with a GradScaler also ``ScaleCollapse()``; empty means none.
        ladder: what to do about alarms, one step or several in turn; defaults to a rollback, two
            more with half the rate each time, then a stop.
        when_behind: what a commit does while earlier ones are still being written: ``wait``
            for room, ``skip`` itself, or ``sync``: wait until it is durable itself.
        on_failure: whether a failed commit stops the run (``raise``) or is only reported
            (``continue``).
        in_flight: snapshots that may wait for the writer; each takes the size of the state.
        healthy_after: steps without an alarm after which a commit counts as healthy.
        replicate: on how many other machines each rank's part of the newest commit is also kept in
            memory, 0 or 1, so that a run goes on from there when a machine is lost.
        delta: whether tensors are stored as differences, as for ``Repo.commit_state``.
        writer_threads: threads of the writer; defaults to all cores, at low priority unless the
            training waits for them.
        allow: patterns of what may differ at a resume, and at a rollback (``model.head.*``); it keeps its
            value.
        ring: light snapshots for short rollbacks, or None.
        keep_diverged: commit the diverged state to the abandoned branch before a rollback.
        signals: commit a last time at SIGTERM and SIGINT.
        consistency: an ``mvc_lab.Consistency``: compares what several ranks hold alike while they train.
        identity: who commits; defaults to whom Git would name, as for ``Repo.open``.
        warm_up: runs one forward and backward pass through DistributedDataParallel, on any
            batch. It is called before a resume, twice, and the resume restores everything that
            it touches. Only a static graph on more than two ranks needs it: it learns from two
            passes in which order it sums gradients, which is otherwise in the commit.
        monitor: an ``mvc_lab.Monitor``: measures the run, and serves its metrics.
        pipeline: a node of the data pipeline (``mvc_data.node``), or a list of them, that the
            loaders do not use themselves, such as a tokenizer that made the files they read.
        shards: shard maps that the data is checked against before the first step: the path of one,
            an ``mvc_data.ShardCheck``, several of these, or a dict of name → one. A loader may bring its own,
            as ``shards``. ``allow=["shards"]`` resumes with other maps than the commit's.
        extensions: further ``Extension`` objects that take part in the run.
        parts: further parts of the run by name: whatever can be stored, plain values too. Of
            names only ``rng``, ``details``, ``gradients``, ``run``, ``environment``, ``watch``,
            ``ladder``, ``data_record`` and ``ranks`` are reserved.
        **named: the run, by name: ``model``, ``optimizer``, ``scheduler``, ``scaler``,
            ``dataloader``, ...: objects with state, or dicts and lists of them. None is
            ignored.

    Raises:
        UsageError: a setting that makes no sense, a name that looks like a mistyped option, no
            parts, a part that mvc cannot take, or no name to commit under.
        DataError: the data is not what its shard map says, on whichever rank.
        ConflictError: another checkpointer writes the branch, or its tip does not fit the
            parts or has another data pipeline; nothing was changed.
        NotFoundError, CorruptionError: the tip is not a training state, or is damaged.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        every: int | None = 1000,
        every_seconds: float | None = None,
        branch: str | None = None,
        resume: bool = True,
        detectors: Judges | None = None,
        ladder: Steps | None = None,
        when_behind: WhenBehind = "wait",
        on_failure: OnFailure = "raise",
        in_flight: int = 1,
        healthy_after: int = 100,
        replicate: Replicate = 0,
        delta: bool | None = None,
        writer_threads: int | None = None,
        allow: Sequence[str] = (),
        ring: Ring | None = None,
        keep_diverged: bool = True,
        signals: bool = True,
        consistency: Extension | None = None,
        identity: Identity | None = None,
        warm_up: Callable[[], object] | None = None,
        monitor: Extension | None = None,
        pipeline: object = None,
        shards: object = None,
        extensions: Sequence[Extension] = (),
        parts: Mapping[str, object] | None = None,
        **named: object,
    ) -> None:
        settings = Settings.pick(locals())  # before any other name is bound
        objects = join_parts(named, parts, OPTIONS)
        end_earlier(path, branch)
        self._settings, self.consistency = settings, consistency
        self._open(open_run(path, objects, settings, detectors, ladder))

    # Progress.

    @property
    def commits(self) -> list[CommitReport]:
        """A report for every commit that was tried and has ended, oldest first."""
        return list(self._commits.reports)

    @property
    def skipped(self) -> list[int]:
        """Steps that were not committed because the writer was behind."""
        return list(self._commits.skipped)

    @property
    def queue_depth(self) -> int:
        """Snapshots that wait for the writer or are being written."""
        return self._commits.queue.depth

    # The loop.

    def steps(self, total: int) -> Iterator[int]:
        """Yield the number of completed steps until it is ``total``, as ``range(total)`` would.

        It starts at the step of the branch's tip, follows rollbacks, and commits the last state.

        Raises:
            UsageError: the body did not call ``step()``, or ``total`` is not a number of steps.
        """
        self._check_open()
        if type(total) is not int or total < 0:
            raise UsageError(f"{total!r} is not a number of steps")
        total = self._run.extensions.plan_steps(total)
        while self.step_count < total:
            calls = self._calls
            yield self.step_count
            if self._calls == calls:
                raise UsageError("the body of the loop over steps() did not call step()")
            self._log.doubt(self._run.tail.look())
        if self._ranks.share(self._commits.last_step) != self.step_count and self.step_count:
            self._commits.commit(self._name_last(), {}, is_asked=True)
        self.wait()

    def batches(self, total: int) -> Iterator[Any]:
        """Yield a batch for every step until ``total`` steps are complete; see ``steps``."""
        for _ in self.steps(total):
            yield self.next_batch()

    def next_batch(self) -> Any:
        """As for ``StepRun``; a warning says what came between ``step()`` and it."""
        self._check_open()
        self._log.doubt(self._run.tail.look_before_batch())
        return super().next_batch()

    @ranged("mvc.step")
    def step(
        self,
        *,
        loss: object = None,
        grad_norm: object = None,
        tokens: int = 0,
        samples: int = 0,
        **metrics: float,
    ) -> RollbackReport | None:
        """Report a complete step; it is judged, committed if due, and rolled back if it diverged.

        Args:
            loss: of the step: a number or a tensor of one element, on any device.
            grad_norm: of the step, the same.
            tokens: seen in this step; added up.
            samples: seen in this step; added up.
            **metrics: numbers for the commit of this step, if there is one.

        Returns:
            A report if the run was rolled back: parts and counters are then those of an earlier
            step. None otherwise.

        Raises:
            CommitFailedError: an earlier commit failed, and ``on_failure`` is "raise".
            DivergedError: the ladder says to stop, or there is nothing to go back to.
            InconsistentError: ranks do not hold the same, and ``consistency`` answers with a stop.
        """
        self._check_open()
        started_s = time.perf_counter()
        self._calls += 1
        if self._calls <= _FIRST_STEPS:
            as_numbers(metrics)  # now, not at the first commit
            self._log.doubt(self._ranks.merge(self._run.doubt_step(loss, metrics)))
        self._run.complete_step(as_count("tokens", tokens), as_count("samples", samples))
        if self._calls == _FIRST_STEPS:
            self._run.check_replicas()
        action = self._judge_step(loss, grad_norm)
        self._read_notes()
        self._commits.pump()
        report = self._answer(action, started_s)
        if report is None:
            self._record_step(metrics)
        else:
            self.rollbacks.append(report)
        if self._calls == _FIRST_STEPS and (self._settings.every or math.inf) > _FIRST_STEPS:
            self._commits.prepare()
        self._look_around()
        if self._commits.last_step == self.step_count and self._ranks.is_first:
            self._run.tail.note(self.step_count)
        self._session.queue_depth = self.queue_depth
        for extension in self._run.extensions:
            extension.after_step(self.step_count)
        self._obey_signal()
        return report

    def _answer(self, action: Action | None, started_s: float) -> RollbackReport | None:
        """Do what an alarm needs, and what extensions find; return a report if the run was rolled back."""
        self._has_diverged = action is not None  # until there is an answer
        report = None if action is None else self._recovery.answer(action, started_s)
        for extension in self._run.extensions if report is None else ():
            self._has_diverged = True  # until the extension knows better
            report = extension.check_step(self.step_count)
            if report is not None:
                break
        self._has_diverged = False
        return report

    def _record_step(self, metrics: dict[str, float]) -> None:
        """Log a step that is kept, commit its state if that is due, and put it into the ring."""
        if self._judge.latest is not None:
            self._log.step(self._judge.latest, self._run.lr, self._judge.read_scaler())
        # The clock is rank 0's; the other ranks hear of it in a note.
        now_s = time.monotonic() if self._ranks.size == 1 else None
        if self._commits.schedule.is_due(self.step_count, now_s) or self._talk.take_due():
            self._commits.commit(f"step {self.step_count}", metrics, is_asked=False)
        self._commits.freeze_light()

    def _look_around(self) -> None:
        """Say what commits hold at the first step, and what they miss at a few of those after it."""
        if self._calls != 1 and self._calls not in _LOOKS:
            return
        watch, found = self._run.watch, dict[str, str]()
        with contextlib.suppress(Exception):  # whatever the user's objects do, a look ends no run
            watch.note_script(sys._getframe(3))  # noqa: SLF001  of whoever called step(), through its range
            if self._calls == 1:
                self._log.hold(watch.report(self.step_count).summary)
            found = watch.look()
        self._log.miss(self._ranks.merge(f"{place} ({what})" for place, what in found.items()))

    def audit(self) -> Audit:
        """Return what commits of this run hold and what they miss, as far as steps have shown it.

        What changes outside the parts is found by comparing steps: ask after a few of them.
        """
        self._check_open()
        return self._run.watch.report(self.step_count)

    def commit(self, message: str, **metrics: float) -> None:
        """Commit the live state now, in the background; best called between two steps.

        In the middle of gradient accumulation the gradients are part of it.

        Args:
            message: subject of the commit, and body after an empty line.
            **metrics: name → number.

        Raises:
            UsageError: no message, or a metric is not a number.
            CommitFailedError: as for ``step``.
        """
        self._check_open()
        text: object = message
        if not isinstance(text, str) or not message.strip() or "\0" in message:
            raise UsageError(f"{message!r} is not a commit message")
        self._run.tail.forget()
        self._commits.commit(message, metrics, is_asked=True)

    def wait(self) -> None:
        """Wait until all commits are durable, and with ``replicate`` in another machine's memory, too.

        Raises:
            CommitFailedError: a commit failed, and ``on_failure`` is "raise".
        """
        self._check_open()
        self._commits.wait()
        self._commits.wait_copied()

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
        self._run.tail.forget()
        self._judge.ladder.forget()
        target = Rollback(to, min_steps_back=0, skip_batches=(0, 0))
        request = RollbackRequest(target, 0, self.step_count, reason)
        report = self._recovery.roll_back(request, time.perf_counter())
        self.rollbacks.append(report)
        return report

    # What the ranks tell each other, along with their readings.

    def _write_note(self) -> dict[str, float]:
        if self._ranks.is_alone:
            return {}
        return self._commits.write_note(self._signals.caught)

    def _read_notes(self) -> None:
        arrived = self._messages.take_arrived()
        if self._ranks.is_alone:
            return
        self._talk.read(arrived)
        if self._talk.heard.has_failed:
            self._commits.raise_failure()


OPTIONS = frozenset(Checkpointer.__init__.__kwdefaults__ or ())
"""The names of a checkpointer's options: any other name is that of a part."""

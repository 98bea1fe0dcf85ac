"""The replay: load a commit into a fresh run, train K steps, and compare at every commit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mvc import Repo, UnsupportedError, UsageError
from mvc_hooks.environment import compare_environments
from mvc_hooks.judge import Judge
from mvc_hooks.parts.restoring import InexactRestoreError
from mvc_hooks.parts.sources import from_commit
from mvc_hooks.ranks.pieces import RANKS
from mvc_hooks.replay.report import FirstDifference, ReplayReport, compare_run
from mvc_hooks.replay.stretch import find_stretch
from mvc_hooks.run.live import LiveRun
from mvc_hooks.run.log import RunLog
from mvc_hooks.training import StepRun, as_training

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from pathlib import Path

    from mvc_hooks.replay.stretch import Stretch
    from mvc_hooks.run.live import StoredRun
    from mvc_hooks.training import Training


def replay_steps(
    repo: Repo | str | os.PathLike[str],
    revision: str,
    steps: int,
    build: Callable[[], object],
    *,
    script: Path | None = None,
) -> ReplayReport:
    """Load a commit, train some steps, and compare with the commits of those steps.

    Nothing is written to the repository. Afterwards the random number generators of this process,
    and what ``build`` made, are as after the last replayed step.

    Args:
        repo: the repository, or its folder.
        revision: the commit to begin at; at the tip of a branch, the commit to end at.
        steps: how many steps.
        build: returns a fresh ``Training``.
        script: file of the training's code; defaults to that of this process.

    Raises:
        NotFoundError: there is no such commit, or none so many steps later.
        ConflictError: the parts do not fit the commit.
        UnsupportedError: the run had several ranks.
        UsageError: ``build`` returns something else, or a step does.
    """
    started_s = time.perf_counter()
    repo = repo if isinstance(repo, Repo) else Repo.open(repo)
    stretch = find_stretch(repo, revision, steps)
    if RANKS in repo.outline_state(stretch.start.commit):
        raise UnsupportedError(
            f"commit {stretch.start.commit[:10]} comes from a run on several ranks; "
            "a replay has only one"
        )
    training = as_training(build())
    run = LiveRun(training.parts)
    run.environment = run.read_environment(script)
    try:
        return _replay(repo, stretch, training, run, started_s)
    finally:
        run.remove()


def _replay(
    repo: Repo, stretch: Stretch, training: Training, run: LiveRun, started_s: float
) -> ReplayReport:
    inexact: list[str] = []
    changes: list[tuple[str, object, object]] = []
    compared: list[int] = []
    difference: FirstDifference | None = None
    tensors = 0
    try:
        stored = run.restore(from_commit(repo, stretch.start.commit))
    except InexactRestoreError as error:
        inexact = [str(error)]
    else:
        changes = compare_environments(stored.environment, run.environment)
        replayed = _ReplayRun(training, run, stored)
        for point in stretch.points:
            replayed.train_to(point.step)
            exact_to = compared[-1] if compared else stretch.start.step
            tensors, difference = compare_run(repo, run, point, exact_to)
            if difference is not None:
                break
            compared.append(point.step)
    return ReplayReport(
        stretch=stretch,
        state_differences=tuple(inexact),
        compared=tuple(compared),
        difference=difference,
        environment_changes=tuple(changes),
        tensors=tensors,
        seconds=time.perf_counter() - started_s,
    )


class _ReplayRun(StepRun):
    """A run that is trained but not committed."""

    def __init__(self, training: Training, run: LiveRun, stored: StoredRun) -> None:
        self._run, self._step = run, training.train_step
        run.counters = stored.counters
        self._judge = Judge(training.detectors, training.ladder, 1, has_scaler=run.has_scaler)
        self._judge.restore(stored.watch, stored.ladder)
        self._log = RunLog(None)

    def step(self, **_: object) -> None:
        """Refuse, because ``train_to`` completes the step."""
        raise UsageError("train_step called step() itself", hint="let it return the arguments")

    def train_to(self, step: int) -> None:
        while self.step_count < step:
            returned = self._step(self)
            if returned is None:
                returned = {}
            if not hasattr(returned, "keys"):
                raise UsageError(
                    f"train_step returned a {type(returned).__name__}", hint='return {"loss": loss}'
                )
            self._run.complete_step(returned.get("tokens", 0), returned.get("samples", 0))
            loss, grad_norm = returned.get("loss"), returned.get("grad_norm")
            action = self._judge.judge(self.step_count, loss, grad_norm, self._log, lr=self._run.lr)
            # A rollback or stop is not repeated: the run did neither, or its commits would end here.
            if action is not None and action.rollback is None and not action.stop:
                self._run.scale_lr(action.lr_factor)

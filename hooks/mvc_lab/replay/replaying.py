"""The replay: load a commit into a fresh run, train K steps, and compare at every commit.

A run of several ranks is replayed by as many, each of which does all of this.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from mvc import FormatError, Repo, UnsupportedError, UsageError
from mvc.training import RunStore
from mvc_hooks.environment import compare_environments
from mvc_hooks.extension import Host, StoredCommit
from mvc_hooks.judge import Judge
from mvc_hooks.log import RunLog
from mvc_hooks.parts.restoring import InexactRestoreError, from_commit
from mvc_hooks.ranks.group import Ranks, spell_size
from mvc_hooks.ranks.messages import StepMessages
from mvc_hooks.ranks.state import count_ranks
from mvc_hooks.run.live import LiveRun, StoredRun
from mvc_hooks.training import StepRun, Training, as_training
from mvc_lab.replay.comparing import compare_run
from mvc_lab.replay.report import ReplayDifference, ReplayReport, ReplayStretch, find_stretch

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from pathlib import Path


def replay_steps(
    repo: Repo | str | os.PathLike[str],
    revision: str,
    steps: int,
    build: Callable[[], object],
    *,
    script: Path | None = None,
) -> ReplayReport:
    """Load a commit, train some steps, and compare with the commits of those steps.

    The shards of its loaders are checked first, as before a run; the repository remembers their hashes,
    and nothing else is written to it. Afterwards the random number generators of this process, and what
    ``build`` made, are as after the last replayed step. Of a run of several ranks each has to call
    this, and all get the same report; ``build`` may start the process group.

    Args:
        repo: the repository, or its folder.
        revision: the commit to begin at; at the tip of a branch, the commit to end at.
        steps: how many steps.
        build: returns a fresh ``Training``.
        script: file of the training's code; defaults to that of this process.

    Raises:
        NotFoundError: there is no such commit, or none so many steps later.
        ConflictError: the parts do not fit the commit, or a loader has another shard map.
        DataError: shards are not what their map says.
        UnsupportedError: the number of ranks changed on the way.
        UsageError: ``build`` returns something else, or a step does, or this run has another number
            of ranks.
    """
    started_s = time.perf_counter()
    repo = repo if isinstance(repo, Repo) else Repo.open(repo)
    stretch = find_stretch(repo, revision, steps)
    size = find_size(repo, stretch)
    training = as_training(build())
    ranks = Ranks()
    _check_size(ranks.size, size, stretch)
    run = LiveRun(training.parts, ranks)
    run.environment = run.read_environment(script)
    host = Host(run.objects, run.parts, ranks, RunLog())
    host.repo = repo
    try:
        run.extensions.open(host)
        report = _replay(host, stretch, training, run)
        for extension in run.extensions:
            extension.settle()
        return replace(report, seconds=time.perf_counter() - started_s)
    finally:
        run.remove()


def find_size(repo: Repo, stretch: ReplayStretch) -> int:
    """Return how many ranks made the commits of a stretch."""
    points = (stretch.start, *stretch.points)
    sizes: list[int] = []
    for point in points:
        size = count_ranks(RunStore(repo).outline_state(point.commit))
        if type(size) is not int or size < 1:
            raise FormatError(f"commit {point.commit[:10]} does not say how many ranks made it")
        sizes.append(size)
        if size != sizes[0]:
            raise UnsupportedError(
                f"{spell_size(sizes[0])} made the commit of step {stretch.start.step}, {spell_size(size)} "
                f"that of step {point.step}: no replay is exact across that",
                hint="begin at a later commit, or replay fewer steps",
            )
    return sizes[0]


def _check_size(live: int, stored: int, stretch: ReplayStretch) -> None:
    if live == stored:
        return
    where = f"commit {stretch.start.commit[:10]} was made by {spell_size(stored)}"
    if live == 1:
        raise UsageError(
            f"{where}, but the entry starts no process group",
            hint="if not torch.distributed.is_initialized(): torch.distributed.init_process_group()",
        )
    raise UsageError(
        f"{where}, this replay has {spell_size(live)}", hint=f"start {spell_size(stored)}"
    )


def _replay(host: Host, stretch: ReplayStretch, training: Training, run: LiveRun) -> ReplayReport:
    repo, ranks, start = host.repo, host.ranks, stretch.start
    for extension in run.extensions:
        extension.begin()
    source = from_commit(repo, start.commit)
    run.extensions.check_commit(StoredCommit(start.commit, source, is_replay=True))
    stored: StoredRun | None = None
    inexact: list[str] = []
    changes: list[tuple[str, object, object]] = []
    compared: list[int] = []
    difference: ReplayDifference | None = None
    tensors = 0
    try:
        stored = run.restore(source)
    except InexactRestoreError as error:
        inexact = [error.message]
    inexact = ranks.share(ranks.merge(inexact))
    if stored is not None and not inexact:
        # Commits have the environment of rank 0.
        changes = ranks.share(compare_environments(stored.environment, run.environment))
        if ranks.is_first:
            RunLog().doubt(stored.doubts)
        replayed = _ReplayRun(training, run, stored)
        for point in stretch.points:
            replayed.train_to(point.step)
            exact_to = compared[-1] if compared else start.step
            tensors, difference = compare_run(repo, run, ranks, point, exact_to)
            if difference is not None:
                break
            compared.append(point.step)
    return ReplayReport(
        stretch, tuple(inexact), tuple(compared), difference, tuple(changes), tensors
    )


class _ReplayRun(StepRun):
    """A run that is trained but not committed."""

    def __init__(self, training: Training, run: LiveRun, stored: StoredRun) -> None:
        self._run, self._step = run, training.train_step
        run.counters = stored.counters
        self._judge = Judge(
            training.detectors, training.ladder, 1, has_scaler=run.has_scaler, scale=run.first_scale
        )
        self._judge.restore(stored.watch, stored.ladder)
        self._log, self._messages = RunLog(), StepMessages()

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
            action = self._judge_step(returned.get("loss"), returned.get("grad_norm"))
            self._messages.take_arrived()
            # A rollback or stop is not repeated: the run did neither, or its commits would end here.
            if action is not None and action.rollback is None and not action.stop:
                self._run.scale_lr(action.lr_factor)

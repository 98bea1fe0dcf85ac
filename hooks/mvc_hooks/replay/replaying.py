"""The replay itself: a commit into a fresh run, K steps, and a comparison at every commit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mvc import Repo, UnsupportedError, UsageError
from mvc_hooks.divergence.judge import Judge
from mvc_hooks.environment import compare_environments, read_environment
from mvc_hooks.parts.restoring import InexactRestoreError
from mvc_hooks.parts.sources import CommitSource
from mvc_hooks.parts.tree import ABSENT, find_at, format_path, order_like
from mvc_hooks.ranks.state import RANKS
from mvc_hooks.replay.report import FirstDifference, ReplayReport
from mvc_hooks.replay.stretch import find_stretch
from mvc_hooks.run.live import EXTRAS, LiveRun
from mvc_hooks.run.log import RunLog
from mvc_hooks.training import as_training

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from mvc_hooks.divergence.ladder import Action
    from mvc_hooks.replay.stretch import Point, Stretch
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
    """Load a commit, train so many steps, and compare with the commits of those steps.

    Nothing is written to the repository. The random number generators of this process, and what
    ``build`` makes, are those of the last replayed step afterwards.

    Args:
        repo: the repository, or its folder.
        revision: the commit to begin at; at the tip of a branch, the commit to end at.
        steps: how many steps.
        build: returns a ``Training``, fresh.
        script: file of the training's code; that of this process where None.

    Raises:
        NotFoundError: no such commit, or none so many steps later.
        ConflictError: the parts do not fit the commit.
        UnsupportedError: the run was on several ranks.
        UsageError: ``build`` returns something else, or a step fails to be one.
    """
    started_s = time.perf_counter()
    repo = repo if isinstance(repo, Repo) else Repo.open(repo)
    stretch = find_stretch(repo, revision, steps)
    if RANKS in repo.outline_state(stretch.start.commit):
        raise UnsupportedError(
            f"commit {stretch.start.commit[:10]} is of a run on several ranks, a replay is on one"
        )
    training = as_training(build())
    run = LiveRun(training.parts)
    run.environment = read_environment(script)
    try:
        return _replay(repo, stretch, training, run, started_s)
    finally:
        run.remove()


def _replay(
    repo: Repo, stretch: Stretch, training: Training, run: LiveRun, started_s: float
) -> ReplayReport:
    found: list[str] = []
    changes: list[tuple[str, object, object]] = []
    compared: list[int] = []
    difference, tensors = None, 0
    try:
        stored = run.restore(CommitSource(repo, stretch.start.commit))
    except InexactRestoreError as error:
        found = [str(error)]
    else:
        changes = compare_environments(stored.environment, run.environment)
        replayed = ReplayRun(training, run, stored)
        for point in stretch.points:
            replayed.train_to(point.step)
            tensors, difference = _compare(repo, run, point, compared, stretch.start.step)
            if difference is not None:
                break
            compared.append(point.step)
    return ReplayReport(
        stretch=stretch,
        state_differences=tuple(found),
        compared=tuple(compared),
        difference=difference,
        environment_changes=tuple(changes),
        tensors=tensors,
        seconds=time.perf_counter() - started_s,
    )


class ReplayRun:
    """A run that is trained and not committed; what a step sees of it is a ``StepRun``."""

    def __init__(self, training: Training, run: LiveRun, stored: StoredRun) -> None:
        """Go on from a restored state."""
        self._run, self._step = run, training.train_step
        run.counters = stored.counters
        self._judge = Judge(training.detectors, training.ladder, 1, has_scaler=run.has_scaler)
        self._judge.restore(stored.watch, stored.ladder)
        self._log = RunLog(None)

    @property
    def step_count(self) -> int:
        """Completed steps."""
        return self._run.counters.step

    @property
    def batch_index(self) -> int:
        """Batches drawn so far, left out ones included."""
        return self._run.counters.batches

    @property
    def epoch(self) -> int:
        """Passes over the data."""
        return 0 if self._run.data is None else self._run.data.epoch

    @property
    def tokens(self) -> int:
        """Tokens seen."""
        return self._run.counters.tokens

    @property
    def samples(self) -> int:
        """Samples seen."""
        return self._run.counters.samples

    def next_batch(self) -> Any:
        """Return the next batch."""
        return self._run.next_batch()

    def check(self, *, loss: object = None, grad_norm: object = None) -> bool:
        """Judge a step as the run did."""
        action = self._judge.check(self.step_count + 1, loss, grad_norm, self._log)
        if action is None or not action.skip:
            return True
        self._run.drop_next_step()
        self._run.scale_lr(action.lr_factor)
        return False

    def step(self, **_: object) -> None:
        """Refuse: the step is completed here.

        Raises:
            UsageError: always.
        """
        raise UsageError("train_step called step() itself", hint="let it return the arguments")

    def train_to(self, step: int) -> None:
        """Train until so many steps are complete.

        Raises:
            UsageError: a step returned something else than the arguments of ``step``.
        """
        while self.step_count < step:
            said = self._step(self)
            if said is None:
                said = {}
            if not hasattr(said, "keys"):
                raise UsageError(
                    f"train_step returned a {type(said).__name__}", hint='return {"loss": loss}'
                )
            self._run.complete_step(said.get("tokens", 0), said.get("samples", 0))
            self._follow(
                self._judge.judge(
                    self.step_count, said.get("loss"), said.get("grad_norm"), self._log
                )
            )

    def _follow(self, action: Action | None) -> None:
        # Had the run been rolled back or stopped here, this stretch would not be there.
        if action is not None and action.rollback is None and not action.stop:
            self._run.scale_lr(action.lr_factor)


def _compare(
    repo: Repo, run: LiveRun, point: Point, compared: Sequence[int], start: int
) -> tuple[int, FirstDifference | None]:
    """Compare the live state with a commit's, but for what is of the run and not of the model."""
    live = run.capture({})
    stored_outline = repo.outline_state(point.commit)
    names = [name for name in stored_outline if name not in EXTRAS]
    state = order_like({name: live[name] for name in names if name in live}, stored_outline)
    check = repo.verify_state(state, point.commit)
    left_out = tuple(f'state["{name}"]' for name in EXTRAS)
    lines = [line for line in check.differences if not line.startswith(left_out)]
    if not lines:
        return check.tensors, None
    stored = repo.load_state(point.commit)
    different = list(_walk(state, {name: stored[name] for name in names}, ()))
    path, ours, theirs = different[0] if different else ((lines[0],), None, None)
    elements, size, largest = _measure(ours, theirs)
    return check.tensors, FirstDifference(
        step=point.step,
        after_step=compared[-1] if compared else start,
        commit=point.commit,
        name=format_path(path),
        elements=elements,
        size=size,
        largest=largest,
        others=max(len(different), len(lines), 1) - 1,
    )


def _walk(live: Any, stored: Any, path: tuple[object, ...]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield path, live and stored value of everything that differs, in the order of the state."""
    if isinstance(stored, dict) and isinstance(live, dict):
        for key in [*stored, *(key for key in live if key not in stored)]:
            yield from _walk(live.get(key, ABSENT), stored.get(key, ABSENT), (*path, key))
    elif isinstance(stored, (list, tuple)) and isinstance(live, (list, tuple)):
        for at in range(max(len(live), len(stored))):
            yield from _walk(find_at(live, (at,)), find_at(stored, (at,)), (*path, at))
    elif _read_bits(live) != _read_bits(stored):
        yield path, live, stored


def _read_bits(value: Any) -> object:
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu()
        plain = plain if plain.layout is torch.strided else plain.to_dense()
        flat = plain.resolve_conj().resolve_neg().contiguous().reshape(-1)
        return str(value.dtype), tuple(value.shape), flat.view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    return type(value).__name__, repr(value)


def _as_array(value: Any) -> np.ndarray[Any, Any] | None:
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu()
        plain = (plain if plain.layout is torch.strided else plain.to_dense()).resolve_conj()
        is_odd = plain.dtype is torch.bfloat16 or "float8" in str(plain.dtype)
        return (plain.double() if is_odd else plain.resolve_neg()).numpy()
    return value if isinstance(value, np.ndarray) else None


def _measure(live: Any, stored: Any) -> tuple[int, int, float | None]:
    """Return how many elements of two tensors differ, of how many, and by how much at most."""
    ours, theirs = _as_array(live), _as_array(stored)
    if ours is None or theirs is None or ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return 0, 0, None
    left, right = np.atleast_1d(ours).ravel(), np.atleast_1d(theirs).ravel()
    width = left.dtype.itemsize
    rows = [np.ascontiguousarray(one).view(np.uint8).reshape(-1, width) for one in (left, right)]
    is_different = (rows[0] != rows[1]).any(axis=1)
    count = int(is_different.sum())
    with np.errstate(all="ignore"):
        gaps = np.abs(left[is_different].astype(complex) - right[is_different].astype(complex))
    finite = gaps[np.isfinite(gaps)]
    return count, left.size, float(finite.max()) if finite.size else None

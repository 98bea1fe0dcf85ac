"""Is the run still healthy? Readings that the ranks average, watch, ladder and health marks, taken together.

A reading comes after the step it belongs to, or before ``optimizer.step()`` through ``check``; only
then can the step still be skipped. On CUDA readings arrive a few steps late, at the same step on
every rank: no host waits for its device, and all ranks decide alike.
"""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mvc import UsageError
from mvc_hooks.divergence.history import Reading, Verdict
from mvc_hooks.divergence.ladder import Action, Ladder, Steps
from mvc_hooks.divergence.watch import Judges, Watch, default_detectors
from mvc_hooks.log import RunLog, ranged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mvc_hooks.ranks.messages import StepSums, Value


SCALE = "scale"


def read_values(
    step: int,
    loss: object,
    grad_norm: object,
    *,
    lr: float | None = None,
    scale: float | torch.Tensor | None = None,
    reads_scale: bool = False,
) -> dict[str, Value]:
    """Return the values of a step by name, checked; every rank has to read scales, or none.

    Raises:
        UsageError: a value is not one number.
    """
    values: dict[str, Value] = {
        "loss": _read("loss", step, loss),
        "grad_norm": _read("gradient norm", step, grad_norm),
        "lr": lr,
    }
    if reads_scale:
        values[SCALE] = _read("loss scale", step, scale)
    return values


def as_reading(sums: StepSums) -> Reading:
    """Return the reading of a step from the means over all ranks."""
    return Reading(sums.step, **sums.means)


def _read(what: str, step: int, value: object) -> Value:
    """Return a host value as a float, a CUDA tensor detached, and refuse anything else."""
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        return _read_tensor(what, step, value)
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(())[()]
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real | np.number):
        raise UsageError(f"{what} of step {step} is a {type(value).__name__}, not a number")
    if isinstance(value, np.complexfloating):
        raise UsageError(f"{what} of step {step} is complex")
    try:
        return float(value)
    except OverflowError:
        raise UsageError(f"{what} of step {step} is too large for a float") from None


def _read_tensor(what: str, step: int, value: torch.Tensor) -> Value:
    # The gradient norm of sharded parameters is a DTensor: each rank holds a part of it.
    gather = getattr(value, "full_tensor", None)
    value = (value if gather is None else gather()).detach()
    if value.numel() != 1 or value.is_complex() or value.dtype == torch.bool or value.is_meta:
        raise UsageError(
            f"{what} of step {step} is a tensor of {value.dtype} of shape {tuple(value.shape)}",
            hint="pass one number",
        )
    return value.reshape(()) if value.device.type == "cuda" else float(value.item())


class Judge:
    """Judges a run step by step; ``was_checked`` says whether the step under way was, so that it is sent."""

    def __init__(
        self,
        detectors: Judges | None,
        ladder: Steps | None,
        healthy_after: int,
        *,
        has_scaler: bool = False,
        scale: float | None = None,
    ) -> None:
        """Take detectors and ladder; ``scale`` is that of a scaler before the first step."""
        if detectors is None:
            detectors = default_detectors(has_scaler=has_scaler)
        self._watch = Watch(detectors)
        self.ladder, self.reads_scale = Ladder(ladder), has_scaler
        self._watch.history.begin(scale)
        self._healthy_after = healthy_after
        self._unripe: list[tuple[int, str]] = []
        self._bad_states: list[int] = []
        self.was_checked = False
        self._early: Action | None = None
        self._before = self.ladder.state_dict()

    @property
    def latest(self) -> Reading | None:
        """The newest reading, or None."""
        return self._watch.history.latest

    @ranged("mvc.judge")
    def check(self, arrived: Iterable[StepSums], log: RunLog) -> Action | None:
        """Judge a step before it is complete, while it can be skipped."""
        self.was_checked = True
        self._early = self._take(arrived, log)
        return self._early

    @ranged("mvc.judge")
    def judge(self, arrived: Iterable[StepSums], log: RunLog) -> Action | None:
        """Judge what has arrived when a step is complete, and answer an alarm that ``check`` left open."""
        early, self._early, self.was_checked = self._early, None, False
        if early is not None and not early.skip:
            return early
        action = self._take(arrived, log)
        while action is not None and action.skip:
            # Too late to skip this step, so the ladder has to give another answer.
            action = self._answer(action.verdict, log)
        return action

    def _take(self, arrived: Iterable[StepSums], log: RunLog) -> Action | None:
        action = None
        for reading in map(as_reading, arrived):
            verdict = self._watch.take(reading)
            if verdict is None:
                continue
            log.step(reading, None, self.read_scaler())
            log.alarm(verdict)
            if action is None or action.rollback is None:
                action = self._answer(verdict, log)
        return action

    def _answer(self, verdict: Verdict, log: RunLog) -> Action:
        self._before = self.ladder.state_dict()
        action = self.ladder.climb(verdict)
        log.action(verdict.step, action.reason)
        return action

    def take_back(self) -> None:
        """Undo the ladder's last answer, which cannot be carried out."""
        self.ladder.load_state_dict(self._before)

    def read_metrics(self, step: int) -> dict[str, float]:
        """Return loss, gradient norm and what is known of a scaler at a step, as far as they were read."""
        latest = self.latest
        if latest is None or latest.step != step:
            return {}
        read = {"loss": latest.loss, "grad_norm": latest.grad_norm, **self.read_scaler()}
        return {name: value for name, value in read.items() if value is not None}

    def read_scaler(self) -> dict[str, float]:
        """Return loss scale and overflows so far, if there is a scaler."""
        latest, history = self.latest, self._watch.history
        if latest is None or latest.scale is None:
            return {}
        return {"scale": latest.scale, "overflows": int(history.overflows[-1])}

    def note_commit(self, step: int, commit: str) -> None:
        """Record that a commit was made; it may become healthy."""
        self._unripe.append((step, commit))

    def note_bad_state(self, step: int) -> None:
        """Record that the state of a step failed a gate: no commit shortly before it is healthy."""
        self._bad_states.append(step)

    def take_healthy(self) -> Iterator[tuple[int, str]]:
        """Yield (step, commit) of those that have become healthy.

        Only the steps right after a commit decide, however late its writer was done.
        """
        latest, history = self.latest, self._watch.history
        alarms = np.append(history.steps[history.alarms], self._bad_states)
        while self._unripe and latest is not None:
            step, commit = self._unripe[0]
            if latest.step < step + self._healthy_after:
                return
            self._unripe.pop(0)
            if not ((alarms >= step) & (alarms <= step + self._healthy_after)).any():
                yield step, commit

    def capture(self) -> dict[str, Any]:
        """Return the states that belong in a commit."""
        return {"watch": self._watch.state_dict(), "ladder": self.ladder.state_dict()}

    def restore(self, watch: Any, ladder: Any) -> None:
        """Restore the states of a commit, when a run resumes."""
        self._watch.load_state_dict(watch)
        self.ladder.load_state_dict(ladder)

    def forget_after(self, step: int) -> None:
        """Go back with the run; the ladder does not, so that its answers grow stronger."""
        self._watch.forget_after(step)
        self._unripe = [(at, commit) for at, commit in self._unripe if at <= step]
        self._bad_states = [bad for bad in self._bad_states if bad <= step]
        self.was_checked, self._early = False, None

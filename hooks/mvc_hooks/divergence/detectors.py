"""Detectors: pure functions of the history that decide whether its newest reading is an alarm.

They keep no state. What an alarm changes (its reading leaves the statistics, a cooldown begins) is
kept by the history and ``Watch``, so it is committed, restored and rolled back with the run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import numpy as np

from mvc import UsageError
from mvc_hooks.divergence.robust import robust_score
from mvc_hooks.divergence.trend import Trend
from mvc_hooks.divergence.values import NOT_FINITE, SPIKE, Verdict, check_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from mvc_hooks.divergence.history import History

_LOG_PART = 0.75


@runtime_checkable
class Detector(Protocol):
    """What ``Watch`` calls after every reading."""

    @property
    def name(self) -> str:
        """What its alarms are called."""
        ...

    @property
    def cooldown(self) -> int:
        """Steps after a reported alarm in which it reports no other."""
        ...

    def __call__(self, history: History) -> Verdict | None:
        """Judge the newest reading."""
        ...


@dataclass(frozen=True, slots=True)
class NotFinite:
    """NaN or infinity, at once.

    Attributes:
        overflows: gradient norms in a row that may be infinite or NaN while the loss is finite. A
            ``GradScaler`` finds its scale by overflowing, and skips those steps itself.
    """

    overflows: int = 0

    name: ClassVar[str] = NOT_FINITE
    cooldown: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_count("overflows of NotFinite", self.overflows, 0)

    def __call__(self, history: History) -> Verdict | None:
        """Return an alarm, or None."""
        latest = history.latest
        if latest is None:
            return None
        if latest.loss is not None and not math.isfinite(latest.loss):
            what, value = "loss", latest.loss
        elif latest.grad_norm is not None and self._is_overflown(history):
            what, value = "gradient norm", latest.grad_norm
        else:
            return None
        reason = f"{what} is {value} at step {latest.step}"
        return Verdict(NOT_FINITE, reason, find_onset(history), latest.step)

    def _is_overflown(self, history: History) -> bool:
        if len(history) <= self.overflows:
            return False
        rows = (history[at] for at in range(-1 - self.overflows, 0))
        return all(row.grad_norm is not None and not math.isfinite(row.grad_norm) for row in rows)


@dataclass(frozen=True, slots=True)
class Spike:
    """A loss or gradient norm far above the recent ones. Falling never raises an alarm.

    A loss is a spike if its robust score against the window exceeds ``sigmas`` and it lies above
    the median by more than ``min_delta`` and by more than ``min_rise`` times the median. Losses
    near zero are spread over decades, so harmless ones may stand out by many sigmas. If the whole
    window is positive, the logarithm of the loss must therefore stand out too, by three quarters of
    ``sigmas``; that changes nothing if the noise is small compared with the loss.

    Gradient norms are scored by their logarithms only, because their noise is a factor. They must
    also exceed ``min_factor`` times the median, and ``min_delta``.

    Readings that raised an alarm are left out of all statistics.

    Attributes:
        window: readings to compare with.
        sigmas: how many standard deviations above the median is too many.
        min_delta: the least rise of a loss, in its own unit.
        min_rise: the least rise of a loss, as a fraction of the median.
        min_factor: the least gradient norm, as a multiple of the median.
        warm_up: calm readings that the history must hold before one is judged.
        cooldown: steps after an alarm in which it is not reported again.
    """

    window: int = 128
    sigmas: float = 6.0
    min_delta: float = 1e-3
    min_rise: float = 0.1
    min_factor: float = 3.0
    warm_up: int = 64
    cooldown: int = 50

    name: ClassVar[str] = SPIKE

    def __post_init__(self) -> None:
        # A spread needs two values.
        if self.window < 2 or self.warm_up < 2 or self.cooldown < 0:  # noqa: PLR2004
            raise UsageError(
                "Spike needs a window and warm_up of at least 2, a cooldown of at least 0"
            )
        if not 0 < self.sigmas < math.inf:
            raise UsageError(f"sigmas of Spike is {self.sigmas}, not a positive number")
        if not all(0 <= x < math.inf for x in (self.min_delta, self.min_rise, self.min_factor)):
            raise UsageError(
                "min_delta, min_rise and min_factor of Spike must be finite, not negative"
            )

    def __call__(self, history: History) -> Verdict | None:
        """Return an alarm, or None."""
        latest = history.latest
        if latest is None:
            return None
        is_calm = ~history.alarms[:-1]
        text = self._judge_loss(latest.loss, history.losses[:-1][is_calm])
        text = text or self._judge_norm(latest.grad_norm, history.grad_norms[:-1][is_calm])
        if text is None:
            return None
        reason = f"{text.replace('@', f'at step {latest.step}')} (limit {self.sigmas:g})"
        return Verdict(SPIKE, reason, find_onset(history), latest.step)

    def _judge_loss(self, loss: float | None, losses: NDArray[np.float64]) -> str | None:
        others = self._choose(losses)
        if loss is None or not math.isfinite(loss) or others is None:
            return None
        score, median = robust_score(loss, others)
        rise = loss - median
        if score <= self.sigmas or rise <= max(self.min_delta, self.min_rise * abs(median)):
            return None
        if np.min(others) > 0 and _log_score(loss, others)[0] <= self.sigmas * _LOG_PART:
            return None
        return f"loss {loss:.6g} @ is {score:.1f} sigmas above the median {median:.6g}"

    def _judge_norm(self, norm: float | None, norms: NDArray[np.float64]) -> str | None:
        others = self._choose(norms[norms > 0])
        if norm is None or not 0 < norm < math.inf or others is None:
            return None
        score, median = _log_score(norm, others)
        if score <= self.sigmas or norm <= max(self.min_factor * median, self.min_delta):
            return None
        return f"gradient norm {norm:.6g} @ is {score:.1f} log-sigmas above the median {median:.6g}"

    def _choose(self, values: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """Return the window of finite values, or None while there are too few of them."""
        values = values[np.isfinite(values)]
        return values[-self.window :] if len(values) >= self.warm_up else None


def _log_score(value: float, values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the robust score among logarithms, and the median of the plain values."""
    score, median = robust_score(math.log(value), np.log(values))
    return score, math.exp(median)


def find_onset(history: History) -> int:
    """Return the first step of the unbroken run of alarms that ends with the newest reading."""
    calm = np.flatnonzero(~history.alarms[:-1])
    return int(history.steps[calm[-1] + 1 if calm.size else 0])


@dataclass(frozen=True, slots=True)
class _UserDetector:
    """A user's function; its answer is turned into a verdict."""

    judge: Callable[[History], object]
    name: str
    cooldown: int

    def __call__(self, history: History) -> Verdict | None:
        try:
            answer = self.judge(history)
        except Exception as error:
            raise UsageError(
                f"detector {self.name!r} failed: {type(error).__name__}: {error}"
            ) from error
        if answer is None or isinstance(answer, Verdict):
            return answer
        latest = history.latest
        if isinstance(answer, bool | np.bool_):
            answer = f"{self.name} raised an alarm" if answer else None
        elif not isinstance(answer, str) or not answer.strip():
            raise UsageError(
                f"detector {self.name!r} returned {answer!r}",
                hint="return a Verdict, a reason, True, or None if all is well",
            )
        if answer is None or latest is None:
            return None
        return Verdict(self.name, answer, find_onset(history), latest.step)


def as_detector(
    judge: Callable[[History], object], *, name: str | None = None, cooldown: int | None = None
) -> Detector:
    """Return a user's function as a detector.

    Args:
        judge: takes the history and returns a ``Verdict``, the reason for an alarm as a text, True
            for an alarm, False or None for none. A detector is returned as it is, unless it gets
            another name or cooldown.
        name: what its alarms are called; defaults to the function's name.
        cooldown: steps after a reported alarm in which it reports no other; defaults to 0.

    Raises:
        UsageError: not callable, or a class instead of an instance. When called, the detector
            raises UsageError if the function raises anything, or returns anything else.
    """
    if isinstance(judge, type):
        raise UsageError(f"a detector is {judge.__name__}(), not the class {judge.__name__}")
    if not callable(judge):
        raise UsageError(f"a detector is a function of the history, not a {type(judge).__name__}")
    if isinstance(judge, Detector):
        if name is None and cooldown is None:
            return judge
        name, cooldown = name or judge.name, judge.cooldown if cooldown is None else cooldown
    if cooldown is not None:
        check_count("cooldown of a detector", cooldown, 0)
    own = getattr(judge, "__name__", None) or type(judge).__name__
    return _UserDetector(judge, name or str(own), cooldown or 0)


def default_detectors(*, has_scaler: bool = False) -> tuple[Detector, ...]:
    """Return the detectors of a run that names none.

    Args:
        has_scaler: a ``GradScaler`` is in use: up to 16 overflowing gradient norms in a row are
            its search for a scale.
    """
    return NotFinite(overflows=16 if has_scaler else 0), Spike(), Trend()

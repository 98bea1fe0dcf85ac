"""The detectors of single steps: NaN and infinity, and sudden rises that this run was not expected to show."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from mvc_hooks.checks import check_count, check_ranges
from mvc_hooks.divergence.history import NOT_FINITE, SPIKE, History, Verdict
from mvc_hooks.divergence.robust import (
    find_levels,
    find_medians,
    keep_finite,
    log_score,
    robust_score,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


_LOG_PART = 0.75
_NEARLY = 0.99
_RECENT = 16
"""Readings that set no record yet: those of a failure under way must not hide the rest of it."""
_HEAVY = 5.0
"""The largest of a window, as a multiple of its median, from which its noise has a heavy tail."""
_BURSTS = 3  # blocks with so large a value from which that is how the noise is, however rare
_KNOWN_TAIL = 256  # readings after which the largest of them tells how far such a tail reaches
_FAR, _FAR_IN_HEAVY_NOISE, _FAR_NORM = 0.25, 3.0, 8.0
_SPELL, _FALL = 6, 0.035
_RAISED_STEPS, _RAISED_FACTOR = 64, 3.0


@dataclass(frozen=True, slots=True)
class NotFinite:
    """NaN or infinity, at once.

    While the loss is finite, up to ``overflows`` gradient norms in a row may be infinite or NaN: a
    ``GradScaler`` finds its scale by overflowing, and skips those steps itself.
    """

    overflows: int = 0

    name: ClassVar[str] = NOT_FINITE
    advice: ClassVar[str] = "NotFinite(overflows=16) in detectors lets a scaler overflow"
    cooldown: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_count("overflows of NotFinite", self.overflows, 0)

    def __call__(self, history: History) -> Verdict | None:
        """Return an alarm, or None."""
        latest = history.latest
        if latest is None:
            return None
        if latest.loss is not None and not math.isfinite(latest.loss):
            what, value, advice = "loss", latest.loss, ""
        elif latest.grad_norm is not None and self._is_overflown(history):
            what, value, advice = "gradient norm", latest.grad_norm, self.advice
        else:
            return None
        reason = f"{what} is {value} at step {latest.step}"
        return Verdict(NOT_FINITE, reason, history.onset_step, latest.step, advice)

    def _is_overflown(self, history: History) -> bool:
        if len(history) <= self.overflows:
            return False
        rows = (history[at] for at in range(-1 - self.overflows, 0))
        return all(row.grad_norm is not None and not math.isfinite(row.grad_norm) for row in rows)


@dataclass(frozen=True, slots=True)
class Spike:
    """A loss or gradient norm far above what this run has shown so far. Falling is never an alarm.

    A loss is a spike if its robust score against the window exceeds ``sigmas`` and it is above
    the median by more than ``min_delta`` and by more than ``min_rise`` times the median. Losses
    near zero are spread over decades, so harmless ones may stand out by many sigmas. If the whole
    window is positive, the logarithm of the loss must therefore stand out too, by three quarters of
    ``sigmas``; that changes nothing if the noise is small compared with the loss.

    Gradient norms are scored by their logarithms only, because their noise is a factor. They must
    also exceed ``min_delta``, and ``min_factor`` times the median.

    Much that stands out is not a failure: a rare reward, a hard batch among easy ones, a curriculum or
    a restart that takes the loss back to where it has been before. So a spike must also be new: it
    exceeds ``record`` times the largest loss in the history, it is ``tail`` times as far above the
    median as the largest of the window, and the gradient norm is not below the largest of the window.

    A loss that exceeds its record by a quarter is then believed at once. In noise with a heavy tail
    (the largest of the window is more than five times its median, or was so again and again) it must
    exceed the record by three times its size, and 256 readings must have shown that tail. All others
    must stay above for six steps without falling, as they do while a run learns something harder. A
    gradient norm that stands out alone must be eight times the largest so far.

    The newest 16 readings set no record. None of this is required within 64 steps after the learning
    rate rose to three times its previous maximum: then the loss is expected to stay where it was.

    Readings that raised an alarm are left out of all statistics.

    Attributes:
        window: readings to compare with.
        sigmas: how many standard deviations above the median are too many.
        min_delta: the least rise of a loss, in its own unit.
        min_rise: the least rise of a loss, as a fraction of the median.
        min_factor: the least gradient norm, as a multiple of the median.
        warm_up: calm readings that the history must hold before one is judged.
        cooldown: steps after an alarm in which it is not reported again.
        record: the least loss, as a multiple of the largest so far; 0: what stands out need not be
            new.
        tail: the least rise, as a multiple of the largest in the window.
    """

    window: int = 128
    sigmas: float = 6.0
    min_delta: float = 1e-3
    min_rise: float = 0.1
    min_factor: float = 3.0
    warm_up: int = 64
    cooldown: int = 50
    record: float = 1.05
    tail: float = 2.0

    name: ClassVar[str] = SPIKE
    advice: ClassVar[str] = (
        "Spike(record=2) in detectors=[...] is quieter, a list without Spike silent"
    )

    def __post_init__(self) -> None:
        check_ranges(self, "window", "warm_up", least=2)  # a spread needs two values
        check_ranges(self, "cooldown")
        check_ranges(self, "sigmas", excludes=True)
        check_ranges(self, "min_delta", "min_rise", "min_factor", "record", "tail")

    def __call__(self, history: History) -> Verdict | None:
        """Return an alarm, or None."""
        latest = history.latest
        if latest is None:
            return None
        is_calm = ~history.alarms
        is_calm[-1] = True
        losses, norms = history.losses[is_calm], history.grad_norms[is_calm]
        text = self._judge_loss(losses, norms, history) or self._judge_norm(norms, history)
        if text is None:
            return None
        reason = f"{text.replace('@', f'at step {latest.step}')} (limit {self.sigmas:g})"
        return Verdict(SPIKE, reason, history.onset_step, latest.step, self.advice)

    def _judge_loss(
        self, losses: NDArray[np.float64], norms: NDArray[np.float64], history: History
    ) -> str | None:
        loss, others = float(losses[-1]), self._choose(losses[:-1])
        if not math.isfinite(loss) or others is None:
            return None
        score, median = robust_score(loss, others)
        rise = loss - median
        if score <= self.sigmas or rise <= max(self.min_delta, self.min_rise * abs(median)):
            return None
        if np.min(others) > 0 and log_score(loss, others)[0] <= self.sigmas * _LOG_PART:
            return None
        if self.record and not (is_rate_raised(history) or self._is_new(losses, norms)):
            return None
        return f"loss {loss:.6g} @ is {score:.1f} sigmas above the median {median:.6g}"

    def _judge_norm(self, norms: NDArray[np.float64], history: History) -> str | None:
        norm, others = float(norms[-1]), self._choose(norms[:-1][norms[:-1] > 0])
        if not 0 < norm < math.inf or others is None:
            return None
        score, median = log_score(norm, others)
        if score <= self.sigmas or norm <= max(self.min_factor * median, self.min_delta):
            return None
        if self.record and not (is_rate_raised(history) or self._is_new_norm(norms)):
            return None
        return f"gradient norm {norm:.6g} @ is {score:.1f} log-sigmas above the median {median:.6g}"

    def _is_new(self, losses: NDArray[np.float64], norms: NDArray[np.float64]) -> bool:
        """Return whether this loss is more than a run with such noise was to be expected to show."""
        is_given = np.isfinite(losses)
        losses, norms = losses[is_given], norms[is_given]
        known = _look_back(losses, self.window)
        if known is None:
            return False
        limit = max(self._exceed(known.top), known.median + self.tail * known.reach)
        is_over = losses[-_SPELL:] > limit
        known_norm = _look_back(norms, self.window)
        if known_norm is not None:
            # One that is missing does not object, nor does one that was clipped, as all may be.
            is_over &= ~(norms[-_SPELL:] < _NEARLY * known_norm.largest)
        if not is_over.any():
            return False
        is_known = known.count >= _KNOWN_TAIL or not known.is_heavy
        if is_known and is_over[-1] and losses[-1] > known.far:
            return True
        if not known.is_heavy:
            limit = self._exceed(float(np.max(find_levels(losses[:-_RECENT]))))
        return _stays_above(limit, losses[-_SPELL:])

    def _is_new_norm(self, norms: NDArray[np.float64]) -> bool:
        known = _look_back(norms, self.window)
        if known is None:
            return False
        limit = max(_FAR_NORM * known.top, known.median + self.tail * known.reach)
        if known.is_heavy:
            return _stays_above(limit, norms[-_SPELL:])
        return bool(norms[-1] > limit)

    def _exceed(self, value: float) -> float:
        return value + (self.record - 1) * abs(value)

    def _choose(self, values: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """Return the window of finite values, or None while there are too few of them."""
        values = keep_finite(values)
        return values[-self.window :] if len(values) >= self.warm_up else None


@dataclass(frozen=True, slots=True)
class _Known:
    """What a run has shown of its losses or gradient norms, but for the newest."""

    median: float  # of the window
    largest: float  # of the window
    top: float  # the largest of all
    count: int  # how many there are
    bursts: int  # how many short blocks of them have a heavy tail

    @property
    def reach(self) -> float:
        return self.largest - self.median

    @property
    def is_heavy(self) -> bool:
        return self.largest >= _HEAVY * abs(self.median) or self.bursts >= _BURSTS

    @property
    def far(self) -> float:
        """What no noise is likely to reach."""
        factor = _FAR_IN_HEAVY_NOISE if self.is_heavy else _FAR
        return self.top + factor * max(abs(self.top), self.top - self.median)


def _look_back(values: NDArray[np.float64], window: int) -> _Known | None:
    before = keep_finite(values[:-_RECENT])
    if not len(before):
        return None
    recent, blocks = before[-window:], before[len(before) % _RECENT :].reshape(-1, _RECENT)
    bursts = blocks.max(axis=1) >= _HEAVY * np.abs(find_medians(blocks))
    return _Known(
        median=float(find_medians(recent)),
        largest=float(np.max(recent)),
        top=float(np.max(before)),
        count=len(before),
        bursts=int(np.count_nonzero(bursts)),
    )


def _stays_above(floor: float, values: NDArray[np.float64]) -> bool:
    """Return whether the medians of both halves are above, and the later one is not lower."""
    if len(values) < _SPELL:
        return False
    early, late = find_medians(values.reshape(2, -1))
    return bool(min(early, late) > floor and late >= early - _FALL * abs(early))


def is_rate_raised(history: History) -> bool:
    """Return whether the learning rate rose, a short while ago, far above what it has ever been."""
    rates = history.lrs
    before = keep_finite(rates[:-_RAISED_STEPS])
    return len(before) > 0 and bool(rates[-1] >= _RAISED_FACTOR * np.max(before))

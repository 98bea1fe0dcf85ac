"""Detectors: pure functions of the history that decide whether its newest reading is an alarm.

They keep no state. What an alarm changes (its reading leaves the statistics, a cooldown begins) is
kept by the history and ``Watch``, so it is committed, restored and rolled back with the run.

How far a value stands out from others, some of which may be wild themselves, is measured by the
modified z-score of Iglewicz and Hoaglin ("How to Detect and Handle Outliers",
ASQC, 1993): (x - median) / (1.4826 * MAD), where MAD is the median of the absolute deviations from
the median. 1.4826 = 1 / Phi^-1(3/4) makes it a standard deviation if the noise is normal
(Rousseeuw and Croux, "Alternatives to the Median Absolute Deviation", JASA 88, 1993).

The MAD collapses when about half of the values are (nearly) equal: losses with a margin are often
zero, and then any other value is hundreds of sigmas away. So if the upper tenth of the deviations
says more than twice as much, it counts instead: their 0.9 quantile over 1.6449 = Phi^-1(0.95),
which is never twice as much for normal noise. Wild values must then be less than a tenth of the
window. If that quantile is zero too, the mean absolute deviation is used, times
sqrt(pi/2) = 1.2533.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from mvc import UsageError
from mvc_hooks.divergence.history import NOT_FINITE, SPIKE, TREND, Verdict, check_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc_hooks.divergence.history import History

_MAD_TO_SIGMA = 1.482602218505602
_MEAN_TO_SIGMA = 1.2533141373155003
_TENTH_TO_SIGMA = 1 / 1.6448536269514722
_LOG_PART = 0.75
_NEARLY = 0.99
_FEWEST_BLOCKS_BEFORE = 2
_LEVEL_LENGTH, _LOOKS_PER_BLOCK = 16, 8
_RECENT = 16
"""Readings that set no record yet: those of a failure under way must not hide the rest of it."""
_SPELL, _FEWEST_OF_SPELL, _HEAVY = 6, 4, 5.0
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
        return Verdict(NOT_FINITE, reason, find_onset(history), latest.step, advice)

    def _is_overflown(self, history: History) -> bool:
        if len(history) <= self.overflows:
            return False
        rows = (history[at] for at in range(-1 - self.overflows, 0))
        return all(row.grad_norm is not None and not math.isfinite(row.grad_norm) for row in rows)


@dataclass(frozen=True, slots=True)
class Spike:
    """A loss or gradient norm far above what this run has shown so far. Falling is never an alarm.

    A loss is a spike if its robust score against the window exceeds ``sigmas`` and it lies above
    the median by more than ``min_delta`` and by more than ``min_rise`` times the median. Losses
    near zero are spread over decades, so harmless ones may stand out by many sigmas. If the whole
    window is positive, the logarithm of the loss must therefore stand out too, by three quarters of
    ``sigmas``; that changes nothing if the noise is small compared with the loss.

    Gradient norms are scored by their logarithms only, because their noise is a factor. They must
    also exceed ``min_delta``, and ``min_factor`` times the median.

    Much that stands out is no failure: a rare reward, a hard batch among easy ones, a curriculum or
    a restart that takes the loss back to where it has been before. So a spike must also be new:

    * It exceeds ``record`` times the largest loss that the history holds (and a gradient norm that
      stands out alone ``min_factor`` times the largest one), and is ``tail`` times as far above the
      median as the largest of the window. A gradient norm below the largest of the window objects.
    * If the noise is a factor of more than five, it must be so for four of six readings.

    The newest 16 readings set no record. None of this is asked within 64 steps after the learning
    rate rose to three times what it has ever been: then the loss is expected to stay where it was.

    Readings that raised an alarm are left out of all statistics.

    Attributes:
        window: readings to compare with.
        sigmas: how many standard deviations above the median is too many.
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
    advice: ClassVar[str] = "Spike(record=2) in detectors is quieter, a list without Spike silent"

    def __post_init__(self) -> None:
        # A spread needs two values.
        if self.window < 2 or self.warm_up < 2 or self.cooldown < 0:  # noqa: PLR2004
            raise UsageError(
                "Spike needs a window and warm_up of at least 2, a cooldown of at least 0"
            )
        if not 0 < self.sigmas < math.inf:
            raise UsageError(f"sigmas of Spike is {self.sigmas}, not a positive number")
        for name in ("min_delta", "min_rise", "min_factor", "record", "tail"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(
                    f"{name} of Spike is {getattr(self, name)}, not finite and at least 0"
                )

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
        return Verdict(SPIKE, reason, find_onset(history), latest.step, self.advice)

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
        if np.min(others) > 0 and _log_score(loss, others)[0] <= self.sigmas * _LOG_PART:
            return None
        if self.record and not (is_rate_raised(history) or self._is_new(losses, norms)):
            return None
        return f"loss {loss:.6g} @ is {score:.1f} sigmas above the median {median:.6g}"

    def _judge_norm(self, norms: NDArray[np.float64], history: History) -> str | None:
        norm, others = float(norms[-1]), self._choose(norms[:-1][norms[:-1] > 0])
        if not 0 < norm < math.inf or others is None:
            return None
        score, median = _log_score(norm, others)
        if score <= self.sigmas or norm <= max(self.min_factor * median, self.min_delta):
            return None
        if self.record and not (is_rate_raised(history) or self._is_new_norm(norms)):
            return None
        return f"gradient norm {norm:.6g} @ is {score:.1f} log-sigmas above the median {median:.6g}"

    def _is_new(self, losses: NDArray[np.float64], norms: NDArray[np.float64]) -> bool:
        """Return whether this loss is more than a run with such noise was to be expected to show."""
        before = _keep_finite(losses[:-_RECENT])
        if not len(before):
            return False
        recent = before[-self.window :]
        median, largest = float(find_medians(recent)), float(np.max(recent))
        top = float(np.max(before))
        limit = max(top + (self.record - 1) * abs(top), median + self.tail * (largest - median))
        is_over = losses[-_SPELL:] > limit
        before = _keep_finite(norms[:-_RECENT])[-self.window :]
        if len(before):
            # One that is missing does not object, nor does one that was clipped, as all may be.
            is_over &= ~(norms[-_SPELL:] < _NEARLY * np.max(before))
        return self._lasts(is_over, is_heavy=largest >= _HEAVY * abs(median))

    def _is_new_norm(self, norms: NDArray[np.float64]) -> bool:
        before = _keep_finite(norms[:-_RECENT])
        recent = before[-self.window :]
        if not len(before):
            return False
        median, largest = float(find_medians(recent)), float(np.max(recent))
        limit = max(
            self.min_factor * float(np.max(before)), median + self.tail * (largest - median)
        )
        return self._lasts(norms[-_SPELL:] > limit, is_heavy=largest >= _HEAVY * median)

    def _lasts(self, is_over: NDArray[np.bool_], *, is_heavy: bool) -> bool:
        return bool(is_over[-1]) and (not is_heavy or int(is_over.sum()) >= _FEWEST_OF_SPELL)

    def _choose(self, values: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """Return the window of finite values, or None while there are too few of them."""
        values = _keep_finite(values)
        return values[-self.window :] if len(values) >= self.warm_up else None


def _keep_finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[np.isfinite(values)]


def is_rate_raised(history: History) -> bool:
    """Return whether the learning rate rose, a short while ago, far above what it has ever been."""
    rates = history.lrs
    before = _keep_finite(rates[:-_RAISED_STEPS])
    return len(before) > 0 and bool(rates[-1] >= _RAISED_FACTOR * np.max(before))


def _log_score(value: float, values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the robust score among logarithms, and the median of the plain values."""
    score, median = robust_score(math.log(value), np.log(values))
    return score, math.exp(median)


def find_onset(history: History) -> int:
    """Return the first step of the unbroken run of alarms that ends with the newest reading."""
    calm = np.flatnonzero(~history.alarms[:-1])
    return int(history.steps[calm[-1] + 1 if calm.size else 0])


@dataclass(frozen=True, slots=True)
class Trend:
    """Slow divergence: the loss stays worse than its best, though no single step stands out.

    The window is cut into blocks of ``smooth`` losses, newest last. Each block counts with its median,
    so spikes do not matter. The alarm is raised when all blocks of the last ``patience`` losses are
    worse than the best block before them, by more than the largest of

    * ``min_delta``, in the unit of the loss;
    * ``rise`` times the size of the best median;
    * ``sigmas`` times the noise of a median. The noise is estimated twice: from the spread inside the
      blocks (the standard error of a median of n is sqrt(pi/2) * sigma / sqrt(n)), and from the
      differences of neighbouring blocks, which also sees noise that is correlated from step to step.
      The larger estimate counts.

    Annealing, curricula, restarts and opponents that learn make a loss worse too, but it stays where
    the run has been, or near there. So the late blocks must also lie above the highest level before
    them, measured in blocks of 16, by ``beyond`` times the way from the lowest to the highest.

    It is looked at eight times per block.

    Attributes:
        window: losses to look at.
        smooth: losses per block.
        patience: losses for which it must have been worse; rounded up to blocks.
        rise: the least it must be worse, as a fraction of the best.
        min_delta: the least it must be worse, in the unit of the loss.
        sigmas: the least it must be worse, in standard deviations of a block's median.
        cooldown: steps after an alarm in which it is not reported again.
        beyond: the least it must be above the highest level before, as a fraction of the range of
            levels before; -1: above the best is enough.
    """

    window: int = 4096
    smooth: int = 64
    patience: int = 512
    rise: float = 0.1
    min_delta: float = 1e-3
    sigmas: float = 4.0
    cooldown: int = 512
    beyond: float = 1.0

    name: ClassVar[str] = TREND
    advice: ClassVar[str] = "Trend(beyond=3) in detectors is quieter, a list without Trend silent"

    def __post_init__(self) -> None:
        if self.smooth < 1 or self.patience < 1 or self.cooldown < 0:
            raise UsageError(
                "Trend needs smooth and patience of at least 1, a cooldown of at least 0"
            )
        if not all(0 <= x < math.inf for x in (self.rise, self.min_delta, self.sigmas)):
            raise UsageError("rise, min_delta and sigmas of Trend must be finite and not negative")
        if not -1 <= self.beyond < math.inf:
            raise UsageError(f"beyond of Trend is {self.beyond}, not finite and at least -1")
        if self.window < self._fewest_losses:
            raise UsageError(
                f"the window of Trend is {self.window}, but needs at least {self._fewest_losses}",
                hint="choose a larger window, or smaller smooth and patience",
            )

    def __call__(self, history: History) -> Verdict | None:
        """Return an alarm, or None."""
        losses, latest = history.losses[-self.window :], history.latest
        if latest is None or latest.step % max(1, self.smooth // _LOOKS_PER_BLOCK):
            return None
        if len(losses) < self._fewest_losses or not math.isfinite(losses[-1]):
            return None
        is_finite = np.isfinite(losses)
        steps, losses = history.steps[-self.window :][is_finite], losses[is_finite]
        if len(losses) < self._fewest_losses:
            return None
        # Scaled to near 1 by a power of two, which is exact: differences of huge losses would
        # overflow.
        exponent = math.frexp(float(np.max(np.abs(losses))))[1]
        return self._judge(np.ldexp(losses, -exponent), exponent, steps, latest.step)

    @property
    def _late_blocks(self) -> int:
        return -(-self.patience // self.smooth)

    @property
    def _fewest_losses(self) -> int:
        return (self._late_blocks + _FEWEST_BLOCKS_BEFORE) * self.smooth

    def _judge(
        self, losses: NDArray[np.float64], exponent: int, steps: NDArray[np.int64], step: int
    ) -> Verdict | None:
        """Judge losses that were scaled by ``2 ** -exponent``, of these steps."""
        cut = len(losses) % self.smooth
        steps, blocks = steps[cut :: self.smooth], losses[cut:].reshape(-1, self.smooth)
        medians = find_medians(blocks)
        early, late = medians[: -self._late_blocks], medians[-self._late_blocks :]
        best = float(np.min(early))
        floor = _scale(self.min_delta, -exponent)
        worse_by = float(np.min(late)) - best
        tolerated = max(floor, self.rise * abs(best))
        if worse_by <= tolerated:  # checked before the noise, which takes longer to measure
            return None
        tolerated = max(tolerated, self.sigmas * _measure_noise(blocks[: len(early)], early))
        if worse_by <= tolerated:
            return None
        levels = _find_levels(losses[: cut + len(early) * self.smooth])
        lowest, highest = float(np.min(levels)), float(np.max(levels))
        if np.min(late) <= highest + self.beyond * (highest - lowest):
            return None
        onset = len(medians) - 1
        while onset and medians[onset - 1] - best > tolerated / 2:
            onset -= 1
        current, best = (_scale(float(x), exponent) for x in (medians[-1], best))
        span = step - int(steps[len(early)]) + 1
        reason = (
            f"smoothed loss {current:.6g} at step {step} stays above the best {best:.6g}"
            f" by more than {_scale(tolerated, exponent):.3g} for {span} steps"
        )
        return Verdict(TREND, reason, int(steps[onset]), step, self.advice)


def _find_levels(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return medians of short blocks, so that a start that fell fast is seen as high as it was."""
    length = min(_LEVEL_LENGTH, len(losses))
    return find_medians(losses[: len(losses) // length * length].reshape(-1, length))


def _measure_noise(blocks: NDArray[np.float64], medians: NDArray[np.float64]) -> float:
    """Return the standard deviation of the median of a block."""
    inside = find_medians(np.abs(blocks - medians[:, None]))
    sigma = _MAD_TO_SIGMA * float(find_medians(inside))
    error = _MEAN_TO_SIGMA * sigma / math.sqrt(blocks.shape[1])
    between = _MAD_TO_SIGMA * float(find_medians(np.abs(np.diff(medians)))) / math.sqrt(2)
    return max(error, between)


def _scale(value: float, exponent: int) -> float:
    """Return ``value * 2 ** exponent``, infinite if no float is large enough."""
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.inf


def find_medians(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the medians along the last axis of finite values, at least one each."""
    # np.median takes five times as long for a few hundred values, and this runs at every step.
    rows = np.sort(values, axis=-1)
    half = rows.shape[-1] // 2
    if rows.shape[-1] % 2:
        medians: NDArray[np.float64] = rows[..., half]
    else:
        medians = rows[..., half - 1] / 2 + rows[..., half] / 2
    return medians


def measure_spread(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return median and robust standard deviation of finite values, at least one."""
    median = float(find_medians(values))
    deviations = np.sort(np.abs(values - median))
    sigma = _MAD_TO_SIGMA * float(find_medians(deviations))
    wide_sigma = _TENTH_TO_SIGMA * float(deviations[(len(deviations) - 1) * 9 // 10])
    if sigma < wide_sigma / 2:
        sigma = wide_sigma
    if sigma == 0.0:
        sigma = _MEAN_TO_SIGMA * float(np.mean(deviations))
    return median, sigma


def robust_score(value: float, values: NDArray[np.float64]) -> tuple[float, float]:
    """Return how many sigmas a finite value lies above the median of others, and that median.

    The score is 0 on the median, and infinite beside it if the others are all equal.
    """
    # Scaled to near 1 by a power of two, which is exact: sums near the ends of the range would
    # overflow, or lose their last bits.
    largest = max(abs(value), float(np.max(np.abs(values))))
    exponent = math.frexp(largest)[1]
    median, sigma = measure_spread(np.ldexp(values, -exponent))
    above = math.ldexp(value, -exponent) - median
    score = above / sigma if sigma else math.copysign(math.inf, above) if above else 0.0
    return score, math.ldexp(median, exponent)

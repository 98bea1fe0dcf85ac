"""Slow divergence: the loss stays worse than its best for long, though no single step stands out.

The window is cut into blocks of ``smooth`` losses, newest last. Each block counts with its median,
so spikes do not matter. The alarm is raised when all blocks of the last ``patience`` losses are
worse than the best block before them, by more than the largest of

* ``min_delta``, in the unit of the loss;
* ``rise`` times the size of the best median;
* ``sigmas`` times the noise of a median. The noise is estimated twice: from the spread inside the
  blocks (the standard error of a median of n is sqrt(pi/2) * sigma / sqrt(n)), and from the
  differences of neighbouring blocks, which also sees noise that is correlated from step to step.
  The larger estimate counts.

A loss that falls or stays level never has such blocks, whatever its scale. One that is meant to
rise (warm restarts of the learning rate, a harder curriculum) needs a larger ``rise`` or no
``Trend``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from mvc import UsageError
from mvc_hooks.divergence.robust import MAD_TO_SIGMA, MEAN_TO_SIGMA, find_medians
from mvc_hooks.divergence.values import TREND, Verdict

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc_hooks.divergence.history import History

_FEWEST_BLOCKS_BEFORE = 2


@dataclass(frozen=True, slots=True)
class Trend:
    """The loss stays above the best of a long window.

    Attributes:
        window: losses to look at.
        smooth: losses per block.
        patience: losses for which it must have been worse; rounded up to blocks.
        rise: the least it must be worse, as a fraction of the best.
        min_delta: the least it must be worse, in the unit of the loss.
        sigmas: the least it must be worse, in standard deviations of a block's median.
        cooldown: steps after an alarm in which it is not reported again.
    """

    window: int = 2048
    smooth: int = 128
    patience: int = 512
    rise: float = 0.1
    min_delta: float = 1e-3
    sigmas: float = 4.0
    cooldown: int = 512

    name: ClassVar[str] = TREND

    def __post_init__(self) -> None:
        if self.smooth < 1 or self.patience < 1 or self.cooldown < 0:
            raise UsageError(
                "Trend needs smooth and patience of at least 1, a cooldown of at least 0"
            )
        if not all(0 <= x < math.inf for x in (self.rise, self.min_delta, self.sigmas)):
            raise UsageError("rise, min_delta and sigmas of Trend must be finite and not negative")
        if self.window < self._fewest_losses:
            raise UsageError(
                f"the window of Trend is {self.window}, but needs at least {self._fewest_losses}",
                hint="choose a larger window, or smaller smooth and patience",
            )

    def __call__(self, history: History) -> Verdict | None:
        """Return an alarm, or None."""
        losses = history.losses[-self.window :]
        if len(losses) < self._fewest_losses or not math.isfinite(losses[-1]):
            return None
        is_finite = np.isfinite(losses)
        steps, losses = history.steps[-self.window :][is_finite], losses[is_finite]
        count = len(losses) // self.smooth
        if count < self._late_blocks + _FEWEST_BLOCKS_BEFORE:
            return None
        cut = len(losses) - count * self.smooth
        steps, blocks = steps[cut :: self.smooth], losses[cut:].reshape(count, self.smooth)
        # Scaled to near 1 by a power of two, which is exact: differences of huge losses would
        # overflow.
        exponent = math.frexp(float(np.max(np.abs(blocks))))[1]
        return self._judge(np.ldexp(blocks, -exponent), exponent, steps, int(history.steps[-1]))

    @property
    def _late_blocks(self) -> int:
        return -(-self.patience // self.smooth)

    @property
    def _fewest_losses(self) -> int:
        return (self._late_blocks + _FEWEST_BLOCKS_BEFORE) * self.smooth

    def _judge(
        self, blocks: NDArray[np.float64], exponent: int, steps: NDArray[np.int64], step: int
    ) -> Verdict | None:
        """Judge blocks that were scaled by ``2 ** -exponent``; ``steps`` has the first of each."""
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
        onset = len(medians) - 1
        while onset and medians[onset - 1] - best > tolerated / 2:
            onset -= 1
        current, lowest = (_scale(float(x), exponent) for x in (medians[-1], best))
        span = step - int(steps[len(early)]) + 1
        reason = (
            f"smoothed loss {current:.6g} at step {step} stays above the best {lowest:.6g}"
            f" by more than {_scale(tolerated, exponent):.3g} for {span} steps"
        )
        return Verdict(TREND, reason, int(steps[onset]), step)


def _measure_noise(blocks: NDArray[np.float64], medians: NDArray[np.float64]) -> float:
    """Return the standard deviation of the median of a block."""
    inside = find_medians(np.abs(blocks - medians[:, None]))
    sigma = MAD_TO_SIGMA * float(find_medians(inside))
    error = MEAN_TO_SIGMA * sigma / math.sqrt(blocks.shape[1])
    between = MAD_TO_SIGMA * float(find_medians(np.abs(np.diff(medians)))) / math.sqrt(2)
    return max(error, between)


def _scale(value: float, exponent: int) -> float:
    """Return ``value * 2 ** exponent``, infinite if no float is large enough."""
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.inf

"""The detector of slow divergence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from mvc import UsageError
from mvc_hooks.checks import check_ranges
from mvc_hooks.divergence.history import TREND, History, Verdict
from mvc_hooks.divergence.robust import MAD_TO_SIGMA, MEAN_TO_SIGMA, find_levels, find_medians

if TYPE_CHECKING:
    from numpy.typing import NDArray


_LOOKS_PER_BLOCK = 8
_FEWEST_BLOCKS_BEFORE = 2
_NEWEST_BLOCKS, _VERY_FAR = 2, 2.0
_BLOCKS_BEFORE, _FLAT = 5, 0.75


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
    the run has been, or near there. So the late blocks must also be above the highest level before
    them, measured in blocks of 16, by ``beyond`` times the distance from the lowest to the highest,
    or the newest two by twice that. While the window holds the start of the run, a loss that jumped to
    ``2 + beyond`` times what it was, is near that start and does not fall is an alarm too: the
    network has lost what it learned.

    The check runs eight times per block.

    Attributes:
        window: losses to look at.
        smooth: losses per block.
        patience: how many losses it must have been worse for; rounded up to blocks.
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
    advice: ClassVar[str] = (
        "Trend(beyond=3) in detectors=[...] is quieter, a list without Trend silent"
    )

    def __post_init__(self) -> None:
        check_ranges(self, "smooth", "patience", least=1)
        check_ranges(self, "cooldown", "rise", "min_delta", "sigmas")
        check_ranges(self, "beyond", least=-1)
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
        # As many before as after: the first few do not show how far the losses of a run range.
        fewest = max(self._fewest_losses, min(self.window, 2 * self._late_blocks * self.smooth))
        if len(losses) < fewest or not math.isfinite(losses[-1]):
            return None
        is_finite = np.isfinite(losses)
        steps, losses = history.steps[-self.window :][is_finite], losses[is_finite]
        if len(losses) < fewest:
            return None
        # Scaled to near 1 by a power of two, which is exact: differences of huge losses would
        # overflow.
        exponent = math.frexp(float(np.max(np.abs(losses))))[1]
        is_whole = len(history) < self.window
        scaled = np.ldexp(losses, -exponent)
        return self._judge(scaled, exponent, steps, latest.step, is_whole=is_whole)

    @property
    def _late_blocks(self) -> int:
        return -(-self.patience // self.smooth)

    @property
    def _fewest_losses(self) -> int:
        return (self._late_blocks + _FEWEST_BLOCKS_BEFORE) * self.smooth

    def _judge(
        self,
        losses: NDArray[np.float64],
        exponent: int,
        steps: NDArray[np.int64],
        step: int,
        *,
        is_whole: bool,
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
        levels = find_levels(losses[: cut + len(early) * self.smooth])
        # A loss that was far lower is flat near the start of the run now.
        before = np.max(early[-_BLOCKS_BEFORE:-1])  # it may have risen during the last
        least = max(_FLAT * np.max(late), _FLAT * levels[0], (2 + self.beyond) * before)
        is_lost = is_whole and np.min(late) >= least > 0
        # The late blocks are far above all before, or the newest very far.
        lowest, highest = float(np.min(levels)), float(np.max(levels))
        way, newest = self.beyond * (highest - lowest), float(np.min(late[-_NEWEST_BLOCKS:]))
        is_beyond = np.min(late) > highest + way or newest > highest + _VERY_FAR * way > highest
        if not is_lost and not is_beyond:
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

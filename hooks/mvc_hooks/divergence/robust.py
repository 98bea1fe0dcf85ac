"""Robust statistics of finite values: medians, spreads, scores, levels.

How far a value stands out from others, which may include outliers themselves, is measured by the
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
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAD_TO_SIGMA = 1.482602218505602
MEAN_TO_SIGMA = 1.2533141373155003
_TENTH_TO_SIGMA = 1 / 1.6448536269514722
_LEVEL_LENGTH = 16


def keep_finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values that are not NaN or infinite."""
    return values[np.isfinite(values)]


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
    sigma = MAD_TO_SIGMA * float(find_medians(deviations))
    wide_sigma = _TENTH_TO_SIGMA * float(deviations[(len(deviations) - 1) * 9 // 10])
    if sigma < wide_sigma / 2:
        sigma = wide_sigma
    if sigma == 0.0:
        sigma = MEAN_TO_SIGMA * float(np.mean(deviations))
    return median, sigma


def robust_score(value: float, values: NDArray[np.float64]) -> tuple[float, float]:
    """Return how many sigmas a finite value is above the median of others, and that median.

    The score is 0 on the median, and infinite elsewhere if the others are all equal.
    """
    # Scaled to near 1 by a power of two, which is exact: sums near the ends of the range would
    # overflow, or lose their last bits.
    largest = max(abs(value), float(np.max(np.abs(values))))
    exponent = math.frexp(largest)[1]
    median, sigma = measure_spread(np.ldexp(values, -exponent))
    above = math.ldexp(value, -exponent) - median
    score = above / sigma if sigma else math.copysign(math.inf, above) if above else 0.0
    return score, math.ldexp(median, exponent)


def log_score(value: float, values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the robust score of a value among the logarithms of others, and their plain median."""
    score, median = robust_score(math.log(value), np.log(values))
    return score, math.exp(median)


def find_levels(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return medians of short blocks, so that a start that fell fast is seen as high as it was."""
    length = min(_LEVEL_LENGTH, len(losses))
    return find_medians(losses[: len(losses) // length * length].reshape(-1, length))

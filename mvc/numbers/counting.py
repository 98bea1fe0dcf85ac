"""How differences and distances in ULPs are counted, and how the counts are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.numbers.statistics import HISTOGRAM_BUCKETS, HISTOGRAM_LOWEST

if TYPE_CHECKING:
    from numpy.typing import NDArray

MANTISSA, EXPONENTS = 52, 2048
"""Bits of a float64 below its exponent, and the number of its exponents."""
_LOWEST = HISTOGRAM_LOWEST + 1023
_ULP_SHIFT, _ULP_BIAS = 18, 127 * 32 - 1  # bits of a distance as float32 → bucket of 1/32 octave


def fold_exponents(counts: NDArray[np.int64]) -> tuple[int, ...]:
    """Return the histogram of differences, given how many have each exponent."""
    highest = _LOWEST + HISTOGRAM_BUCKETS
    histogram = counts[_LOWEST:highest].copy()
    histogram[0] += counts[1:_LOWEST].sum()  # that of zero left out
    histogram[-1] += counts[highest:].sum()
    return trim(histogram)


def bucket_ulps(distances: NDArray[Any]) -> NDArray[np.int32]:
    """Return the bucket (see ``ulp_of_bucket``) of each distance."""
    bits = distances.astype(np.float32).view(np.int32)
    buckets: NDArray[np.int32] = np.maximum((bits >> _ULP_SHIFT) - _ULP_BIAS, 0)
    return buckets


def trim(counts: NDArray[np.int64]) -> tuple[int, ...]:
    """Return counts up to the last that is not zero."""
    used = np.flatnonzero(counts)
    return tuple(counts[: used[-1] + 1].tolist()) if used.size else ()

"""Statistics of types of one byte an element: each pair of codes is counted, all else follows.

Of fp8 and small integers there are only 65,536 different pairs, so what a pair contributes is
computed once, however long the tensors are. All counts are exact, at any place in a tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.numbers.blocks import absolute, find_differing, is_rounded, span
from mvc.numbers.counting import EXPONENTS, MANTISSA, bucket_ulps, fold_exponents, trim
from mvc.numbers.elements import find_order, largest_finite, read_values, widen
from mvc.numbers.health import Health
from mvc.numbers.statistics import ULP_BUCKETS, TensorStatistics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mvc.dtypes import DType
    from mvc.numbers.elements import Numbers

    Raw = NDArray[np.uint8]

_STEP = 2**18
_PAIRS = 2**16


def compare_codes(
    old: Raw, old_dtype: DType, new: Raw, new_dtype: DType, first_index: int
) -> TensorStatistics:
    """Return the statistics of ``compare_pieces``, rows left out, for two types of one byte."""
    counts = np.zeros(_PAIRS, np.int64)
    for _, pairs in _blocks(old, new):
        counts += np.bincount(pairs, minlength=_PAIRS)
    present = np.flatnonzero(counts)
    first = read_values((present & 0xFF).astype(np.uint8), old_dtype)
    second = read_values((present >> 8).astype(np.uint8), new_dtype)
    assert first is not None
    assert second is not None
    weights = counts[present]
    is_same = old_dtype == new_dtype
    finite = np.isfinite(widen(first)) & np.isfinite(widen(second))
    old_values, new_values, times = widen(first)[finite], widen(second)[finite], weights[finite]
    differences = np.abs(new_values - old_values)
    largest = float(differences.max(initial=0))
    farthest = present[finite][differences == largest] if largest else present[:0]
    exponents = np.bincount(differences.view(np.int64) >> MANTISSA, times, minlength=EXPONENTS)
    ulps = _count_ulps(first[finite], second[finite], old_dtype, times) if is_same else None
    return TensorStatistics(
        elements=old.size,
        changed=int(weights[find_differing(first, second, is_same=is_same)].sum()),
        left_out=int(weights[~finite].sum()),
        sum_abs_difference=float(times @ differences),
        sum_abs_old=float(times @ np.abs(old_values)),
        sum_abs_new=float(times @ np.abs(new_values)),
        sum_sq_difference=float(times @ differences**2),
        sum_sq_old=float(times @ old_values**2),
        sum_sq_new=float(times @ new_values**2),
        dot=float(times @ (old_values * new_values)),
        largest=largest,
        largest_index=_find_first(old, new, farthest, first_index),
        old=_measure(first, weights, old_dtype),
        new=_measure(second, weights, new_dtype),
        histogram=fold_exponents(exponents.astype(np.int64)),
        ulps=None if ulps is None else ulps[0],
        ulp_max=None if ulps is None else ulps[1],
        is_cast=None if is_same else is_rounded(first, second),
    )


def _blocks(old: Raw, new: Raw) -> Iterator[tuple[int, NDArray[np.uint16]]]:
    """Yield where a block begins, and its pairs of codes, the new one in the high byte."""
    for at in range(0, old.size, _STEP):
        pairs = new[at : at + _STEP].astype(np.uint16)
        np.left_shift(pairs, 8, out=pairs)
        np.bitwise_or(pairs, old[at : at + _STEP], out=pairs)
        yield at, pairs


def _find_first(old: Raw, new: Raw, wanted: NDArray[np.intp], first_index: int) -> int | None:
    if not wanted.size:
        return None
    is_wanted = np.zeros(_PAIRS, np.bool_)
    is_wanted[wanted] = True
    hits = ((at, is_wanted[pairs]) for at, pairs in _blocks(old, new))
    return first_index + next(at + int(hit.argmax()) for at, hit in hits if hit.any())


def _count_ulps(
    first: Numbers, second: Numbers, dtype: DType, times: NDArray[np.int64]
) -> tuple[tuple[int, ...], int] | None:
    orders = find_order(first, dtype), find_order(second, dtype)
    if orders[0] is None or orders[1] is None:
        return None
    distances: NDArray[Any] = span(orders[0], orders[1])
    counts = np.bincount(bucket_ulps(distances), times, minlength=ULP_BUCKETS)
    return trim(counts.astype(np.int64)), int(distances.max(initial=0))


def _measure(values: Numbers, weights: NDArray[np.int64], dtype: DType) -> Health:
    is_nan, is_finite = np.isnan(widen(values)), np.isfinite(widen(values))
    magnitudes, times = absolute(values[is_finite]), weights[is_finite]
    limit = largest_finite(dtype)
    nan = int(weights[is_nan].sum())
    return Health(
        elements=int(weights.sum()),
        nan=nan,
        inf=int(weights[~is_finite].sum()) - nan,
        zeros=int(times[magnitudes == 0].sum()),
        saturated=0 if limit is None else int(times[magnitudes == limit].sum()),
        largest=float(magnitudes.max(initial=0)),
        sum_sq=float(times @ magnitudes**2),
    )

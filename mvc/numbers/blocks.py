"""Passes over one block of two tensors, each by NumPy, in scratch that stays in a core's cache."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.numbers.elements import find_order, largest_finite, read_values, widen
from mvc.numbers.health import Health
from mvc.numbers.statistics import (
    HISTOGRAM_BUCKETS,
    HISTOGRAM_LOWEST,
    ULP_BUCKETS,
    TensorStatistics,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.dtypes import DType
    from mvc.numbers.elements import Numbers

    Raw = NDArray[np.uint8]

BLOCK = 2**16  # elements; whole blocks of every packed type
_ROW = 2**12  # what BLAS adds at once: less than it would spread over threads of its own
_ONES = np.ones(_ROW)
_ALIKE = 1e-4  # ratio of energies


class _Scratch(threading.local):
    """Buffers of one thread, each for one block."""

    def __init__(self) -> None:
        self.wide = np.zeros((3, BLOCK))  # old, new, difference: their magnitudes in the end
        self.rows = self.wide.reshape(3, -1, _ROW)
        self.counted = np.empty(BLOCK, np.int64)
        self.differs = np.empty(BLOCK, np.bool_)
        raw = np.empty((4, BLOCK), np.int64)
        self.words = {  # width in bytes → magnitudes of both sides, and two for ULPs
            width: tuple(row.view(f"i{width}")[:BLOCK] for row in raw) for width in (2, 4, 8)
        }


scratch = _Scratch()


def absolute(values: Numbers) -> NDArray[np.float64]:
    """Return magnitudes as numbers."""
    magnitudes: NDArray[np.float64] = np.abs(widen(values))
    return magnitudes


def read_largest(magnitudes: NDArray[Any], values: Numbers) -> float:
    """Return the largest of magnitudes, which may be the words of a float type without their signs."""
    if not magnitudes.size:
        return 0.0
    top = np.maximum.reduce(magnitudes)
    return float(top.view(values.dtype) if magnitudes.dtype.kind == "i" else top)


def order_words(values: Numbers, magnitudes: NDArray[Any]) -> NDArray[Any]:
    """Turn magnitudes into ``find_order`` of the values, in place."""
    signs = scratch.words[magnitudes.dtype.itemsize][2][: magnitudes.size]
    np.right_shift(values.view(signs.dtype), 8 * signs.itemsize - 1, out=signs)  # 0 or -1
    np.bitwise_xor(magnitudes, signs, out=magnitudes)
    np.subtract(magnitudes, signs, out=magnitudes)
    return magnitudes


def load(sides: tuple[Numbers, Numbers], chosen: NDArray[np.intp] | None) -> None:
    """Put magnitudes of both sides and of the (chosen) differences into the scratch."""
    first, second = sides
    size, wide = first.size, scratch.wide
    difference = wide[2, : size if chosen is None else chosen.size]
    if chosen is not None and not chosen.size:  # then the sides are equal
        np.copyto(wide[0, :size], first if first.dtype.kind != "c" else np.abs(widen(first)))
        np.abs(wide[0, :size], out=wide[0, :size])
        return
    old, new = wide[:2, :size]
    pick: Any = slice(None) if chosen is None else chosen
    if first.dtype.kind == "c" or second.dtype.kind == "c":
        pair = widen(first), widen(second)
        np.abs(pair[0], out=old)
        np.abs(pair[1], out=new)
        np.abs(pair[1][pick] - pair[0][pick], out=difference)
        return
    np.copyto(old, first)
    np.copyto(new, second)
    if first.dtype.kind in "iu" and first.dtype == second.dtype:  # exact beyond 2^53 as well
        np.copyto(difference, span(first[pick], second[pick]))
    else:
        np.subtract(new[pick], old[pick], out=difference)
    np.abs(wide[:2, :size], out=wide[:2, :size])
    np.abs(difference, out=difference)


def add_up(size: int, differences: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return sums of the magnitudes in the scratch and of their squares: old, new, difference."""
    if differences == size:
        return _add_rows(slice(3), size)
    sums, squares = np.zeros(3), np.zeros(3)
    sides = slice(2 if differences else 1)
    sums[:2], squares[:2] = _add_rows(sides, size)  # one side stands for two that are equal
    if differences:
        sums[2:], squares[2:] = _add_rows(slice(2, 3), differences)
    return sums, squares


def _add_rows(which: slice, size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    used = -(-size // _ROW)
    if size % _ROW:
        scratch.wide[which, size : used * _ROW] = 0
    rows = scratch.rows[which, :used]
    return (rows @ _ONES).sum(axis=1), np.vecdot(rows, rows).sum(axis=1)


def find_dot(sides: tuple[Numbers, Numbers], squares: NDArray[np.float64]) -> float:
    """Return the inner product: by 2a·b = |a|² + |b|² - |a-b|² where that loses no precision."""
    old, new, difference = squares.tolist()
    if _ALIKE * max(old, new) < min(old, new) and math.isfinite(difference):
        return float(old + new - difference) / 2
    return float(np.vecdot(widen(sides[0]), widen(sides[1])).real)


def span(first: Numbers, second: Numbers) -> NDArray[Any]:
    """Return by how much integers differ, whatever their width."""
    word = f"u{first.dtype.itemsize}"
    result: NDArray[Any] = np.maximum(first, second).view(word)
    np.subtract(result, np.minimum(first, second).view(word), out=result)
    return result


def find_differing(first: Numbers, second: Numbers, *, is_same: bool) -> NDArray[np.bool_]:
    """Return which pairs differ in a bit, or in value if they are of two types."""
    if not is_same:
        old, new = widen(first), widen(second)
        differ: NDArray[np.bool_] = (old != new) & ~(np.isnan(old) & np.isnan(new))
        return differ
    word = f"u{min(first.dtype.itemsize, 8)}"
    if first.dtype.itemsize > 8:  # noqa: PLR2004  two words an element
        pairs = first.view(word) != second.view(word)
        either: NDArray[np.bool_] = pairs[::2] | pairs[1::2]
        return either
    differs = scratch.differs[: first.size]
    np.not_equal(first.view(word), second.view(word), out=differs)
    return differs


def is_rounded(first: Numbers, second: Numbers) -> bool:
    """Return whether the second side is the first one, rounded to nearest even into its type."""
    if first.dtype.kind == "c" and second.dtype.kind != "c":
        return False
    return not find_differing(first.astype(second.dtype), second, is_same=False).any()


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

"""The statistics of one piece of two tensors: fast, in a few MB of memory a thread.

A piece is taken in blocks whose scratch stays in the second-level cache. NumPy releases the lock of
the interpreter in each pass, so pieces on several threads use several cores.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.numbers.elements import largest_finite, read_order, read_values, widen
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

_BLOCK = 2**15  # elements; whole blocks of every packed type
_ROW = 2**12  # what BLAS adds at once: less than it would spread over threads of its own
_ONES = np.ones(_ROW)
_MANTISSA, _EXPONENTS, _DOUBLE_BIAS = 52, 2048, 1023  # of float64
_ULP_SHIFT, _ULP_BIAS = 18, 127 * 32 - 1  # bits of a distance as float32 → bucket of 1/32 octave


def compare_pieces(
    old: NDArray[np.uint8],
    old_dtype: DType,
    new: NDArray[np.uint8],
    new_dtype: DType,
    first_index: int = 0,
    row_elements: int = 0,
) -> TensorStatistics:
    """Return the statistics of one run of elements on both sides, given by their bytes.

    Args:
        old: whole elements of the old side.
        old_dtype: their type.
        new: as many elements of the new side.
        new_dtype: their type; if it is another one, both are compared as numbers.
        first_index: the index of the first of them in the tensor.
        row_elements: elements in a row, if the piece is made of whole rows: then rows that are
            zero or have a NaN are counted.
    """
    tally = _Tally(old_dtype, new_dtype)
    steps = [_BLOCK // one.block_elements * one.block_bytes for one in (old_dtype, new_dtype)]
    # what overflows is infinite; NaNs have any payload
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for number in range(-(-old.size // steps[0])):
            begins = [number * step for step in steps]
            tally.add(
                old[begins[0] : begins[0] + steps[0]],
                new[begins[1] : begins[1] + steps[1]],
                first_index + number * _BLOCK,
            )
        sides = zip((old, new), (old_dtype, new_dtype), tally.healths, strict=True)
        rows = [_count_rows(*side, row_elements) for side in sides]
    return replace(
        tally.finish(),
        zero_rows_old=rows[0][0],
        zero_rows_new=rows[1][0],
        nan_rows_old=rows[0][1],
        nan_rows_new=rows[1][1],
    )


def _count_rows(
    raw: NDArray[np.uint8], dtype: DType, health: Health, row_elements: int
) -> tuple[int, int]:
    """Return how many rows are zero and how many have a NaN, looking only if there may be some."""
    if not row_elements or not (health.nan or health.zeros >= row_elements):
        return 0, 0
    values = read_values(raw, dtype)
    assert values is not None
    rows = values.reshape(-1, row_elements)
    return int((rows == 0).all(axis=1).sum()), int(np.isnan(rows).any(axis=1).sum())


class _Scratch(threading.local):
    """Buffers of one thread."""

    def __init__(self) -> None:
        self.wide = np.zeros((3, _BLOCK))  # old, new, difference: their magnitudes in the end


_scratch = _Scratch()


class _Tally:
    """What has been added up of two runs of elements."""

    def __init__(self, old: DType, new: DType) -> None:
        self.dtypes = old, new
        self.is_same = old == new
        self.elements = self.changed = self.left_out = 0
        self.sums = np.zeros((2, 3))  # of magnitudes, of their squares; old, new, difference
        self.dot = self.largest = 0.0
        self.largest_index: int | None = None
        self.healths = [Health(), Health()]
        self.exponents = np.zeros(_EXPONENTS, np.int64)
        self.ulps = np.zeros(ULP_BUCKETS, np.int64)
        self.ulp_max: int | None = None
        self.is_numeric = True
        self.is_cast: bool | None = None if self.is_same else new.block_elements == 1 or None

    def add(self, old: NDArray[np.uint8], new: NDArray[np.uint8], first_index: int) -> None:
        """Add one block of both sides."""
        first, second = (
            read_values(raw, one) for raw, one in zip((old, new), self.dtypes, strict=True)
        )
        if first is None or second is None:
            self._add_bytes(old, new)
            return
        self.elements += first.size
        self.changed += _count_changed(first, second, is_same=self.is_same)
        if self.is_cast:
            self.is_cast = _is_cast(first, second)
        distances = _find_ulps(old, new, self.dtypes[0]) if self.is_same else None
        self._add_values((first, second), distances, first_index)

    def _add_bytes(self, old: NDArray[np.uint8], new: NDArray[np.uint8]) -> None:
        self.is_numeric, self.is_cast = False, None
        one = self.dtypes[0]
        blocks = old.size // one.block_bytes
        self.elements += blocks * one.block_elements
        same = 0
        if self.is_same:
            rows = (old == new).reshape(blocks, one.block_bytes)
            same = int(np.count_nonzero(rows.all(axis=1)))
        self.changed += (blocks - same) * one.block_elements

    def _add_values(
        self, sides: tuple[Numbers, Numbers], distances: NDArray[Any] | None, first_index: int
    ) -> None:
        size, places = sides[0].size, None
        dot, maxima = _fill(*sides)
        if not np.isfinite(maxima[:2]).all():
            finite = self._leave_out(sides)
            places = np.flatnonzero(finite)
            size, distances = places.size, None if distances is None else distances[finite]
            dot, maxima = _fill(sides[0][finite], sides[1][finite])
        rows = _scratch.wide.reshape(3, -1, _ROW)
        sums = (rows @ _ONES).sum(axis=1), np.vecdot(rows, rows).sum(axis=1)
        if places is None:
            for side in range(2):
                self.healths[side] += self._judge(side, size, maxima[side], sums[1][side])
        self.sums += sums
        self.dot += dot
        differences = _scratch.wide[2, :size]
        self._see_largest(differences, maxima[2], places, first_index)
        self.exponents += np.bincount(differences.view(np.int64) >> _MANTISSA, minlength=_EXPONENTS)
        self.exponents[0] -= size - np.count_nonzero(differences)
        if distances is not None and distances.size:
            self.ulp_max = max(self.ulp_max or 0, int(distances.max()))
            self.ulps += _count_ulps(distances)

    def _judge(self, side: int, size: int, largest: float, squares: float) -> Health:
        """Return the health of finite elements from the magnitudes in the scratch."""
        magnitudes = _scratch.wide[side, :size]
        limit = largest_finite(self.dtypes[side])
        return Health(
            elements=size,
            zeros=size - int(np.count_nonzero(magnitudes)),
            saturated=0 if limit is None else int(np.count_nonzero(magnitudes == limit)),
            largest=float(largest),
            sum_sq=float(squares),
        )

    def _leave_out(self, sides: tuple[Numbers, Numbers]) -> NDArray[np.bool_]:
        """Judge sides that are not all finite, each on its own; return which pairs are finite."""
        finite = []
        for side, values in enumerate(widen(one) for one in sides):
            nan = int(np.count_nonzero(np.isnan(values)))
            finite.append(np.isfinite(values))
            kept = values[finite[side]]
            _, maxima = _fill(kept, kept)
            health = self._judge(0, kept.size, maxima[0], float(np.vecdot(kept, kept).real))
            beside = Health(values.size - kept.size, nan, values.size - kept.size - nan)
            self.healths[side] += health + beside
        both: NDArray[np.bool_] = finite[0] & finite[1]
        self.left_out += both.size - int(np.count_nonzero(both))
        return both

    def _see_largest(
        self,
        differences: NDArray[np.float64],
        largest: float,
        places: NDArray[np.intp] | None,
        first_index: int,
    ) -> None:
        if largest > self.largest:
            place = int(differences.argmax())
            self.largest = float(largest)
            self.largest_index = first_index + (place if places is None else int(places[place]))

    def finish(self) -> TensorStatistics:
        """Return all of it."""
        low = HISTOGRAM_LOWEST + _DOUBLE_BIAS
        histogram = self.exponents[low : low + HISTOGRAM_BUCKETS].copy()
        histogram[0] += self.exponents[:low].sum()
        histogram[-1] += self.exponents[low + HISTOGRAM_BUCKETS :].sum()
        return TensorStatistics(
            elements=self.elements,
            changed=self.changed,
            left_out=self.left_out,
            sum_abs_old=self.sums[0, 0].item(),
            sum_abs_new=self.sums[0, 1].item(),
            sum_abs_difference=self.sums[0, 2].item(),
            sum_sq_old=self.sums[1, 0].item(),
            sum_sq_new=self.sums[1, 1].item(),
            sum_sq_difference=self.sums[1, 2].item(),
            dot=self.dot,
            largest=self.largest,
            largest_index=self.largest_index,
            old=self.healths[0],
            new=self.healths[1],
            histogram=_trim(histogram),
            ulps=None if self.ulp_max is None else _trim(self.ulps),
            ulp_max=self.ulp_max,
            is_cast=self.is_cast,
            is_numeric=self.is_numeric,
        )


def _trim(counts: NDArray[np.int64]) -> tuple[int, ...]:
    """Return counts up to the last that is not zero."""
    used = np.flatnonzero(counts)
    return tuple(counts[: used[-1] + 1].tolist()) if used.size else ()


def _fill(first: Numbers, second: Numbers) -> tuple[float, NDArray[np.float64]]:
    """Put magnitudes of both sides and of their difference into the scratch, then zeros.

    Returns:
        Their inner product, and the largest magnitude of each of the three.
    """
    wide, size = _scratch.wide, first.size
    wide[:, size:] = 0
    old, new, difference = wide[:, :size]
    if first.dtype.kind == "c":
        pair = first.astype(np.complex128), second.astype(np.complex128)
        dot = float(np.vecdot(*pair).real)
        np.abs(pair[0], out=old)
        np.abs(pair[1], out=new)
        np.abs(pair[1] - pair[0], out=difference)
    else:
        np.copyto(old, first, casting="unsafe")
        np.copyto(new, second, casting="unsafe")
        rows = wide.reshape(3, -1, _ROW)
        dot = float(np.vecdot(rows[0], rows[1]).sum())
        np.subtract(new, old, out=difference)
        if first.dtype.kind in "iu" and first.dtype == second.dtype:  # exact beyond 2^53 as well
            word = np.dtype(f"u{first.dtype.itemsize}")
            span = np.maximum(first, second).view(word) - np.minimum(first, second).view(word)
            np.copyto(difference, span)
        np.abs(wide, out=wide)
    return dot, wide.max(axis=1)


def _count_changed(first: Numbers, second: Numbers, *, is_same: bool) -> int:
    if is_same:
        word = f"u{min(first.dtype.itemsize, 8)}"
        differs = first.view(word) != second.view(word)
        if first.dtype.itemsize > 8:  # noqa: PLR2004  two words an element
            differs = differs[::2] | differs[1::2]
    else:
        old, new = widen(first), widen(second)
        differs = (old != new) & ~(np.isnan(old) & np.isnan(new))
    return int(np.count_nonzero(differs))


def _is_cast(first: Numbers, second: Numbers) -> bool:
    if first.dtype.kind == "c" and second.dtype.kind != "c":
        return False
    return not _count_changed(first.astype(second.dtype), second, is_same=False)


def _find_ulps(old: NDArray[np.uint8], new: NDArray[np.uint8], dtype: DType) -> NDArray[Any] | None:
    first, second = read_order(old, dtype), read_order(new, dtype)
    if first is None or second is None:
        return None
    word = f"u{first.dtype.itemsize}"
    distances: NDArray[Any] = np.maximum(first, second).view(word) - np.minimum(first, second).view(
        word
    )
    return distances


def _count_ulps(distances: NDArray[Any]) -> NDArray[np.int64]:
    """Count distances in the buckets of ``ulp_of_bucket``."""
    buckets = (distances.astype(np.float32).view(np.int32) >> _ULP_SHIFT) - _ULP_BIAS
    counts: NDArray[np.int64] = np.bincount(np.maximum(buckets, 0), minlength=ULP_BUCKETS)
    return counts

"""The statistics of one piece of two tensors: fast, in a few MB of memory a thread.

A piece is taken in blocks whose scratch stays in the second-level cache. NumPy releases the lock of
the interpreter in each pass, so pieces on several threads use several cores.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.numbers.blocks import (
    BLOCK,
    EXPONENTS,
    MANTISSA,
    absolute,
    add_up,
    bucket_ulps,
    compare_codes,
    find_differing,
    find_dot,
    fold_exponents,
    is_rounded,
    load,
    order_words,
    read_largest,
    scratch,
    span,
    trim,
)
from mvc.numbers.elements import (
    IEEE,
    count_top_codes,
    find_order,
    largest_finite,
    read_values,
    widen,
)
from mvc.numbers.health import Health
from mvc.numbers.statistics import ULP_BUCKETS, TensorStatistics

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.dtypes import DType
    from mvc.numbers.elements import Numbers

_FEW = 2**12  # bytes that are compared sooner than all pairs of codes
_SPARSE = 4  # with fewer than a quarter changed, those are looked at alone
_EXACT, _SAMPLED = 2**20, 16  # elements counted one by one; then, one in how many
_NEAR_ULPS = 2**10  # what is counted exactly before it goes into buckets


def compare_pieces(
    old: NDArray[np.uint8],
    old_dtype: DType,
    new: NDArray[np.uint8],
    new_dtype: DType,
    first_index: int = 0,
    row_elements: int = 0,
) -> TensorStatistics:
    """Return the statistics of one run of elements on both sides, given by their bytes.

    Of two types, both are compared as numbers. ``first_index`` is that of the run in its tensor. If the piece
    is made of whole rows, ``row_elements`` lets rows that are zero or have a NaN be counted.
    """
    # what overflows is infinite; NaNs have any payload
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        is_bytes = all(one.block_bytes == one.block_elements == 1 for one in (old_dtype, new_dtype))
        compare = compare_codes if is_bytes and old.size > _FEW else _compare_blocks
        found = compare(old, old_dtype, new, new_dtype, first_index)
        rows = [
            _count_rows(old, old_dtype, found.old, row_elements),
            _count_rows(new, new_dtype, found.new, row_elements),
        ]
    return replace(
        found,
        zero_rows_old=rows[0][0],
        zero_rows_new=rows[1][0],
        nan_rows_old=rows[0][1],
        nan_rows_new=rows[1][1],
    )


def _compare_blocks(
    old: NDArray[np.uint8],
    old_dtype: DType,
    new: NDArray[np.uint8],
    new_dtype: DType,
    first_index: int,
) -> TensorStatistics:
    tally = _Tally(old_dtype, new_dtype)
    steps = [BLOCK // one.block_elements * one.block_bytes for one in (old_dtype, new_dtype)]
    for number in range(-(-old.size // steps[0])):
        begins = [number * step for step in steps]
        tally.add(
            old[begins[0] : begins[0] + steps[0]],
            new[begins[1] : begins[1] + steps[1]],
            first_index + number * BLOCK,
        )
    return tally.finish()


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


class _HealthTally:
    """The health of one side, while it is added up."""

    def __init__(self) -> None:
        self.finite = self.zeros = self.saturated = self.nan = self.bad = 0
        self.largest = self.sum_sq = 0.0

    def add(self, magnitudes: NDArray[Any], largest: float, limit: float | None) -> None:
        """Add finite elements, but for their squares."""
        self.finite += magnitudes.size
        self.zeros += magnitudes.size - int(np.count_nonzero(magnitudes))
        if limit is not None:
            self.saturated += int(np.count_nonzero(magnitudes == limit))
        self.largest = max(self.largest, largest)

    def finish(self) -> Health:
        """Return all of it."""
        return Health(
            elements=self.finite + self.bad,
            nan=self.nan,
            inf=self.bad - self.nan,
            zeros=self.zeros,
            saturated=self.saturated,
            largest=self.largest,
            sum_sq=float(self.sum_sq),
        )


class _Tally:
    """What has been added up of two runs of elements."""

    def __init__(self, old: DType, new: DType) -> None:
        self.dtypes = old, new
        self.is_same = old == new
        self.is_ieee = self.is_same and old.name in IEEE
        self.limits = largest_finite(old), largest_finite(new)
        self.elements = self.changed = self.left_out = 0
        self.sum_abs, self.sum_sq = np.zeros(3), np.zeros(3)  # of old, new, difference
        self.dot = self.largest = 0.0
        self.largest_index: int | None = None
        self.healths = [_HealthTally(), _HealthTally()]
        self.exponents = np.zeros(EXPONENTS, np.int64)  # of differences as float64
        self.near_ulps = np.zeros(_NEAR_ULPS + 1, np.int64)
        self.far_ulps = np.zeros(ULP_BUCKETS, np.int64)
        self.ulp_max: int | None = None
        self.is_numeric = True
        self.is_cast: bool | None = None if self.is_same else new.block_elements == 1 or None

    def add(self, old: NDArray[np.uint8], new: NDArray[np.uint8], first_index: int) -> None:
        """Add one block of both sides."""
        first = read_values(old, self.dtypes[0])
        second = first if new is old else read_values(new, self.dtypes[1])
        if first is None or second is None:
            self._add_bytes(old, new)
            return
        self.elements += first.size
        if self.is_cast:
            self.is_cast = is_rounded(first, second)
        differs = find_differing(first, second, is_same=self.is_same)
        changed = int(np.count_nonzero(differs))
        self.changed += changed
        for health, raw, dtype in zip(self.healths, (old, new), self.dtypes, strict=True):
            health.saturated += count_top_codes(raw, dtype)
        magnitudes = self._find_magnitudes(first, 0), self._find_magnitudes(second, 1)
        sides = first, second
        largest = [read_largest(*one) for one in zip(magnitudes, sides, strict=True)]
        if not (math.isfinite(largest[0]) and math.isfinite(largest[1])):
            self._add_part(sides, differs, first_index)
            return
        for side, health in enumerate(self.healths):
            health.add(magnitudes[side], largest[side], self.limits[side])
        squares = self._add_finite(sides, magnitudes, differs, changed, first_index)
        self.healths[0].sum_sq += squares[0]
        self.healths[1].sum_sq += squares[1]

    def _find_magnitudes(self, values: Numbers, side: int) -> NDArray[Any]:
        """Return the words of a float type without their signs, or else magnitudes as numbers."""
        if not self.is_ieee:
            return absolute(values)
        lane = scratch.words[values.dtype.itemsize][side][: values.size]
        np.bitwise_and(values.view(lane.dtype), np.iinfo(lane.dtype).max, out=lane)
        return lane

    def _add_part(
        self, sides: tuple[Numbers, Numbers], differs: NDArray[np.bool_], first_index: int
    ) -> None:
        """Add what is finite of a block, and the health of each side on its own."""
        finite = []
        for side, values in enumerate(sides):
            is_nan, is_finite = np.isnan(widen(values)), np.isfinite(widen(values))
            finite.append(is_finite)
            kept = absolute(values[is_finite])
            health = self.healths[side]
            health.nan += int(np.count_nonzero(is_nan))
            health.bad += values.size - kept.size
            health.sum_sq += float(np.vecdot(kept, kept))
            health.add(kept, float(kept.max(initial=0)), self.limits[side])
        both = finite[0] & finite[1]
        places = np.flatnonzero(both)
        self.left_out += both.size - places.size
        sides, differs = (sides[0][both], sides[1][both]), differs[both]
        magnitudes = self._find_magnitudes(sides[0], 0), self._find_magnitudes(sides[1], 1)
        changed = int(np.count_nonzero(differs))
        self._add_finite(sides, magnitudes, differs, changed, first_index, places)

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

    def _add_finite(
        self,
        sides: tuple[Numbers, Numbers],
        magnitudes: tuple[NDArray[Any], NDArray[Any]],
        differs: NDArray[np.bool_],
        changed: int,
        first_index: int,
        places: NDArray[np.intp] | None = None,
    ) -> NDArray[np.float64]:
        """Add pairs that are finite, and return the sums of squares.

        ``magnitudes`` are lost afterwards where they are words; ``places`` are where in the block the pairs are, if
        some were left out.
        """
        size = differs.size
        chosen = np.flatnonzero(differs) if changed * _SPARSE < size else None
        load(sides, chosen)
        sums, squares = add_up(size, size if chosen is None else changed)
        self.sum_abs += sums
        self.sum_sq += squares
        self.dot += find_dot(sides, squares)
        if chosen is not None:
            sides = sides[0][chosen], sides[1][chosen]
            magnitudes = magnitudes[0][chosen], magnitudes[1][chosen]
            places = chosen if places is None else places[chosen]
        if sides[0].size:
            self._see_differences(scratch.wide[2, : sides[0].size], places, first_index)
        if self.is_same and size:
            self._see_ulps(sides, magnitudes, size - sides[0].size, first_index)
        return squares

    def _see_differences(
        self, differences: NDArray[np.float64], places: NDArray[np.intp] | None, first_index: int
    ) -> None:
        largest = float(np.maximum.reduce(differences))
        if largest > self.largest:
            place = int(differences.argmax())
            self.largest = largest
            self.largest_index = first_index + (place if places is None else int(places[place]))
        counted, weight = _sample(differences, first_index)
        exponents = scratch.counted[: counted.size]
        np.right_shift(counted.view(np.int64), MANTISSA, out=exponents)
        self.exponents += np.bincount(exponents, minlength=EXPONENTS) * weight

    def _see_ulps(
        self,
        sides: tuple[Numbers, Numbers],
        magnitudes: tuple[NDArray[Any], NDArray[Any]],
        zeros: int,
        first_index: int,
    ) -> None:
        """Count distances in ULPs; ``zeros`` more of them are zero."""
        first, second = (
            order_words(*one) if self.is_ieee else find_order(one[0], self.dtypes[0])
            for one in zip(sides, magnitudes, strict=True)
        )
        if first is None or second is None:
            return
        self.near_ulps[0] += zeros
        self._count_ulps(span(first, second), first_index)

    def _count_ulps(self, distances: NDArray[Any], first_index: int) -> None:
        if not distances.size:
            self.ulp_max = self.ulp_max or 0
            return
        self.ulp_max = max(self.ulp_max or 0, int(np.maximum.reduce(distances)))
        distances, weight = _sample(distances, first_index)
        if distances.dtype.itemsize > 2:  # noqa: PLR2004  few of these are near
            self.far_ulps += _count_far(distances) * weight
            return
        near = scratch.counted[: distances.size]
        np.minimum(distances, _NEAR_ULPS, out=near)
        counts = np.bincount(near, minlength=_NEAR_ULPS + 1) * weight
        self.near_ulps += counts
        if counts[-1]:
            self.far_ulps += _count_far(distances[distances >= _NEAR_ULPS]) * weight

    def finish(self) -> TensorStatistics:
        """Return all of it."""
        near = np.bincount(
            bucket_ulps(np.arange(_NEAR_ULPS)), self.near_ulps[:-1], minlength=ULP_BUCKETS
        )
        return TensorStatistics(
            elements=self.elements,
            changed=self.changed,
            left_out=self.left_out,
            sum_abs_old=self.sum_abs[0].item(),
            sum_abs_new=self.sum_abs[1].item(),
            sum_abs_difference=self.sum_abs[2].item(),
            sum_sq_old=self.sum_sq[0].item(),
            sum_sq_new=self.sum_sq[1].item(),
            sum_sq_difference=self.sum_sq[2].item(),
            dot=self.dot,
            largest=self.largest,
            largest_index=self.largest_index,
            old=self.healths[0].finish(),
            new=self.healths[1].finish(),
            histogram=fold_exponents(self.exponents),
            ulps=None if self.ulp_max is None else trim(self.far_ulps + near.astype(np.int64)),
            ulp_max=self.ulp_max,
            is_cast=self.is_cast,
            is_numeric=self.is_numeric,
        )


def _sample(figures: NDArray[Any], first_index: int) -> tuple[NDArray[Any], int]:
    """Return what of a block to count, and how often each counts.

    Counting costs more than all sums together. Far into a tensor one part in 16 of a block in which
    much changed stands for all of it, another part in each block.
    """
    if first_index < _EXACT or figures.size < BLOCK // _SPARSE:
        return figures, 1
    part = figures.size // _SAMPLED
    start = first_index // BLOCK % _SAMPLED * part
    return figures[start : start + part], _SAMPLED


def _count_far(distances: NDArray[Any]) -> NDArray[np.int64]:
    return np.bincount(bucket_ulps(distances), minlength=ULP_BUCKETS)

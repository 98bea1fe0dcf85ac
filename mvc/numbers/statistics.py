"""How two tensors differ, in figures that join: piece by piece, tensor by tensor, module by module.

Sums are made in float64 from exactly widened elements, in rows of 4,096 and blocks of 65,536: the
relative error of a sum of n terms of one sign is below 1e-13 + n * 2^-69. A pair with a side that is
not finite is left out of sums, ULPs and the histogram, and counted as left out.

Counting costs more than all sums. So ULPs and differences of types wider than a byte are counted one
by one up to 2^20 elements of a tensor; beyond, in blocks that changed by a quarter or more, one
element in 16 counts for 16.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from itertools import accumulate
from operator import add

import msgspec

from mvc.errors import FormatError
from mvc.numbers.health import Health

HISTOGRAM_BUCKETS = 64
HISTOGRAM_LOWEST = -48
"""Bucket i of a histogram counts |Δ| from 2^(i-48) to below 2^(i-47); the ends take what is beyond."""
ULP_BUCKETS = 32 * 65
_VERSION = 1


@dataclass(frozen=True, slots=True)
class TensorStatistics:
    """What differs between two tensors, or two groups of them; ``+`` joins.

    Attributes:
        elements: how many were compared.
        changed: how many differ in a bit; between two dtypes, in value (NaNs are alike).
        left_out: how many are not finite on one side or both, and so in no sum.
        sum_abs_difference: Σ|new - old|.
        sum_abs_old: Σ|old|.
        sum_abs_new: Σ|new|.
        sum_sq_difference: Σ|new - old|².
        sum_sq_old: Σ|old|².
        sum_sq_new: Σ|new|².
        dot: Σ old·new; of complex elements the real part of the inner product.
        largest: the largest |new - old|.
        largest_index: its place in C order, the first of several; None where nothing differs.
        old: health of the old side, pairs that are left out included.
        new: health of the new side.
        histogram: how many |Δ| from 2^-1022 on are in each bucket of a binary logarithm.
        ulps: how many pairs are that far apart, in the buckets of ``ulp_of_bucket``; None for types
            without ULPs and between two types.
        ulp_max: the largest distance in ULPs; None as before.
        is_cast: whether the new side is exactly the old one, rounded to nearest even into another
            dtype; None where both have one dtype.
        is_numeric: False if a type can only be compared by its bytes: then there is only
            ``changed``, of all elements in blocks that differ.
        zero_rows_old: rows (along the first dimension) that are all zero.
        zero_rows_new: the same of the new side.
        nan_rows_old: rows with a NaN.
        nan_rows_new: the same of the new side.
    """

    elements: int = 0
    changed: int = 0
    left_out: int = 0
    sum_abs_difference: float = 0.0
    sum_abs_old: float = 0.0
    sum_abs_new: float = 0.0
    sum_sq_difference: float = 0.0
    sum_sq_old: float = 0.0
    sum_sq_new: float = 0.0
    dot: float = 0.0
    largest: float = 0.0
    largest_index: int | None = None
    old: Health = field(default_factory=Health)
    new: Health = field(default_factory=Health)
    histogram: tuple[int, ...] = ()
    ulps: tuple[int, ...] | None = None
    ulp_max: int | None = None
    is_cast: bool | None = None
    is_numeric: bool = True
    zero_rows_old: int = 0
    zero_rows_new: int = 0
    nan_rows_old: int = 0
    nan_rows_new: int = 0

    def __add__(self, other: TensorStatistics) -> TensorStatistics:
        return join((self, other))

    @property
    def _has_figures(self) -> bool:
        """Whether sums say anything: not of types without numbers, nor if every pair is left out."""
        return self.is_numeric and (self.left_out < self.elements or not self.elements)

    @property
    def sigma(self) -> float | None:
        """Σ|A-B| / (Σ|A|+Σ|B|): 0 if equal, 1 if nothing is shared; None without finite pairs."""
        if not self._has_figures:
            return None
        return _divide(self.sum_abs_difference, self.sum_abs_old + self.sum_abs_new)

    @property
    def relative_l2(self) -> float | None:
        """‖new - old‖ / ‖old‖; None if only the old side is zero, or without finite pairs."""
        if not self._has_figures:
            return None
        return _divide(math.sqrt(self.sum_sq_difference), math.sqrt(self.sum_sq_old))

    @property
    def cosine(self) -> float | None:
        """Cosine of the angle between both; None if one of them is zero."""
        lengths = math.sqrt(self.sum_sq_old) * math.sqrt(self.sum_sq_new)
        cosine = _divide(self.dot, lengths) if lengths else None
        return None if cosine is None else max(-1.0, min(1.0, cosine))

    @property
    def share_changed(self) -> float:
        """Share of elements that differ in a bit, 0 to 1."""
        return self.changed / self.elements if self.elements else 0.0

    @property
    def norm_old(self) -> float:
        """Euclidean norm of the finite elements of the old side."""
        return self.old.norm

    @property
    def norm_new(self) -> float:
        """Euclidean norm of the finite elements of the new side."""
        return self.new.norm

    @property
    def scale(self) -> float | None:
        """The c for which c times old comes nearest to new; None if the old side is zero."""
        return _divide(self.dot, self.sum_sq_old) if self.sum_sq_old else None

    @property
    def scale_residual(self) -> float | None:
        """What is left after scaling, relative to new: ‖new - c·old‖ / ‖new‖, good to 1e-7."""
        if not self.sum_sq_old or not self.sum_sq_new:
            return None
        cosine = self.cosine
        return None if cosine is None else math.sqrt(max(0.0, 1.0 - cosine * cosine))

    @property
    def ulp_50(self) -> int | None:
        """Median distance in ULPs: exact to 63, then within 1/32."""
        return self._find_ulp(0.5)

    @property
    def ulp_99(self) -> int | None:
        """99th percentile of the distance in ULPs: exact to 63, then within 1/32."""
        return self._find_ulp(0.99)

    def _find_ulp(self, share: float) -> int | None:
        if self.ulps is None or self.ulp_max is None:
            return None
        bucket = bisect_left(list(accumulate(self.ulps)), math.ceil(share * sum(self.ulps)))
        is_top = bucket >= len(self.ulps) or ulp_of_bucket(bucket + 1) > self.ulp_max
        return self.ulp_max if is_top else ulp_of_bucket(bucket)

    def encode(self) -> bytes:
        """Return it as compact bytes, to be kept."""
        values = [getattr(self, name) for name in _NAMES]
        return msgspec.msgpack.encode((_VERSION, *values))

    @classmethod
    def decode(cls, data: bytes) -> TensorStatistics:
        """Return the statistics in bytes from ``encode``; FormatError if they are damaged, or of another version."""
        try:
            version, *values = msgspec.msgpack.decode(data, type=tuple)
            if version != _VERSION or len(values) != len(_NAMES):
                raise FormatError("kept statistics are of another version")
            named = dict(zip(_NAMES, values, strict=True))
            return msgspec.convert(named, cls)
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            raise FormatError(f"kept statistics are damaged: {error}") from error


_NAMES = [one.name for one in fields(TensorStatistics)]
_ADDED = [
    *(name for name in _NAMES if name.startswith("sum_") or "rows_" in name),
    *("elements", "changed", "left_out", "dot", "old", "new"),
]


def join(several: Sequence[TensorStatistics]) -> TensorStatistics:
    """Join statistics; sums are added in order, so that all machines agree."""
    added = {
        name: reduce(add, [getattr(statistics, name) for statistics in several]) for name in _ADDED
    }
    farthest = min(several, key=_size_of_largest)
    ulps = [statistics.ulps for statistics in several if statistics.ulps is not None]
    casts = [statistics.is_cast for statistics in several if statistics.is_cast is not None]
    return TensorStatistics(
        **added,
        largest=farthest.largest,
        largest_index=farthest.largest_index,
        histogram=_add_counts([statistics.histogram for statistics in several]),
        ulps=_add_counts(ulps) if ulps else None,
        ulp_max=max(
            (statistics.ulp_max for statistics in several if statistics.ulp_max is not None),
            default=None,
        ),
        is_cast=all(casts) if casts else None,
        is_numeric=all(statistics.is_numeric for statistics in several),
    )


def ulp_of_bucket(bucket: int) -> int:
    """Return the smallest distance in a bucket: as many as there are steps of 1/32 octave from 1.

    Bucket 0 is no distance at all; no two distances below 64 share a bucket.
    """
    octave, part = divmod(bucket - 1, 32)
    return math.ceil(2.0**octave * (1 + part / 32)) if bucket else 0


def _size_of_largest(statistics: TensorStatistics) -> tuple[float, float]:
    index = math.inf if statistics.largest_index is None else statistics.largest_index
    return -statistics.largest, index


def _add_counts(several: Sequence[Sequence[int]]) -> tuple[int, ...]:
    longest, *others = sorted(several, key=len, reverse=True)
    counts = list(longest)
    for one in others:
        counts[: len(one)] = map(add, counts, one)
    return tuple(counts)


def _divide(part: float, whole: float) -> float | None:
    if not part and not whole:
        return 0.0
    result = part / whole if whole else math.nan
    return result if math.isfinite(result) else None

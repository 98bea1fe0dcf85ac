"""The deviation between two runs of elements, and where it begins.

NaN equals NaN here, whatever its bits, and an infinity itself; against anything else they are as far
as can be, and within no tolerance. -0 equals 0. Only whether a bit differs is exact about all of these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.numbers.elements import read_order, read_values, widen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.dtypes import DType

    Raw = NDArray[np.uint8]
    Number = bool | int | float | complex

_WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far apart elements may be: ``absolute + relative * |old|``, as in ``numpy.isclose``."""

    absolute: float = 0.0
    relative: float = 0.0


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first element, in C order, that fails.

    Attributes:
        index: its place.
        old: its value on the old side; None for types that only their bytes tell apart.
        new: its value on the new side.
        ulps: how many values of the dtype further; None between two dtypes, for NaN, and for types
            without such an order.
    """

    index: int
    old: Number | None
    new: Number | None
    ulps: int | None


@dataclass(frozen=True, slots=True)
class Deviation:
    """How two runs of elements differ; ``+`` joins them, those of the lower index first.

    Attributes:
        elements: how many were compared.
        changed: how many differ in a bit, or between two dtypes in value; None for types that pack
            several into a block.
        bytes_changed: bytes that differ; None between two dtypes.
        beyond: how many are not within the tolerance; without one, those that differ in a bit.
        first: the first of these.
        largest: the largest |new - old|: NaN if only one of two is a number, None for types that
            only their bytes tell apart.
        largest_index: where, in C order.
        relative: the largest |new - old| / |old|, of elements whose old value is not 0.
    """

    elements: int = 0
    changed: int | None = 0
    bytes_changed: int | None = 0
    beyond: int = 0
    first: FirstDifference | None = None
    largest: float | None = 0.0
    largest_index: int | None = None
    relative: float | None = 0.0

    def __add__(self, other: Deviation) -> Deviation:
        far = other if _is_farther(other.largest, self.largest) else self
        firsts = [one for one in (self.first, other.first) if one is not None]
        return Deviation(
            self.elements + other.elements,
            _add(self.changed, other.changed),
            _add(self.bytes_changed, other.bytes_changed),
            self.beyond + other.beyond,
            min(firsts, key=lambda one: one.index, default=None),
            far.largest,
            far.largest_index,
            other.relative if _is_farther(other.relative, self.relative) else self.relative,
        )


def _add(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def _is_farther(one: float | None, than: float | None) -> bool:
    """Return whether ``one`` counts instead: unknown before NaN before numbers by size."""
    if one is None or than is None:
        return one is None and than is not None
    return not math.isnan(than) and (math.isnan(one) or one > than)


def measure_deviation(
    old: Raw,
    old_dtype: DType,
    new: Raw,
    new_dtype: DType,
    *,
    first_index: int = 0,
    tolerance: Tolerance | None = None,
) -> Deviation:
    """Return how two runs of the same number of whole elements differ; without a tolerance, in their bits.

    ``first_index`` is the place of the first element in its tensor. Two dtypes need a tolerance.
    """
    elements = len(old) // old_dtype.block_bytes * old_dtype.block_elements
    is_packed = old_dtype.block_elements > 1 or new_dtype.block_elements > 1
    is_one_type = old_dtype == new_dtype
    if not elements or (is_one_type and not np.any(old != new)):
        return Deviation(elements, None if is_packed else 0, 0 if is_one_type else None)
    differs = _find_changed(old, new, old_dtype) if is_one_type else None
    with np.errstate(all="ignore"):  # scales of garbage overflow
        left, right = read_values(old, old_dtype), read_values(new, new_dtype)
    if left is None or right is None:
        return _of_bytes(old, new, old_dtype, differs, first_index)
    distances, relative = _measure(left, right)
    if tolerance is None and differs is not None:
        wrong = differs if not is_packed else np.repeat(differs, old_dtype.block_elements)
        if is_packed:  # of a block that differs, the elements that do
            wrong = wrong & (distances != 0) if distances.any() else wrong
    else:
        wrong = _find_beyond(distances, left, tolerance or Tolerance())
    place = _find_largest(distances)
    return Deviation(
        elements,
        None if is_packed else int(np.count_nonzero(distances if differs is None else differs)),
        int(np.count_nonzero(old != new)) if is_one_type else None,
        int(np.count_nonzero(wrong)),
        _describe_first(wrong, (old, new), (left, right), (old_dtype, new_dtype), first_index),
        float(distances[place]),
        first_index + place if distances[place] else None,
        relative,
    )


def _find_changed(old: Raw, new: Raw, dtype: DType) -> NDArray[np.bool_]:
    """Return for each element, or block of packed ones, whether a bit differs."""
    if dtype.block_elements > 1:
        blocks: NDArray[np.bool_] = (old != new).reshape(-1, dtype.block_bytes).any(axis=1)
        return blocks
    word_bytes = min(dtype.block_bytes, _WORD_BYTES)
    differs: NDArray[np.bool_] = old.view(f"u{word_bytes}") != new.view(f"u{word_bytes}")
    return differs[0::2] | differs[1::2] if dtype.block_bytes > word_bytes else differs


def _of_bytes(
    old: Raw, new: Raw, dtype: DType, differs: NDArray[np.bool_] | None, first_index: int
) -> Deviation:
    """Return what the bytes alone show; unreadable types are within no tolerance."""
    assert differs is not None  # two dtypes are compared only where both can be read
    size = dtype.block_elements
    wrong = int(np.count_nonzero(differs))
    return Deviation(
        len(differs) * size,
        None if size > 1 else wrong,
        int(np.count_nonzero(old != new)),
        wrong * size,
        FirstDifference(first_index + int(differs.argmax()) * size, None, None, None),
        None,
        None,
        None,
    )


def _measure(left: NDArray[Any], right: NDArray[Any]) -> tuple[NDArray[Any], float]:
    """Return |new - old| of all elements, 0 where they are equal, and the largest relative one."""
    with np.errstate(all="ignore"):
        if left.dtype == right.dtype and left.dtype.kind in "biu":
            words = f"u{left.dtype.itemsize}"
            high, low = (pick(left, right).view(words) for pick in (np.maximum, np.minimum))
            distances = (high - low).astype(np.float64)  # exact: unsigned words wrap
            wide = widen(left)
        else:
            wide, other = widen(left), widen(right)
            distances = np.abs(other - wide)
            is_same = (wide == other) | (np.isnan(wide) & np.isnan(other))
            distances[is_same] = 0  # also infinity minus itself, and NaN minus NaN
        sizes = np.abs(wide)
        shares = np.divide(distances, sizes, out=np.zeros_like(distances), where=sizes > 0)
    return distances, float(shares[_find_largest(shares)])


def _find_largest(distances: NDArray[Any]) -> int:
    """Return where the largest is; the first NaN, if there is one: nothing compares greater."""
    return int(distances.argmax())  # of NumPy, to which NaN is the largest


def _find_beyond(distances: NDArray[Any], old: NDArray[Any], tolerance: Tolerance) -> NDArray[Any]:
    with np.errstate(all="ignore"):
        allowed: Any = tolerance.absolute
        if tolerance.relative:
            allowed = allowed + tolerance.relative * np.abs(widen(old))
        beyond: NDArray[Any] = ~np.isfinite(distances) | (distances > allowed)
    return beyond


def _describe_first(
    wrong: NDArray[np.bool_],
    raw: tuple[Raw, Raw],
    values: tuple[NDArray[Any], NDArray[Any]],
    dtypes: tuple[DType, DType],
    first_index: int,
) -> FirstDifference | None:
    if not wrong.any():
        return None
    place = int(wrong.argmax())
    old, new = (side[place] for side in values)
    return FirstDifference(
        first_index + place, _as_number(old), _as_number(new), _find_ulps(raw, dtypes, place)
    )


def _as_number(value: Any) -> Number:
    """Return a plain number of Python; the small floats of ml_dtypes have no ``item``."""
    plain = value.item()
    return plain if isinstance(plain, (bool, int, float, complex)) else float(value)


def _find_ulps(raw: tuple[Raw, Raw], dtypes: tuple[DType, DType], place: int) -> int | None:
    dtype = dtypes[0]
    if dtype != dtypes[1]:
        return None
    block, inside = divmod(place, dtype.block_elements)
    at = slice(block * dtype.block_bytes, (block + 1) * dtype.block_bytes)
    values = [read_values(side[at], dtype) for side in raw]
    orders = [read_order(side[at], dtype) for side in raw]
    if any(value is None or np.isnan(widen(value[inside])) for value in values):
        return None
    old, new = (None if order is None else int(order[inside]) for order in orders)
    return None if old is None or new is None else abs(new - old)

"""Health of a run of elements: NaN, infinities, zeros, saturation, largest magnitude, norm.

Meant to run while chunks are being encoded, so it costs little: whatever can be seen in the bits is
counted on integers, and squares are summed in rows that the processor multiplies and adds at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.dtypes import DType, get_dtype, numpy_dtype
from mvc.numbers.figures import Health

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bits = NDArray[np.uint16] | NDArray[np.uint32] | NDArray[np.uint64]

__all__ = ["Health", "is_float", "measure"]

_BLOCK_BYTES = 2**18  # with its scratch it stays in the second-level cache
_ROW = 2**10  # squares are added in their own precision within a row, in float64 beyond


def is_float(dtype: DType) -> bool:
    """Return whether a type is one of floating-point numbers, real or complex, of any width."""
    return dtype.name.startswith(("F", "BF", "C"))


def measure(raw: NDArray[np.uint8], dtype: DType, *, zeros: bool = True) -> Health:
    """Return the health of whole elements, given by their bytes.

    Types that are quantised by scales elsewhere or in blocks (``QI8``, GGUF's) are not measured.
    Without ``zeros`` those of wider floats are not counted, which is faster.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is infinite; signalling NaN
        if dtype.name in _FLOATS:
            return _measure_floats(raw, _FLOATS[dtype.name], zeros=zeros)
        if dtype.name in _PACKED or (dtype.numpy_name and dtype.block_bytes == 1):
            return _measure_bytes(raw, dtype)
        if dtype.name == "C32":
            return _measure_complex(raw.view(np.float16).astype(np.float32).view(np.complex64))
        numpy_type = numpy_dtype(dtype)
        if numpy_type is None:
            return Health()
        measure_values = _measure_complex if numpy_type.kind == "c" else _measure_integers
        return measure_values(raw.view(numpy_type))


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a float type is laid out."""

    word: type[np.unsignedinteger[Any]]  # words as wide as it, and ``signed`` ones
    signed: type[np.signedinteger[Any]]
    infinity: int  # the bits of an infinity
    # the type of NumPy that the words are read as; for BF16 once it is half of a float32
    value: type[np.floating[Any]]
    # of a short type: by how many bits the low and the high one of two neighbours move left in their 32 bits to
    # be a float32
    places: tuple[int, int] | None = None
    scale: float = 1.0  # the factor that makes that the value

    def decode(self, magnitude: int) -> float:
        if self.word is np.uint16 and self.value is np.float32:
            return float(np.uint32(magnitude << 16).view(np.float32))
        return float(self.word(magnitude).view(self.value))


_FLOATS = {
    "BF16": _Layout(np.uint16, np.int16, 0x7F80, np.float32, (16, 0)),
    "F16": _Layout(np.uint16, np.int16, 0x7C00, np.float16, (13, -3), 2.0**112),
    "F32": _Layout(np.uint32, np.int32, 0x7F80_0000, np.float32),
    "F64": _Layout(np.uint64, np.int64, 0x7FF0_0000_0000_0000, np.float64),
}


def _measure_floats(raw: NDArray[np.uint8], layout: _Layout, *, zeros: bool) -> Health:
    words: Bits = raw.view(layout.word)
    odd = words.size % 2 if layout.places else 0  # short words are read by pairs
    if odd:
        words = np.append(words, layout.word(0))
    step = _BLOCK_BYTES // words.itemsize
    spare: Bits = np.empty_like(words[:step])
    mask = 2 ** (8 * words.itemsize - 1) - 1
    nan = inf = nonzero = largest = 0
    sum_sq = 0.0
    for start in range(0, words.size, step):
        block = words[start : start + step]
        # Either maximum sees the words of one sign.
        top = max(int(block.max()) - mask - 1, int(block.view(layout.signed).max()))
        if top >= layout.infinity:
            block = block & layout.word(mask)
            bad = block >= layout.infinity
            infinite = int(np.count_nonzero(block == layout.infinity))
            inf, nan = inf + infinite, nan + int(np.count_nonzero(bad)) - infinite
            block[bad] = 0
            top = int(block.max())
        if zeros:
            magnitudes = np.bitwise_and(block, layout.word(mask), out=spare[: block.size])
            nonzero += int(np.count_nonzero(magnitudes))
        largest = max(largest, top)
        sum_sq += _add_squares(block, layout, layout.decode(top), spare)
    elements = words.size - odd
    zero = elements - nan - inf - nonzero if zeros else 0
    return Health(elements, nan, inf, zero, 0, layout.decode(largest), sum_sq)


def _add_squares(block: Bits, layout: _Layout, largest: float, spare: Bits) -> float:
    """Return the sum of squares of finite words.

    Squares of float32 must neither overflow nor vanish beside the largest: 1,024 times 2^112 is
    below 2^128, and all that is lost below 2^-63 is nothing beside 2^-80.
    """
    is_safe = layout.word is np.uint64 or not largest or 2.0**-40 <= largest <= 2.0**56
    if layout.places is None:
        values = block.view(layout.value)
        return _sum_squares(values if is_safe else values.astype(np.float64))
    if not is_safe:
        return _sum_squares((block.astype(np.uint32) << 16).view(np.float32).astype(np.float64))
    pairs, wide = block.view(np.uint32), spare[: block.size].view(np.uint32)
    return sum(_sum_squares(_widen(pairs, place, layout, wide)) for place in layout.places)


def _widen(
    pairs: NDArray[np.uint32], place: int, layout: _Layout, wide: NDArray[np.uint32]
) -> NDArray[np.float32]:
    """Return the magnitudes of every other word; a short float is a float32 of other scale."""
    if place > 0:
        np.left_shift(pairs, place, out=wide)
    elif place < 0:
        np.right_shift(pairs, -place, out=wide)
    if layout.scale == 1.0:
        return (wide if place else np.bitwise_and(pairs, 0xFFFF_0000, out=wide)).view(np.float32)
    values = np.bitwise_and(wide, 0x0FFF_E000, out=wide).view(np.float32)
    return np.multiply(values, np.float32(layout.scale), out=values)


def _sum_squares(values: NDArray[np.floating[Any]]) -> float:
    whole = values.size - values.size % _ROW
    rows, rest = values[:whole].reshape(-1, _ROW), values[whole:]
    return float(np.vecdot(rows, rows).sum(dtype=np.float64)) + float(np.vecdot(rest, rest))


def _measure_complex(values: NDArray[np.complexfloating[Any, Any]]) -> Health:
    total = Health()
    for start in range(0, values.size, _BLOCK_BYTES // 8):
        block = values[start : start + _BLOCK_BYTES // 8].astype(np.complex128)
        nan = np.isnan(block)
        bad = nan | np.isinf(block)
        magnitudes = np.abs(np.where(bad, 0, block))
        total += Health(
            elements=block.size,
            nan=int(np.count_nonzero(nan)),
            inf=int(np.count_nonzero(bad & ~nan)),
            zeros=int(np.count_nonzero(block == 0)),
            largest=float(magnitudes.max()),
            sum_sq=_sum_squares(magnitudes),
        )
    return total


def _measure_integers(values: NDArray[np.integer[Any]]) -> Health:
    if not values.size:
        return Health()
    step = _BLOCK_BYTES // values.itemsize
    return Health(
        elements=values.size,
        zeros=values.size - int(np.count_nonzero(values)),
        largest=float(max(abs(int(values.min())), abs(int(values.max())))),
        sum_sq=sum(
            _sum_squares(values[start : start + step].astype(np.float64))
            for start in range(0, values.size, step)
        ),
    )


_PACKED = {
    "F4": ("float4_e2m1fn", 4),
    "F6_E2M3": ("float6_e2m3fn", 6),
    "F6_E3M2": ("float6_e3m2fn", 6),
}
"""Types of less than a byte: their name in ml_dtypes, and bits per element."""


def _measure_bytes(raw: NDArray[np.uint8], dtype: DType) -> Health:
    """Measure a type with at most 256 values: count each of them."""
    if dtype.block_bytes == 3:  # noqa: PLR2004  four elements of six bits, from the lowest bit up
        parts = raw.reshape(-1, 3).astype(np.uint32)
        whole = parts[:, 0] | parts[:, 1] << 8 | parts[:, 2] << 16
        raw = np.concatenate([(whole >> shift & 63).astype(np.uint8) for shift in (0, 6, 12, 18)])
    counts = _count_bytes(raw)
    if dtype.name == "F4":
        nibbles = counts.reshape(16, 16)
        counts = nibbles.sum(0) + nibbles.sum(1)
    return _weigh(counts, _values_of(dtype.name), has_limit=dtype.name.startswith("F"))


def _count_bytes(raw: NDArray[np.uint8]) -> NDArray[np.int64]:
    pairs = raw[: raw.size & ~1].view(np.uint16)  # counting is faster by pairs
    grid = np.bincount(pairs, minlength=65536).reshape(256, 256)
    counts: NDArray[np.int64] = grid.sum(0) + grid.sum(1)
    if raw.size % 2:
        counts[raw[-1]] += 1
    return counts


@cache
def _values_of(name: str) -> NDArray[np.float64]:
    """Return the value of every code of a type."""
    import ml_dtypes  # noqa: PLC0415  most models need none of its types

    alias, bits = _PACKED.get(name, ("", 8))
    numpy_type = np.dtype(getattr(ml_dtypes, alias)) if alias else numpy_dtype(get_dtype(name))
    codes = np.arange(2**bits).astype(np.uint8)
    values = codes != 0 if name == "BOOL" else codes.view(numpy_type)
    return values.astype(np.float64)


def _weigh(counts: NDArray[np.int64], values: NDArray[np.float64], *, has_limit: bool) -> Health:
    counts = counts[: values.size]
    finite, magnitudes = np.isfinite(values), np.abs(values)
    present = magnitudes[finite & (counts > 0)]
    limit = magnitudes[finite].max() if has_limit else np.inf
    return Health(
        elements=int(counts.sum()),
        nan=int(counts[np.isnan(values)].sum()),
        inf=int(counts[np.isinf(values)].sum()),
        zeros=int(counts[values == 0].sum()),
        saturated=int(counts[finite & (magnitudes == limit)].sum()),
        largest=float(present.max(initial=0.0)),
        sum_sq=float(counts[finite] @ magnitudes[finite] ** 2),
    )

"""Bytes of any element type as numbers, and the order in which a type's values stand.

Values come as the narrowest NumPy type that holds them exactly. Packed types are taken apart: ``F4``
low half of a byte first, ``F6_*`` as a little-endian stream of bits, ``MXFP4`` and ``NVFP4`` as ggml
lays them out. The other block types of GGUF are read by the ``gguf`` package where it is installed.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from mvc.dtypes import DType, numpy_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[Any]  # flat; bool, integer, float or complex, or a small float of ml_dtypes

_CODES: dict[str, Any] = {
    "QI8": np.int8,
    "QU8": np.uint8,
    "QI32": np.int32,
}  # scale and zero point are not known
_PACKED: dict[str, Any] = {
    "F4": ml_dtypes.float4_e2m1fn,
    "F6_E2M3": ml_dtypes.float6_e2m3fn,
    "F6_E3M2": ml_dtypes.float6_e3m2fn,
}
_SCALE_BYTES = {"MXFP4": 1, "NVFP4": 4}
"""Of each block of a type that shares scales; two E2M1 codes a byte follow."""


def read_values(raw: NDArray[np.uint8], dtype: DType) -> Numbers | None:
    """Return the values of whole elements, or None if only their bytes can be compared.

    Quantised types of torch give their integer codes, since the scale is not in the tensor.
    """
    values: Numbers | None
    if dtype.name == "BOOL":
        values = raw != 0
    elif dtype.name == "C32":
        values = raw.view(np.float16).astype(np.float32).view(np.complex64)
    elif dtype.name in _PACKED:
        values = _unpack(raw, dtype).view(_PACKED[dtype.name])
    elif dtype.block_elements > 1:
        read = {"MXFP4": _read_mxfp4, "NVFP4": _read_nvfp4}.get(dtype.name, _read_gguf)
        values = read(raw.reshape(-1, dtype.block_bytes), dtype)
    else:
        scalar: Any = _CODES.get(dtype.name) or numpy_dtype(dtype)
        values = raw.view(scalar)
    return values


@cache
def is_readable(dtype: DType) -> bool:
    """Return whether the values of a type can be read here, not only its bytes."""
    return read_values(np.zeros(dtype.block_bytes, np.uint8), dtype) is not None


def widen(values: Numbers) -> NDArray[Any]:
    """Return values as float64 or complex128: exact but for 64-bit integers beyond 2^53."""
    with np.errstate(invalid="ignore"):  # NaNs of any payload
        return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def read_order(raw: NDArray[np.uint8], dtype: DType) -> NDArray[Any] | None:
    """Return for each element its place among all values of its type, as a whole number.

    Neighbours differ by 1, and -0 and +0 have the same place: the difference of two places is their
    distance in ULPs. The places of NaNs mean nothing. None for types without such an order.
    """
    values = read_values(raw, dtype)
    return None if values is None else find_order(values, dtype)


def find_order(values: Numbers, dtype: DType) -> NDArray[Any] | None:
    """Return the places (see ``read_order``) of values that ``read_values`` gave."""
    if dtype.name == "F8_E8M0":
        return values.view(np.uint8).astype(np.int16)
    if dtype.name in _PACKED or dtype.name.startswith("F8_"):
        bits = 8 * dtype.block_bytes // dtype.block_elements
        return _order(values.view(np.uint8).astype(np.int16), bits)
    if dtype.name in IEEE:
        return _order(values.view(f"i{dtype.block_bytes}"), 8 * dtype.block_bytes)
    return None


IEEE = frozenset({"F16", "BF16", "F32", "F64"})
"""Types whose words are sign, exponent and mantissa, with infinity and NaNs above all others."""


def _order(codes: NDArray[Any], bits: int) -> NDArray[Any]:
    """Return sign and magnitude as one signed number, in the width of the codes."""
    magnitude = codes & ((1 << (bits - 1)) - 1)
    negative = (codes >> (bits - 1)) & 1
    result: NDArray[Any] = (magnitude ^ -negative) + negative
    return result


@cache
def largest_finite(dtype: DType) -> float | None:
    """Return the largest value of a type whose casts saturate there (fp8, fp6, fp4), else None."""
    if dtype.name == "F8_E8M0" or not dtype.name.startswith(("F8_", "F4", "F6_")):
        return None
    scalar = _PACKED.get(dtype.name) or numpy_dtype(dtype)
    return float(ml_dtypes.finfo(scalar).max)  # type: ignore[no-untyped-call]


def count_top_codes(raw: NDArray[np.uint8], dtype: DType) -> int:
    """Return how many elements of MX blocks have the largest magnitude that their scale allows."""
    if dtype.name not in _SCALE_BYTES:
        return 0
    codes = raw.reshape(-1, dtype.block_bytes)[:, _SCALE_BYTES[dtype.name] :]
    return sum(int(np.count_nonzero((codes & top) == top)) for top in (0x07, 0x70))


def _unpack(raw: NDArray[np.uint8], dtype: DType) -> NDArray[np.uint8]:
    """Return the codes of F4 or F6, one a byte."""
    if dtype.block_bytes == 1:
        return np.stack((raw & 15, raw >> 4), axis=-1).reshape(-1)
    first, second, third = raw.reshape(-1, 3).T
    codes = (
        first & 63, first >> 6 | (second & 15) << 2, second >> 4 | (third & 3) << 4, third >> 2
    )  # fmt: skip
    return np.stack(codes, axis=-1).reshape(-1)


def _read_halves(packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the unscaled elements of MX blocks: all low halves of a row, then all high ones."""
    codes = np.concatenate((packed & 15, packed >> 4), axis=-1).view(ml_dtypes.float4_e2m1fn)
    elements: NDArray[np.float32] = codes.astype(np.float32)
    return elements


def _read_mxfp4(blocks: NDArray[np.uint8], _dtype: DType) -> Numbers:
    """ggml: an E8M0 scale for 32 elements; the lower 16 are in the low halves."""
    exponents = blocks[:, :1].astype(np.int32) - 127
    with np.errstate(over="ignore"):  # scales of garbage
        return np.ldexp(_read_halves(blocks[:, 1:]), exponents).reshape(-1)


def _read_nvfp4(blocks: NDArray[np.uint8], _dtype: DType) -> Numbers:
    """ggml: 4 unsigned E4M3 scales, each for 16 elements in 8 bytes; NaN there is read as 0."""
    codes = blocks[:, :4] & 0x7F
    scale = np.nan_to_num(codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    elements: Numbers = _read_halves(blocks[:, 4:].reshape(-1, 4, 8)) * scale[..., None]
    return elements.reshape(-1)


def _read_gguf(blocks: NDArray[np.uint8], dtype: DType) -> Numbers | None:
    try:
        import gguf  # noqa: PLC0415  optional
    except ImportError:
        return None
    kind = getattr(gguf.GGMLQuantizationType, dtype.name, None)
    if kind is None:
        return None
    try:
        with np.errstate(all="ignore"):  # scales of garbage
            values: Numbers = gguf.quants.dequantize(blocks, kind).reshape(-1)
    except (NotImplementedError, KeyError):
        return None
    return values

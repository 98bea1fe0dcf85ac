"""The table of element types, by the names safetensors and GGUF give them.

One place decides what a dtype name means: how many bytes its elements take, which NumPy type
shows its values, and how its words are cut into byte planes. Types that pack several elements
into a block of bytes (F4, the GGUF quantisations) have no NumPy view; their bytes are opaque.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import FormatError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

MAX_DIMS = 64
MAX_TENSOR_BYTES = 2**62


@dataclass(frozen=True, slots=True)
class DType:
    """One element type."""

    name: str  # canonical name, as in a safetensors header where that has one
    block_elements: int  # elements in one block; 1 for everything but packed types
    block_bytes: int
    word_bytes: int  # width of the words that byte planes are cut from (1, 2, 4 or 8)
    # whether a word is sign, exponent, mantissa from its highest bit down, so that rotating the
    # sign away makes the top plane the exponent
    is_float: bool
    # name of the NumPy or ml_dtypes scalar type; empty where values cannot be shown
    numpy_name: str


def _plain(name: str, size_bytes: int, numpy_name: str, *, is_float: bool = False) -> DType:
    return DType(name, 1, size_bytes, size_bytes, is_float=is_float, numpy_name=numpy_name)


def _complex(name: str, size_bytes: int, numpy_name: str) -> DType:
    half = size_bytes // 2
    return DType(name, 1, size_bytes, word_bytes=half, is_float=True, numpy_name=numpy_name)


def _block(name: str, elements: int, size_bytes: int) -> DType:
    return DType(name, elements, size_bytes, word_bytes=1, is_float=False, numpy_name="")


_PLAIN = (
    _plain("BOOL", 1, "bool"),
    _plain("U8", 1, "uint8"),
    _plain("I8", 1, "int8"),
    _plain("U16", 2, "uint16"),
    _plain("I16", 2, "int16"),
    _plain("U32", 4, "uint32"),
    _plain("I32", 4, "int32"),
    _plain("U64", 8, "uint64"),
    _plain("I64", 8, "int64"),
    _plain("F16", 2, "float16", is_float=True),
    _plain("BF16", 2, "bfloat16", is_float=True),
    _plain("F32", 4, "float32", is_float=True),
    _plain("F64", 8, "float64", is_float=True),
    _complex("C64", 8, "complex64"),
    _complex("C128", 16, "complex128"),
    _complex("C32", 4, ""),
    _plain("F8_E4M3", 1, "float8_e4m3fn"),
    _plain("F8_E5M2", 1, "float8_e5m2"),
    _plain("F8_E4M3FNUZ", 1, "float8_e4m3fnuz"),
    _plain("F8_E5M2FNUZ", 1, "float8_e5m2fnuz"),
    _plain("F8_E8M0", 1, "float8_e8m0fnu"),
    _plain("QI8", 1, ""),
    _plain("QU8", 1, ""),
    _plain("QI32", 4, ""),
)

# Packed types of safetensors (bits per element below eight) and the GGUF quantisations, whose
# block sizes are those of ggml.h (QK_K = 256).
_BLOCKS = (
    _block("F4", 2, 1),
    _block("F6_E2M3", 4, 3),
    _block("F6_E3M2", 4, 3),
    _block("Q4_0", 32, 18),
    _block("Q4_1", 32, 20),
    _block("Q5_0", 32, 22),
    _block("Q5_1", 32, 24),
    _block("Q8_0", 32, 34),
    _block("Q8_1", 32, 40),
    _block("Q2_K", 256, 84),
    _block("Q3_K", 256, 110),
    _block("Q4_K", 256, 144),
    _block("Q5_K", 256, 176),
    _block("Q6_K", 256, 210),
    _block("Q8_K", 256, 292),
    _block("IQ2_XXS", 256, 66),
    _block("IQ2_XS", 256, 74),
    _block("IQ3_XXS", 256, 98),
    _block("IQ1_S", 256, 50),
    _block("IQ4_NL", 32, 18),
    _block("IQ3_S", 256, 110),
    _block("IQ2_S", 256, 82),
    _block("IQ4_XS", 256, 136),
    _block("IQ1_M", 256, 56),
    _block("TQ1_0", 256, 54),
    _block("TQ2_0", 256, 66),
    _block("MXFP4", 32, 17),
    _block("NVFP4", 64, 36),
    _block("Q1_0", 128, 18),
)

DTYPES: dict[str, DType] = {dtype.name: dtype for dtype in _PLAIN + _BLOCKS}

TORCH_NAMES = {dtype.name: dtype.numpy_name for dtype in _PLAIN if dtype.numpy_name}
"""What torch calls those element types whose values it shows: as NumPy and ml_dtypes do."""
TORCH_NAMES["C32"] = "complex32"
_FRAMEWORKS = {"numpy": "numpy", "np": "numpy", "torch": "torch", "pt": "torch"}


def get_framework(name: str) -> str:
    """Return ``numpy`` or ``torch`` for one of their names, which are also those of safetensors."""
    try:
        return _FRAMEWORKS[name]
    except KeyError:
        raise UsageError(
            f"unknown framework {name!r}", hint='use "torch" ("pt") or "numpy" ("np")'
        ) from None


def get_dtype(name: str) -> DType:
    """Return the dtype of that canonical name."""
    try:
        return DTYPES[name]
    except KeyError:
        raise FormatError(f"unknown dtype {name!r}") from None


def count_elements(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape; 1 for a 0-d tensor."""
    if len(shape) > MAX_DIMS:
        raise FormatError(f"tensor has {len(shape)} dimensions, the limit is {MAX_DIMS}")
    if shape and not 0 <= min(shape) <= max(shape) <= MAX_TENSOR_BYTES:
        raise FormatError(f"shape {list(shape)} has a dimension out of range")
    count = math.prod(shape)
    # An empty tensor's other dimensions must fit as well: no library can make it otherwise.
    if (count or math.prod(dim or 1 for dim in shape)) > MAX_TENSOR_BYTES:
        raise FormatError(f"shape {list(shape)} has too many elements")
    return count


def size_in_bytes(dtype: DType, shape: Sequence[int]) -> int:
    """Return the bytes of a C-contiguous tensor; packed types need whole blocks."""
    elements = count_elements(shape)
    if elements % dtype.block_elements:
        raise FormatError(f"{elements} elements of {dtype.name} do not fill whole blocks")
    size_bytes = elements // dtype.block_elements * dtype.block_bytes
    if size_bytes > MAX_TENSOR_BYTES:
        raise FormatError(f"tensor of {dtype.name} {list(shape)} is too large")
    return size_bytes


def numpy_dtype(dtype: DType) -> np.dtype[np.generic] | None:
    """Return the NumPy type that shows the values (from ml_dtypes where NumPy has none)."""
    import numpy as np  # noqa: PLC0415  import cost: commands that show no value never pay it

    if not dtype.numpy_name:
        return None
    scalar = getattr(np, dtype.numpy_name, None)
    if scalar is None:
        import ml_dtypes  # noqa: PLC0415

        scalar = getattr(ml_dtypes, dtype.numpy_name)
    result: np.dtype[np.generic] = np.dtype(scalar)
    return result

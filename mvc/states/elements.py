"""Element types of live arrays, and how a safetensors file holds them.

An element type is spelled in ``state.json`` the way its library spells it: ``bfloat16`` for a
torch tensor, ``<f4`` or ``datetime64``'s ``<M8[s]`` for a NumPy array, ``float8_e4m3fn`` for an
array of ml_dtypes. The tensor file must load in any tool, so what safetensors cannot hold is
stored as another dtype of the same bytes:

    ========================  ======================================
    complex128                F64 with a trailing dimension of 2
    complex32                 F16 with a trailing dimension of 2
    datetime64, timedelta64   I64
    text, bytes, plain void   U8 with a trailing dimension of the item's bytes
    float4_e2m1fn_x2          F4 with twice the last dimension (two elements a byte)
    other types of ml_dtypes  U8, one byte an element
    big-endian numbers        the same number, little-endian
    ========================  ======================================
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from mvc.dtypes import TORCH_NAMES, DType, get_dtype
from mvc.errors import FormatError, UnsupportedError

if TYPE_CHECKING:
    AnyDType = np.dtype[Any]


@dataclass(frozen=True, slots=True)
class ElementType:
    """One element type of a live array."""

    name: str  # its spelling in ``state.json``
    size_bytes: int
    word_bytes: int  # width of the words in it whose byte order matters
    stored: str  # dtype in the safetensors file, a canonical dtype name
    tail: tuple[int, ...] = ()  # trailing dimensions that the file adds to the shape
    big_endian: bool = False  # whether words in memory have the high byte first
    packed: int = 1  # file elements in one live element of the last dimension

    @property
    def word_type(self) -> str:
        """NumPy spelling of the words in memory."""
        return f"{'>' if self.big_endian else '<'}u{self.word_bytes}"

    @property
    def words(self) -> int:
        """Words in one element."""
        return self.size_bytes // self.word_bytes if self.word_bytes else 0


_BIG_HOST = sys.byteorder == "big"


_PAIRS_OF = {"C32": "F16", "C128": "F64"}
_OF_NUMPY = frozenset(
    {
        *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    }
)
"""NumPy's own; not asked of NumPy, since what is stored must not depend on its version."""


def _number(name: str, dtype: DType, *, big_endian: bool = _BIG_HOST) -> ElementType:
    """Return the element type of numbers that ``mvc.dtypes`` knows."""
    half = _PAIRS_OF.get(dtype.name)
    stored, tail = (dtype.name, ()) if half is None else (half, (2,))
    return ElementType(name, dtype.block_bytes, dtype.word_bytes, stored, tail, big_endian)


TORCH_ELEMENTS = {name: _number(name, get_dtype(dtype)) for dtype, name in TORCH_NAMES.items()}
TORCH_ELEMENTS["float4_e2m1fn_x2"] = ElementType("float4_e2m1fn_x2", 1, 1, "F4", packed=2)

_NUMBERS = {
    np.dtype(name).str[1:]: get_dtype(dtype)
    for dtype, name in TORCH_NAMES.items()
    if name in _OF_NUMPY
}
# NumPy keeps two types of the same eight bytes apart; its own spelling does not.
_LONGLONG = {"q": "longlong", "Q": "ulonglong"}
_ML_ELEMENTS = {name: one for name, one in TORCH_ELEMENTS.items() if name not in _OF_NUMPY}
del _ML_ELEMENTS["float4_e2m1fn_x2"]  # torch's own
_ML_ELEMENTS["bcomplex32"] = ElementType("bcomplex32", 4, 2, "BF16", (2,), _BIG_HOST)
_ML_ELEMENTS |= {
    name: ElementType(name, 1, 1, "U8", (), _BIG_HOST)
    for name in (
        *("int1", "int2", "int4", "uint1", "uint2", "uint4"),
        *("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"),
        *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz"),
    )
}
_NUMPY_NAME = re.compile(
    r"[<>|](?:[biuf][1248]|c8|c16)|[<>][mM]8(?:\[\d{0,9}[A-Za-z]{1,2}\])?|[<>]U\d{1,8}|\|[SV]\d{1,9}"
)


def find_numpy_element(dtype: AnyDType) -> ElementType | None:
    """Return the element type of a NumPy dtype, or None if its bytes are not plain data."""
    if dtype.type.__module__ == "ml_dtypes":
        return _ML_ELEMENTS.get(dtype.type.__name__) if dtype.isnative else None
    if dtype.hasobject or dtype.names is not None or dtype.subdtype is not None:
        return None
    return _find_builtin_element(dtype)


def _find_builtin_element(dtype: AnyDType) -> ElementType | None:
    kind, size = dtype.kind, dtype.itemsize
    name = _LONGLONG.get(dtype.char, dtype.str) if dtype.isnative else dtype.str
    big = dtype.str[0] == ">"
    number = _NUMBERS.get(f"{kind}{size}")
    if number is not None:
        return _number(name, number, big_endian=big)
    if kind in "mM":
        return ElementType(name, 8, 8, "I64", (), big)
    if kind in "SUV":
        return ElementType(name, size, 1, "U8", (size,))
    return None


def parse_numpy_dtype(name: str) -> AnyDType:
    """Return the NumPy dtype of a spelling in ``state.json``."""
    if name in _ML_ELEMENTS:
        scalar = getattr(ml_dtypes, name, None)
        if scalar is None:
            raise UnsupportedError(
                f"the installed ml_dtypes has no {name}", hint="install a newer ml_dtypes"
            )
        result: AnyDType = np.dtype(scalar)
        return result
    if name in _LONGLONG.values():
        return np.dtype(name)
    try:
        dtype: AnyDType | None = np.dtype(name) if _NUMPY_NAME.fullmatch(name) else None
    except (TypeError, ValueError, ZeroDivisionError, OverflowError, MemoryError):
        dtype = None
    if dtype is None or dtype.str != name:
        raise FormatError(f"unknown array dtype {name[:60]!r}")
    return dtype


def get_numpy_element(name: str) -> ElementType:
    """Return the element type of a NumPy spelling; raises as ``parse_numpy_dtype``."""
    element = find_numpy_element(parse_numpy_dtype(name))
    if element is None:
        raise FormatError(f"unknown array dtype {name[:60]!r}")
    return element


def get_torch_element(name: str) -> ElementType:
    """Return the element type of a torch dtype's name; FormatError if it has none."""
    try:
        return TORCH_ELEMENTS[name]
    except KeyError:
        raise FormatError(f"unknown tensor dtype {name[:60]!r}") from None


def stored_form(element: ElementType, shape: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """Return dtype and shape of an array in its safetensors file."""
    shape = tuple(shape)
    if element.packed == 1:
        return element.stored, shape + element.tail
    if not shape:
        return "U8", shape
    return element.stored, (*shape[:-1], shape[-1] * element.packed)

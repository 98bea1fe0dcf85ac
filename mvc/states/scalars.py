"""Values without elements → JSON: numbers, text, bytes, ranges, dtypes, sizes, devices.

What JSON can say exactly stands for itself; the rest is an object tagged ``$``. Only exact types
count: an ``IntEnum`` or a subclass of ``str`` is no scalar here. torch's own scalars are
recognised without importing torch.
"""

from __future__ import annotations

import base64
import math
import struct
import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mvc.states.elements import find_numpy_element

if TYPE_CHECKING:
    from collections.abc import Callable

    from mvc.states.json_text import JsonValue
    from mvc.states.nodes import Node

INLINE_BYTES: Final = 1024
"""Longer ``bytes`` go into the file of their top-level key."""
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1  # what every JSON reader of note takes


class NotScalar:
    """What ``encode_scalar`` returns for a value that is none."""


NOT_SCALAR: Final = NotScalar()


def encode_scalar(value: object) -> JsonValue | NotScalar:
    """Return the JSON form of a scalar, or NOT_SCALAR."""
    encode = _ENCODERS.get(type(value))
    if encode is not None:
        return encode(value)
    if isinstance(value, np.generic):
        return _encode_numpy_scalar(value)
    if isinstance(value, np.dtype):
        element = find_numpy_element(value)
        return NOT_SCALAR if element is None else {"$": "numpy.dtype", "name": element.name}
    return _encode_torch_scalar(value)


def _encode_int(value: int) -> JsonValue:
    return value if _INT_MIN <= value <= _INT_MAX else {"$": "int", "hex": hex(value)}


def _encode_float(value: float) -> JsonValue:
    if math.isfinite(value):
        return value
    return {"$": "float", "value": repr(value), "bits": struct.pack(">d", value).hex()}


def _encode_complex(value: complex) -> JsonValue:
    return {"$": "complex", "real": _encode_float(value.real), "imag": _encode_float(value.imag)}


def _encode_str(value: str) -> JsonValue:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return {"$": "str", "base64": _to_base64(value.encode("utf-8", "surrogatepass"))}
    return value


def _encode_bytes(value: bytes | bytearray) -> JsonValue | NotScalar:
    return NOT_SCALAR if len(value) > INLINE_BYTES else encode_inline_bytes(value)


def encode_inline_bytes(value: bytes | bytearray) -> JsonValue:
    """Return the JSON form of bytes of any length."""
    return {"$": type(value).__name__, "base64": _to_base64(value)}


def _encode_span(value: range | slice) -> JsonValue | NotScalar:
    node: Node = {"$": type(value).__name__}
    for name in ("start", "stop", "step"):
        part = encode_scalar(getattr(value, name))
        if isinstance(part, NotScalar) or type(getattr(value, name)) is slice:
            return NOT_SCALAR
        node[name] = part
    return node


def _encode_numpy_scalar(value: np.generic) -> JsonValue | NotScalar:
    if isinstance(value, (np.str_, np.bytes_)) and type(value) in (np.str_, np.bytes_):
        plain = "".join(list(value)) if isinstance(value, np.str_) else bytes(value)
        part = encode_scalar(plain)
        tag = f"numpy.{type(value).__name__}"
        return NOT_SCALAR if isinstance(part, NotScalar) else {"$": tag, "value": part}
    element = find_numpy_element(value.dtype)
    if element is None or type(value) is not value.dtype.type or not element.size_bytes:
        return NOT_SCALAR
    bits = np.asarray(value).tobytes()
    node: Node = {"$": "numpy", "dtype": element.name}
    shown = _show_number(value)
    if shown is not None and np.array(shown, value.dtype).tobytes() == bits:
        return node | {"value": shown}
    return node | {"bits": bits.hex()}


def _show_number(value: np.generic) -> bool | int | float | None:
    if value.dtype.kind == "b":
        return bool(value)
    if value.dtype.kind in "iu":
        return int(value)
    if value.dtype.kind == "f" and math.isfinite(value):
        return float(value)
    return None


def _encode_torch_scalar(value: object) -> JsonValue | NotScalar:
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "Size"):
        return NOT_SCALAR
    if type(value) is torch.Size:
        return {"$": "torch.Size", "items": list(value)}  # type: ignore[call-overload]  # a tuple of ints
    if type(value) is torch.dtype:
        return {"$": "torch.dtype", "name": str(value).removeprefix("torch.")}
    if type(value) is torch.device:
        return {"$": "torch.device", "type": value.type, "index": value.index}  # type: ignore[attr-defined]  # of torch.device
    return NOT_SCALAR


_ENCODERS: dict[type, Callable[[Any], JsonValue | NotScalar]] = {
    type(None): lambda value: value,
    bool: lambda value: value,
    int: _encode_int,
    float: _encode_float,
    complex: _encode_complex,
    str: _encode_str,
    bytes: _encode_bytes,
    bytearray: _encode_bytes,
    range: _encode_span,
    slice: _encode_span,
}


def _to_base64(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode("ascii")

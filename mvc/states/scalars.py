"""Values without elements ⇄ JSON: numbers, text, bytes, ranges, dtypes, sizes, devices.

What JSON can say exactly stands for itself; the rest is an object tagged ``$``. Only exact types
count: an ``IntEnum`` or a subclass of ``str`` is not a scalar here. torch's own scalars are recognised
without importing torch. Reading trusts nothing: names are looked up in closed tables only.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from mvc.errors import FormatError
from mvc.states.document import JsonValue, Node, check_fields, get_dims, get_field
from mvc.states.elements import find_numpy_element, get_numpy_element, parse_numpy_dtype

INLINE_BYTES: Final = 1024
"""Longer ``bytes`` go into the file of their top-level key."""
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1  # what every common JSON reader takes
_HEX_INT = re.compile(r"-?0x[0-9a-f]+")


class NotScalar:
    """What ``encode_scalar`` returns for a value that is not a scalar."""


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


def _encode_float(value: float) -> JsonValue:
    if math.isfinite(value):
        return value
    return {"$": "float", "value": repr(value), "bits": struct.pack(">d", value).hex()}


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
    int: lambda value: value if _INT_MIN <= value <= _INT_MAX else {"$": "int", "hex": hex(value)},
    float: _encode_float,
    complex: lambda value: {
        "$": "complex",
        "real": _encode_float(value.real),
        "imag": _encode_float(value.imag),
    },
    str: _encode_str,
    bytes: _encode_bytes,
    bytearray: _encode_bytes,
    range: _encode_span,
    slice: _encode_span,
}


def _to_base64(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode("ascii")


class PlainScalars:
    """torch's scalars without torch: a tuple, and the strings that torch would print."""

    def size(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        """Return what stands for a torch.Size."""
        return dims

    def dtype(self, name: str) -> object:
        """Return what stands for a torch.dtype, as ``torch.float32``."""
        return f"torch.{name}"

    def device(self, kind: str, index: int | None) -> object:
        """Return what stands for a torch.device, as ``cuda:0``."""
        return kind if index is None else f"{kind}:{index}"


def decode_scalar(node: JsonValue, load: Callable[[], PlainScalars]) -> object:
    """Return the scalar of a JSON value; ``load`` returns what makes torch's, and is called only for one.

    Anything else, and fields that no encoder writes, are a FormatError.
    """
    tag = node.get("$") if isinstance(node, dict) else None
    if not isinstance(node, dict) or not isinstance(tag, str) or tag not in _TORCH_DECODERS:
        return _decode_plain(node)
    check_fields(node, *_FIELDS[tag])
    return _TORCH_DECODERS[tag](node, load())


def is_scalar_tag(tag: str) -> bool:
    """Return whether a tagged object is a scalar."""
    return tag in _FIELDS


def _decode_plain(node: JsonValue) -> object:
    """Return a scalar other than torch's."""
    if not isinstance(node, (dict, list)):
        return node
    tag = node.get("$") if isinstance(node, dict) else None
    if not isinstance(node, dict) or not isinstance(tag, str) or tag not in _DECODERS:
        raise FormatError("state.json has something else where a plain value belongs")
    check_fields(node, *_FIELDS[tag])
    return _DECODERS[tag](node)


def _get_base64(node: Node) -> bytes:
    try:
        return base64.b64decode(get_field(node, "base64", str), validate=True)
    except (binascii.Error, ValueError):
        raise FormatError("state.json has bytes that are not base64") from None


def _get_bits(node: Node, size_bytes: int) -> bytes:
    try:
        bits = bytes.fromhex(get_field(node, "bits", str))
    except ValueError:
        raise FormatError("state.json has bits that are not hexadecimal") from None
    if len(bits) != size_bytes:
        raise FormatError(f"state.json has {len(bits)} bytes where {size_bytes} belong")
    return bits


def _decode_int(node: Node) -> int:
    text = get_field(node, "hex", str)
    if not _HEX_INT.fullmatch(text):
        raise FormatError("state.json has an integer that is not hexadecimal")
    return int(text, 16)


def _decode_complex(node: Node) -> complex:
    parts: list[Any] = [_decode_plain(node.get(name)) for name in ("real", "imag")]
    if any(type(part) is not float for part in parts):
        raise FormatError("state.json has a complex number whose parts are not floats")
    return complex(parts[0], parts[1])


def _decode_str(node: Node) -> str:
    try:
        return _get_base64(node).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise FormatError("state.json has a string that is not UTF-8") from None


def _decode_span(node: Node) -> range | slice:
    parts: list[Any] = [_decode_plain(node.get(name)) for name in ("start", "stop", "step")]
    if node["$"] == "slice":
        return slice(*parts)
    if any(type(part) is not int for part in parts) or not parts[2]:
        raise FormatError("state.json has a range whose parts are not integers")
    return range(*parts)


def _decode_numpy_text(node: Node) -> object:
    value = _decode_plain(node.get("value"))
    if node["$"] == "numpy.str_" and isinstance(value, str):
        return np.str_(value)
    if node["$"] == "numpy.bytes_" and isinstance(value, bytes):
        return np.bytes_(value)
    raise FormatError("state.json has an invalid NumPy string")


def _decode_numpy(node: Node) -> object:
    name = get_field(node, "dtype", str)
    dtype, element = parse_numpy_dtype(name), get_numpy_element(name)
    if "value" not in node:
        if not element.size_bytes:
            raise FormatError("state.json has a NumPy scalar without bytes")
        return np.frombuffer(_get_bits(node, element.size_bytes), dtype)[0]
    shown = get_field(node, "value", (bool, int, float))
    if dtype.kind not in "biuf":
        raise FormatError(f"state.json has an invalid {name}")
    try:
        with np.errstate(all="ignore"):
            return np.array(shown, dtype)[()]
    except (TypeError, ValueError, OverflowError):
        raise FormatError(f"state.json has an invalid {name}") from None


_DECODERS: dict[str, Callable[[Node], object]] = {
    "int": _decode_int,
    "float": lambda node: struct.unpack(">d", _get_bits(node, 8))[0],
    "complex": _decode_complex,
    "str": _decode_str,
    "bytes": _get_base64,
    "bytearray": lambda node: bytearray(_get_base64(node)),
    "range": _decode_span,
    "slice": _decode_span,
    "numpy": _decode_numpy,
    "numpy.str_": _decode_numpy_text,
    "numpy.bytes_": _decode_numpy_text,
    "numpy.dtype": lambda node: parse_numpy_dtype(get_field(node, "name", str)),
}
_TORCH_DECODERS: dict[str, Callable[[Node, PlainScalars], object]] = {
    "torch.Size": lambda node, scalars: scalars.size(get_dims(node, "items")),
    "torch.dtype": lambda node, scalars: scalars.dtype(get_field(node, "name", str)),
    "torch.device": lambda node, scalars: scalars.device(
        get_field(node, "type", str), get_field(node, "index", (int, type(None)))
    ),
}
_FIELDS = {
    "int": ("hex",),
    "float": ("value", "bits"),
    "complex": ("real", "imag"),
    **dict.fromkeys(("str", "bytes", "bytearray"), ("base64",)),
    **dict.fromkeys(("range", "slice"), ("start", "stop", "step")),
    "numpy": ("dtype", "value", "bits"),
    **dict.fromkeys(("numpy.str_", "numpy.bytes_"), ("value",)),
    "torch.Size": ("items",),
    **dict.fromkeys(("numpy.dtype", "torch.dtype"), ("name",)),
    "torch.device": ("type", "index"),
}

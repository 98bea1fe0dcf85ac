"""JSON → values without elements: the way back of ``state_scalars``, from hostile text.

Nothing is looked up by name but in closed tables. torch's own scalars come through an object that
is loaded when the first one is met; without torch they become plain values.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mvc.errors import FormatError
from mvc.states.elements import get_numpy_element, parse_numpy_dtype
from mvc.states.nodes import check_fields, get_dims, get_field

if TYPE_CHECKING:
    from collections.abc import Callable

    from mvc.states.json_text import JsonValue
    from mvc.states.nodes import Node

_HEX_INT = re.compile(r"-?0x[0-9a-f]+")


class TorchScalars(Protocol):
    """How torch's scalars come back; without torch as plain values."""

    def size(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        """Return a torch.Size."""
        ...

    def dtype(self, name: str) -> object:
        """Return a torch.dtype."""
        ...

    def device(self, kind: str, index: int | None) -> object:
        """Return a torch.device."""
        ...


class PlainScalars:
    """torch's scalars for who has no torch: a tuple and the strings torch would print."""

    def size(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        """Return the dimensions."""
        return dims

    def dtype(self, name: str) -> object:
        """Return ``torch.float32`` as a string."""
        return f"torch.{name}"

    def device(self, kind: str, index: int | None) -> object:
        """Return ``cuda:0`` as a string."""
        return kind if index is None else f"{kind}:{index}"


def decode_scalar(node: JsonValue) -> object:
    """Return the scalar of a JSON value; torch's own are not among them.

    Raises:
        FormatError: not a scalar, or fields that no encoder writes.
    """
    if not isinstance(node, (dict, list)):
        return node
    decode = _DECODERS.get(str(node.get("$"))) if isinstance(node, dict) else None
    if decode is None or not isinstance(node, dict):
        raise FormatError("state.json has something else where a plain value belongs")
    return decode(node)


def find_torch_scalar(node: Node, load: Callable[[], TorchScalars]) -> object | None:
    """Return torch's scalar of a tagged object, or None where it is none.

    Raises:
        FormatError: fields that no encoder writes.
    """
    decode = _TORCH_DECODERS.get(str(node.get("$")))
    return None if decode is None else decode(node, load())


def is_scalar_tag(tag: object) -> bool:
    """Tell whether a tagged object is a scalar."""
    return isinstance(tag, str) and tag in _DECODERS


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
    check_fields(node, "hex")
    text = get_field(node, "hex", str)
    if not _HEX_INT.fullmatch(text):
        raise FormatError("state.json has an integer that is not hexadecimal")
    return int(text, 16)


def _decode_float(node: Node) -> float:
    check_fields(node, "value", "bits")
    value: float = struct.unpack(">d", _get_bits(node, 8))[0]
    return value


def _decode_complex(node: Node) -> complex:
    check_fields(node, "real", "imag")
    parts: list[Any] = [decode_scalar(node.get(name)) for name in ("real", "imag")]
    if any(type(part) is not float for part in parts):
        raise FormatError("state.json has a complex number whose parts are not floats")
    return complex(parts[0], parts[1])


def _decode_str(node: Node) -> str:
    check_fields(node, "base64")
    try:
        return _get_base64(node).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise FormatError("state.json has a string that is not UTF-8") from None


def _decode_bytes(node: Node) -> bytes | bytearray:
    check_fields(node, "base64")
    data = _get_base64(node)
    return data if node["$"] == "bytes" else bytearray(data)


def _decode_span(node: Node) -> range | slice:
    check_fields(node, "start", "stop", "step")
    parts: list[Any] = [decode_scalar(node.get(name)) for name in ("start", "stop", "step")]
    if node["$"] == "slice":
        return slice(*parts)
    if any(type(part) is not int for part in parts) or not parts[2]:
        raise FormatError("state.json has a range whose parts are not integers")
    return range(*parts)


def _decode_numpy_text(node: Node) -> object:
    check_fields(node, "value")
    value = decode_scalar(node.get("value"))
    if node["$"] == "numpy.str_" and isinstance(value, str):
        return np.str_(value)
    if node["$"] == "numpy.bytes_" and isinstance(value, bytes):
        return np.bytes_(value)
    raise FormatError("state.json has a NumPy string that is none")


def _decode_numpy(node: Node) -> object:
    check_fields(node, "dtype", "value", "bits")
    name = get_field(node, "dtype", str)
    dtype, element = parse_numpy_dtype(name), get_numpy_element(name)
    if "value" not in node:
        if not element.size_bytes:
            raise FormatError("state.json has a NumPy scalar without bytes")
        return np.frombuffer(_get_bits(node, element.size_bytes), dtype)[0]
    shown = get_field(node, "value", (bool, int, float))
    if dtype.kind not in "biuf":
        raise FormatError(f"state.json has a {name} that is none")
    try:
        with np.errstate(all="ignore"):
            return np.array(shown, dtype)[()]
    except (TypeError, ValueError, OverflowError):
        raise FormatError(f"state.json has a {name} that is none") from None


def _decode_dtype(node: Node) -> object:
    check_fields(node, "name")
    return parse_numpy_dtype(get_field(node, "name", str))


def _decode_torch_size(node: Node, scalars: TorchScalars) -> object:
    check_fields(node, "items")
    return scalars.size(get_dims(node, "items"))


def _decode_torch_dtype(node: Node, scalars: TorchScalars) -> object:
    check_fields(node, "name")
    return scalars.dtype(get_field(node, "name", str))


def _decode_torch_device(node: Node, scalars: TorchScalars) -> object:
    check_fields(node, "type", "index")
    index = get_field(node, "index", (int, type(None)))
    return scalars.device(get_field(node, "type", str), index)


_DECODERS: dict[str, Callable[[Node], object]] = {
    "int": _decode_int,
    "float": _decode_float,
    "complex": _decode_complex,
    "str": _decode_str,
    "bytes": _decode_bytes,
    "bytearray": _decode_bytes,
    "range": _decode_span,
    "slice": _decode_span,
    "numpy": _decode_numpy,
    "numpy.str_": _decode_numpy_text,
    "numpy.bytes_": _decode_numpy_text,
    "numpy.dtype": _decode_dtype,
}
_TORCH_DECODERS: dict[str, Callable[[Node, TorchScalars], object]] = {
    "torch.Size": _decode_torch_size,
    "torch.dtype": _decode_torch_dtype,
    "torch.device": _decode_torch_device,
}

"""Writes pickles of plain data, and of the objects that files of PyTorch consist of.

Protocol 2, as ``torch.save`` writes; nothing is shared but the names of classes and functions, so
what is written is a tree.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from mvc.checkpoints.torch_pickle.values import Global, Pairs
from mvc.errors import UnsupportedError

MAX_DEPTH = 100
"""Containers inside containers."""
_TUPLES = {0: b")", 1: b"\x85", 2: b"\x86", 3: b"\x87"}
_CONSTANTS = {None: b"N", True: b"\x88", False: b"\x89"}


@dataclass(frozen=True, slots=True)
class PickledCall:
    """What a function makes of arguments."""

    function: str
    args: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Instance:
    """An object of a class, made without a call of ``__init__``, and its state."""

    name: str
    state: object


@dataclass(frozen=True, slots=True)
class Persistent:
    """What is outside of the pickle, by its id."""

    id: object


def encode_pickle(value: object) -> bytes:
    """Return the pickle of a value; UnsupportedError if something in it is not plain data."""
    encoder = _Encoder()
    encoder.put(value, 0)
    return b"\x80\x02" + encoder.data + b"."


class _Encoder:
    def __init__(self) -> None:
        self.data = bytearray()
        self._globals: dict[str, int] = {}

    def put(self, value: object, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise UnsupportedError(f"it is deeper than {MAX_DEPTH} containers")
        # By exact type: what a subclass adds would be lost.
        kind = type(value)
        if value is None or kind is bool:
            self.data += _CONSTANTS[value]  # type: ignore[index]
        elif isinstance(value, int) and kind is int:
            self.data += _encode_int(value)
        elif kind is float:
            self.data += struct.pack(">cd", b"G", value)
        elif isinstance(value, str) and kind is str:
            raw = value.encode("utf-8", "surrogatepass")
            self.data += struct.pack("<cI", b"X", len(raw)) + raw
        elif isinstance(value, Global):
            self._put_global(value.path)
        else:
            self._put_holder(value, depth + 1)

    def _put_holder(self, value: object, depth: int) -> None:
        match value:
            case bytes():  # protocol 2 has none
                self._put_call("_codecs.encode", (value.decode("latin-1"), "latin1"), b"R", depth)
            case dict() if type(value) is dict:
                self.data += b"}("
                self._put_all((inner for pair in value.items() for inner in pair), depth)
                self.data += b"u"
            case Pairs():
                self.data += b"}("
                self._put_all(value, depth)
                self.data += b"u"
            case list() if type(value) is list:
                self.data += b"]("
                self._put_all(value, depth)
                self.data += b"e"
            case tuple() if type(value) is tuple:
                self.data += b"" if len(value) in _TUPLES else b"("
                self._put_all(value, depth)
                self.data += _TUPLES.get(len(value), b"t")
            case PickledCall(function, args):
                self._put_call(function, args, b"R", depth)
            case Instance(name, state):
                self._put_call(name, (), b"\x81", depth)
                self.put(state, depth)
                self.data += b"b"
            case Persistent(id=inner):
                self.put(inner, depth)
                self.data += b"Q"
            case _:
                raise UnsupportedError(f"{type(value).__name__} is not plain data")

    def _put_all(self, values: Iterable[object], depth: int) -> None:
        for value in values:
            self.put(value, depth)

    def _put_call(self, function: str, args: tuple[object, ...], opcode: bytes, depth: int) -> None:
        self._put_global(function)
        self.put(args, depth)
        self.data += opcode

    def _put_global(self, path: str) -> None:
        number = self._globals.get(path)
        if number is not None:
            self.data += struct.pack("<cI", b"j", number)
            return
        module, _, name = path.rpartition(".")
        number = self._globals[path] = len(self._globals)
        self.data += f"c{module}\n{name}\n".encode() + struct.pack("<cI", b"r", number)


def _encode_int(value: int) -> bytes:
    if 0 <= value <= 0xFF:  # noqa: PLR2004  one byte
        return struct.pack("<cB", b"K", value)
    if -(2**31) <= value < 2**31:
        return struct.pack("<ci", b"J", value)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    if len(raw) > 0xFF:  # noqa: PLR2004  as above
        raise UnsupportedError("an integer has more than 2,000 bits")
    return struct.pack("<cB", b"\x8a", len(raw)) + raw

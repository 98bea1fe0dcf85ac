"""What a pickle's bytes can turn into here: values that hold other values and can do nothing.

A decoded pickle holds only the classes below, None, bool, int, float, str, bytes, tuple and list.
Sets become lists, and mappings become ``Pairs``: no key from a file is ever hashed or compared,
so keys chosen to collide cost nothing.

``LITERALS`` maps the opcodes that carry their own value (numbers, strings, bytes, constants) to
pure functions (data, position after the opcode) → (value, position after the value). A value that
claims to be longer than the data leaves its position past the end, where the machine finds no
further opcode and refuses the pickle: a slice never reads or allocates more than there is, so
nothing needs to be compared before. What is longer than ``MAX_KEPT_BYTES`` is stepped over: no name
is that long.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.checkpoints.limits import MAX_NAME_BYTES

if TYPE_CHECKING:
    Literal = Callable[[bytes, int], tuple[object, int]]

MAX_KEPT_BYTES = MAX_NAME_BYTES
"""Longest string or bytes kept as a value."""
_MAX_INT_BYTES = 16


@dataclass(frozen=True, slots=True)
class Global:
    """The dotted name of a class or function; never looked up."""

    path: str


class Pairs(list[object]):
    """A mapping as a flat list: key, value, key, value; a key may come twice."""

    __slots__ = ()

    def items_in_order(self) -> Iterator[tuple[object, object]]:
        """Yield (key, value) as the pickle set them."""
        values = iter(self)
        return zip(values, values, strict=False)


@dataclass(slots=True, eq=False)
class Opaque:
    """An object that is never built: what it would be made of, kept so that it can be searched.

    It is a call of ``maker``, then one of ``states`` per BUILD, ``members`` that were appended and
    ``pairs`` that were set by key.
    """

    maker: object
    args: object = None
    states: list[object] | None = None
    members: list[object] | None = None
    pairs: Pairs | None = None


class _Omitted:
    """A string, bytes or number too long to matter for naming."""

    __slots__ = ()


OMITTED = _Omitted()


def _constant(make: Callable[[], object]) -> Literal:
    return lambda _, position: (make(), position)


def _number(layout: str) -> Literal:
    unpack, size_bytes = struct.Struct(layout).unpack_from, struct.calcsize(layout)
    return lambda data, position: (unpack(data, position)[0], position + size_bytes)


def _sized(length_bytes: int, decode: Callable[[bytes], object]) -> Literal:
    """Parse a value that has its length (little-endian, unsigned) before it."""

    def parse(data: bytes, position: int) -> tuple[object, int]:
        start = position + length_bytes
        end = start + int.from_bytes(data[position:start], "little")
        if end - start > MAX_KEPT_BYTES:
            return OMITTED, end
        return decode(data[start:end]), end

    return parse


def _decode_text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


def _decode_latin1(raw: bytes) -> str:
    return raw.decode("latin-1")


def _decode_long(raw: bytes) -> object:
    return OMITTED if len(raw) > _MAX_INT_BYTES else int.from_bytes(raw, "little", signed=True)


LITERALS: dict[int, Literal] = {
    ord("N"): _constant(lambda: None),
    0x88: _constant(lambda: True),
    0x89: _constant(lambda: False),
    ord(")"): _constant(tuple),
    ord("]"): _constant(list),
    ord("}"): _constant(Pairs),
    0x8F: _constant(list),  # EMPTY_SET
    ord("K"): lambda data, position: (data[position], position + 1),
    ord("M"): _number("<H"),
    ord("J"): _number("<i"),
    ord("G"): _number(">d"),
    0x8A: _sized(1, _decode_long),
    0x8B: _sized(4, _decode_long),
    ord("X"): _sized(4, _decode_text),
    0x8C: _sized(1, _decode_text),
    0x8D: _sized(8, _decode_text),
    ord("U"): _sized(1, _decode_latin1),
    ord("T"): _sized(4, _decode_latin1),
    ord("C"): _sized(1, bytes),
    ord("B"): _sized(4, bytes),
    0x8E: _sized(8, bytes),
    0x96: _sized(8, bytes),  # BYTEARRAY8
}

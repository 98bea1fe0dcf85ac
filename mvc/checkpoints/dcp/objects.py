"""Objects in DCP folders that are plain data: numbers, text, bytes, and lists, tuples and dicts of them.

What else a pickle makes is refused, also a set, which would come out as a list.
"""

from __future__ import annotations

from mvc.checkpoints.torch_pickle.encode import MAX_DEPTH
from mvc.checkpoints.torch_pickle.unpickler import unpickle
from mvc.checkpoints.torch_pickle.values import Global, Pairs
from mvc.checkpoints.torch_zip import read_pickle
from mvc.checkpoints.zip_directory import parse_zip_directory
from mvc.errors import FormatError, UnsupportedError
from mvc.sources import MemorySource

MAX_OBJECT_BYTES = 2**20
"""Longest object that is looked into."""
_MAX_VALUES = 100_000
_MAX_OTHER_KEYS = 5000
_KEYS = (str, int, float, bool, bytes, type(None))
_BEGIN = b"\x80\x02"  # protocol 2 has no opcode of its own for a set


def parse_object(data: bytes) -> object:
    """Return the value of an item; UnsupportedError if it is not plain data."""
    if len(data) > MAX_OBJECT_BYTES:
        raise UnsupportedError("it is too long")
    source = MemorySource(data)
    try:
        pickled = read_pickle(source, parse_zip_directory(source))
        if not pickled.startswith(_BEGIN):
            raise UnsupportedError("it is of another protocol")
        return _Reader().read(unpickle(pickled, _reduce, lambda _: None), 0)
    except FormatError as error:
        raise UnsupportedError("it is not plain data") from error


def _reduce(callee: Global, args: object) -> object | None:
    match callee.path, args:
        case "collections.OrderedDict", ():
            return Pairs()
        case "_codecs.encode", (str(text), "latin1"):
            return text.encode("latin-1")
        case _:
            return None


class _Reader:
    """Copies inert values; what is shared is copied each time, so their number is bounded."""

    def __init__(self) -> None:
        self._left = _MAX_VALUES

    def read(self, value: object, depth: int) -> object:
        self._left -= 1
        if depth > MAX_DEPTH or self._left < 0:
            raise UnsupportedError("it is too deep or too long")
        match value:
            case None | bool() | int() | float() | str() | bytes():
                return value
            case Pairs():
                items = [
                    (key, self.read(inner, depth + 1)) for key, inner in value.items_in_order()
                ]
                texts = sum(isinstance(key, str) for key, _ in items)
                others = len(items) - texts  # files choose how numbers collide
                if others <= _MAX_OTHER_KEYS and all(isinstance(key, _KEYS) for key, _ in items):
                    return dict(items)
            case list():
                return [self.read(inner, depth + 1) for inner in value]
            case tuple():
                return tuple(self.read(inner, depth + 1) for inner in value)
        raise UnsupportedError("it is not plain data")

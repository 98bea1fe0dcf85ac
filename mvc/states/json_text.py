"""The text of ``state.json``: canonical to write, suspicious to read.

Written text depends on the value alone: UTF-8, a line a piece where a piece does not fit on one,
so that ``git diff`` shows what changed. The order of an object's keys is the order of the live
mapping and part of the value.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeAlias

from mvc.errors import FormatError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

JsonValue: TypeAlias = (
    "bool | int | float | str | Sequence[JsonValue] | dict[str, JsonValue] | Kept | None"
)

MAX_TEXT_BYTES = 256 * 2**20
"""A list of that many numbers belongs into an array."""
MAX_VALUES = 2**24
"""Values in one state, counted by their separators before anything is built."""
_LINE_CHARS = 160
_HINT = "keep long lists of numbers as arrays"
_SCALARS = {int, float, bool, str, type(None)}
_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class Kept:
    """A node whose text is kept from one rendering to the next.

    It stands for its node everywhere in a value to be written. The node must not change any more
    once it was rendered.

    Attributes:
        node: an object, or a list that holds more than scalars.
    """

    __slots__ = ("_text", "node")

    def __init__(self, node: JsonValue) -> None:
        self.node = node
        self._text: tuple[str, str] | None = None

    def render(self, newline: str) -> str:
        """Return the text, as ``_render`` does for the node."""
        if self._text is None or self._text[0] != newline:
            self._text = (newline, _render(self.node, newline))
        return self._text[1]


def keep_text(node: JsonValue) -> JsonValue:
    """Return what stands for a node and keeps its text, or the node where that is no gain."""
    return node if _is_flat(node) or isinstance(node, Kept) else Kept(node)


def encode_text(value: JsonValue) -> bytes:
    """Return the canonical text of a JSON value.

    Raises:
        UnsupportedError: more or longer than ``parse_text`` would accept.
    """
    text = (_render(value, "\n") + "\n").encode("utf-8")
    problem = _find_excess(text)
    if problem:
        raise UnsupportedError(f"the state {problem}", hint=_HINT)
    return text


def _render(value: JsonValue, newline: str) -> str:
    """Return the text of a value whose lines after the first begin with ``newline``."""
    if not isinstance(value, (list, dict)) or not value:
        return value.render(newline) if isinstance(value, Kept) else _dump(value)
    if isinstance(value, list):
        if _SCALARS.issuperset(map(type, value)):
            return _dump(value)
    elif all(map(_is_flat, value.values())):
        text = _dump(value)
        if len(text) <= _LINE_CHARS:
            return text
    inner = newline + " "
    if isinstance(value, list):
        parts = [_render(item, inner) for item in value]
        left, right = "[", "]"
    else:
        parts = [f"{_dump(key)}: {_render(item, inner)}" for key, item in value.items()]
        left, right = "{", "}"
    if sum(map(len, parts)) <= _LINE_CHARS and not any("\n" in part for part in parts):
        return f"{left}{', '.join(parts)}{right}"
    return f"{left}{inner}{f',{inner}'.join(parts)}{newline}{right}"


def _is_flat(value: JsonValue) -> bool:
    return type(value) in _SCALARS or (
        isinstance(value, list) and _SCALARS.issuperset(map(type, value))
    )


def _find_excess(text: bytes) -> str | None:
    if len(text) > MAX_TEXT_BYTES:
        return f"takes {len(text):,} bytes of text, the limit is {MAX_TEXT_BYTES:,}"
    values = sum(text.count(mark) for mark in (b",", b"[", b"{"))
    if values > MAX_VALUES:
        return f"has {values:,} values, the limit is {MAX_VALUES:,}"
    return None


def parse_text(text: bytes) -> JsonValue:
    """Return the value of a JSON text.

    Raises:
        FormatError: not JSON, not UTF-8, a key twice in one object, nested too deeply, or past
            the limits (checked before the text is parsed).
    """
    problem = _find_excess(text)
    if problem:
        raise FormatError(f"state.json {problem}")
    try:
        value: JsonValue = json.loads(
            text.decode("utf-8"), object_pairs_hook=_build_object, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise FormatError("state.json is nested too deeply") from None
    except ValueError as error:
        raise FormatError(f"state.json is not JSON: {error}") from None
    return value


def _build_object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("an object has the same key twice")
    return value


def _refuse_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is no JSON number")

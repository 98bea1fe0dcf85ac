"""``state.json``: its text, its outermost object, and the fields of the objects in it.

The text depends on the value alone: UTF-8, one line for each piece that does not fit on one, so that
``git diff`` shows what changed. The order of an object's keys is the order of the live mapping, and
part of the value. Text is read with suspicion: limits first, then types, then fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mvc.errors import FormatError, UnsupportedError

JsonValue: TypeAlias = (
    "bool | int | float | str | Sequence[JsonValue] | dict[str, JsonValue] | KeptNode | None"
)
Node: TypeAlias = dict[str, Any]
"""A JSON object whose key ``$`` says what it is."""

PART = "part"
"""Field of an array whose file holds just a box of it: only in an image of what one rank has."""
STATE_FILE = "state.json"
"""Name of the file with structure and scalars."""
TENSOR_SUFFIX = ".safetensors"
MAX_TEXT_BYTES = 256 * 2**20
"""A list of this many numbers belongs in an array."""
MAX_VALUES = 2**24
"""Values in one state, counted by their separators before anything is built."""
LONG_LIST_HINT = "keep long lists of numbers as arrays"
SCALARS = frozenset({int, float, bool, str, type(None)})
"""Types that JSON has itself."""
_FORMAT = "mvc-state"
_VERSION = 2
"""Since 2 there may be ``folders``; a document without them is of version 1."""
_FIELDS = {"format", "version", "files", "shared", "state", "folders"}
_LINE_CHARS = 160
_START = re.compile(rb'\{\n "format": "mvc-state",\n "version": [12],\n')
_AFTER_ENTRY = re.compile(rb',\n  "|\n \}')
_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class KeptNode:
    """A node that keeps its text from one rendering to the next, in place of the node itself.

    The node must not change once it has been rendered.
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
    """Return a node that keeps its text, or the node itself if it is too small to gain from that."""
    return node if _is_flat(node) or isinstance(node, KeptNode) else KeptNode(node)


def encode_text(value: JsonValue) -> bytes:
    """Return the canonical text of a JSON value; UnsupportedError if ``parse_text`` would refuse it."""
    text = (_render(value, "\n") + "\n").encode("utf-8")
    problem = _find_excess(text)
    if problem:
        raise UnsupportedError(f"the state {problem}", hint=LONG_LIST_HINT)
    return text


def _render(value: JsonValue, newline: str) -> str:
    """Return the text of a value whose lines after the first begin with ``newline``."""
    if not isinstance(value, (list, dict)) or not value:
        return value.render(newline) if isinstance(value, KeptNode) else _dump(value)
    if isinstance(value, list):
        if SCALARS.issuperset(map(type, value)):
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
    return type(value) in SCALARS or (
        isinstance(value, list) and SCALARS.issuperset(map(type, value))
    )


def _find_excess(text: bytes) -> str | None:
    if len(text) > MAX_TEXT_BYTES:
        return f"takes {len(text):,} bytes of text, the limit is {MAX_TEXT_BYTES:,}"
    values = sum(text.count(mark) for mark in (b",", b"[", b"{"))
    if values > MAX_VALUES:
        return f"has {values:,} values, the limit is {MAX_VALUES:,}"
    return None


def parse_text(text: bytes) -> JsonValue:
    """Return the value of a JSON text; FormatError also for a key that is twice in one object.

    The limits are checked before the text is parsed.
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
    raise ValueError(f"{name} is not a JSON number")


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a ``state.json``: files with arrays, shared storages, the state itself.

    ``state`` is an object; in a text yet to be written, ``KeptNode`` may take its place. All files in
    ``folders`` belong to the state too: they hold what single ranks of a run have of their own.
    """

    files: tuple[str, ...]
    shared: tuple[Node, ...]
    state: JsonValue
    folders: tuple[str, ...] = ()


def encode_document(document: Document) -> bytes:
    """Return the canonical text; UnsupportedError if it would be past the limits."""
    version = _VERSION if document.folders else 1
    value: dict[str, JsonValue] = {"format": _FORMAT, "version": version}
    value["files"] = list(document.files)
    if document.folders:
        value["folders"] = list(document.folders)
    if document.shared:
        value["shared"] = list(document.shared)
    value["state"] = document.state
    return encode_text(value)


def parse_document(text: bytes) -> Document:
    """Return the content of a text; the nodes in it are not checked here."""
    value: Any = parse_text(text)
    if not isinstance(value, dict) or value.get("format") != _FORMAT:
        raise FormatError("state.json is not the state of a training run")
    _check_version(value.get("version"))
    value.setdefault("shared", [])
    value.setdefault("folders", [])
    if value.keys() != _FIELDS:
        raise FormatError("state.json does not have the fields of a state")
    files, shared, state = value["files"], value["shared"], value["state"]
    if not isinstance(state, dict):
        raise FormatError("state.json does not hold a dict")
    folders = value["folders"]
    for names, what in ((files, "files"), (folders, "folders")):
        if not isinstance(names, list) or not all(
            isinstance(name, str) and name and "/" not in name for name in names
        ):
            raise FormatError(f"state.json has an invalid list of {what}")
    if not all(name.endswith(TENSOR_SUFFIX) for name in files):
        raise FormatError("state.json has an invalid list of files")
    if not isinstance(shared, list) or not all(
        isinstance(node, dict) and node.get("$") in ("tensor", "ndarray") for node in shared
    ):
        raise FormatError("state.json has an invalid table of shared storages")
    return Document(tuple(files), tuple(shared), state, tuple(folders))


def cut_entry(text: bytes, key: str) -> JsonValue:
    """Return the node of a key of the state without parsing the rest of the text.

    None if it cannot be cut out: the text is not laid out as ``encode_document`` does it, or the node
    may refer to the table of shared storages. Then ``parse_document`` says what it is.
    """
    mark = f"\n  {_dump(key)}: ".encode()
    start = text.find(mark) + len(mark)
    end = _AFTER_ENTRY.search(text, start)
    if start < len(mark) or mark in text[start:] or end is None or not _START.match(text):
        return None
    cut = text[start : end.start()]
    try:
        return None if b'"shared"' in cut else parse_text(cut)
    except FormatError:
        return None


def _check_version(version: object) -> None:
    if type(version) is not int or version < 1:
        raise FormatError("state.json has no version")
    if version > _VERSION:
        raise UnsupportedError(
            f"state.json has version {version}, this mvc reads up to {_VERSION}",
            hint="install a newer mvc",
        )


def get_field(node: Node, name: str, kind: type | tuple[type, ...]) -> Any:
    """Return a field of a tagged object; FormatError if it is missing, or of another type."""
    value = node.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise FormatError(f"state.json has a {_tag(node)} with no valid {name!r}")
    return value


def check_fields(node: Node, *names: str) -> None:
    """Raise FormatError if a tagged object has any other field than these."""
    for name in node:
        if name != "$" and name not in names:
            raise FormatError(f"state.json has a {_tag(node)} with the unknown field {name[:40]!r}")


def _tag(node: Node) -> str:
    return repr(str(node.get("$"))[:40])


def get_dims(node: Node, name: str) -> tuple[int, ...]:
    """Return a list of 64-bit integers as a tuple; anything else is a FormatError."""
    dims = get_field(node, name, list)
    if any(type(dim) is not int or not -(2**63) <= dim < 2**63 for dim in dims):
        raise FormatError(f"state.json has a {name!r} that is not a list of integers")
    return tuple(dims)

"""JSON nodes → the nested state they were, in two walks of the same code.

The first walk checks everything, allocates the arrays (or finds them in live containers) and lists
what has to be read. The second one, after the reads, builds the containers. Live containers only
lend their arrays: the result has the stored structure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mvc.errors import ConflictError, FormatError
from mvc.states.containers import MAX_DEPTH, SPARSE_PARTS, OpenNode, build_container, open_node
from mvc.states.document import SCALARS, JsonValue, Node, check_fields, get_dims, get_field
from mvc.states.refusals import Attribute, format_path
from mvc.states.scalars import decode_scalar, is_scalar_tag

if TYPE_CHECKING:
    from mvc.states.reads import ReadTable

ABSENT: Final = object()
"""In place of a live value if there is none."""
_SETS = ("set", "frozenset")
BLOBS = ("bytes", "bytearray")


@dataclass(slots=True)
class DecodeWalk:
    """One walk over the nodes of a state."""

    table: ReadTable
    is_first: bool  # whether this walk adds arrays to the table; else it takes them from there
    steps: list[object] = field(default_factory=list)

    def decode_state(self, node: JsonValue, live: object = ABSENT) -> dict[Any, Any]:
        """Return the whole state, given the outermost node."""
        try:
            value = self.decode(node, live)
        except RecursionError:
            raise FormatError("state.json is nested too deeply") from None
        if not isinstance(value, dict):
            raise FormatError("state.json does not hold a dict")
        return value

    def decode(self, node: JsonValue, live: object = ABSENT) -> Any:
        """Return the value of a node; ``live`` is the live value at its place, or ABSENT."""
        if len(self.steps) > MAX_DEPTH + 1:
            raise FormatError(f"{format_path(self.steps[:3])}... is nested too deeply")
        if not isinstance(node, (list, dict)):
            return self._take_scalar(node, live)
        held = open_node(node, self.steps)
        if held is None:
            assert isinstance(node, dict)
            return self._decode_tagged(node, live)
        if held.kind in SPARSE_PARTS:
            return self._decode_sparse(node, held, live)
        return self._decode_container(held, live)

    def _decode_tagged(self, node: Node, live: object) -> object:
        tag = node["$"]
        if tag in ("tensor", "ndarray") or (tag in BLOBS and "in" in node):
            return self._decode_array(node, live)
        if tag in _SETS:
            check_fields(node, "items")
            return self._take_scalar(self._decode_members(node), live)
        if not isinstance(tag, str) or not is_scalar_tag(tag):
            raise FormatError(f"{format_path(self.steps)} is of the unknown kind {str(tag)[:40]!r}")
        return self._take_scalar(decode_scalar(node, self.table.load_factory), live)

    def _take_scalar(self, value: object, live: object) -> object:
        if live is not ABSENT and (isinstance(live, (Mapping, list, tuple)) or _is_array(live)):
            raise self._conflict(live, type(value).__name__)
        return value

    def _conflict(self, live: object, stored: str) -> ConflictError:
        what = f"{format_path(self.steps)} is of type {type(live).__name__}"
        return ConflictError(f"{what}, the stored value of type {stored}")

    def _decode_container(self, held: OpenNode, live: object) -> object:
        nodes: list[Any] = [node for _, node in held.items]
        is_alone = live is ABSENT or live is None
        keys: list[Any]
        if held.is_sequence:
            keys = list(range(len(nodes)))
            # Scalars stand for themselves; only the check of the depth could object to them.
            if is_alone and len(self.steps) <= MAX_DEPTH and SCALARS.issuperset(map(type, nodes)):
                return build_container(held.kind, held.facts, keys, nodes)
        else:
            keys = [key if isinstance(key, str) else self.decode_key(key) for key, _ in held.items]
            if isinstance(held.items, list):  # pairs; the parser saw to the keys of objects
                _make_set(frozenset, [key for key in keys if type(key) is not Attribute])
        if is_alone:
            children = list(map(self._at, keys, nodes))
        else:
            find_live = _open_live(live, keys, self.steps, is_sequence=held.is_sequence)
            children = [self._at(*one, find_live(one[0])) for one in zip(keys, nodes, strict=True)]
        return build_container(held.kind, held.facts, keys, children)

    def _at(self, step: object, node: JsonValue, live: object = ABSENT) -> Any:
        self.steps.append(step)
        value = self.decode(node, live)
        self.steps.pop()
        return value

    def decode_key(self, node: JsonValue) -> object:
        """Return a value that a dict or set finds by its value."""
        if isinstance(node, dict) and node.get("$") in ("tuple", "frozenset"):
            check_fields(node, "items")
            return self._decode_members(node)
        if isinstance(node, list) or (isinstance(node, dict) and "in" in node):
            raise FormatError(f"{format_path(self.steps)} has a key that is a container")
        return decode_scalar(node, self.table.load_factory)

    def _decode_members(self, node: Node) -> object:
        members = [self.decode_key(item) for item in get_field(node, "items", list)]
        kinds = {"tuple": tuple, "set": set, "frozenset": frozenset}
        return _make_set(kinds[node["$"]], members)

    def _decode_array(self, node: Node, live: object) -> object:
        """Return a tensor, an array, or bytes that are in a file."""
        if not self.is_first:
            return self.table.get(node)
        if node["$"] in BLOBS:
            self._take_scalar(b"", live)
            self.table.add_blob(node)
            return None
        if isinstance(live, (Mapping, list, tuple)):
            raise self._conflict(live, node["$"])
        self.table.add(node, live, self.steps)
        if self.table.get(node) is not live and _is_array(live):
            raise self._conflict(live, node["$"])
        return None

    def _decode_sparse(self, node: Any, held: OpenNode, live: object) -> object:
        self._take_scalar(None, live)
        self.table.check_sparse()
        shape = get_dims(node, "shape")
        parts = [self._at(name, part) for name, part in held.items]
        if self.is_first:
            return None
        flags = {name: held.facts.get(name) is True for name in ("coalesced", "parameter", "grad")}
        return self.table.make_sparse(held.kind, shape, parts, **flags)


def _make_set(kind: Callable[[list[object]], Any], keys: list[object]) -> Any:
    """Return a set or tuple of keys, which in a set must each occur once."""
    try:
        value = kind(keys)
    except TypeError:
        raise FormatError("state.json has a key or set member that cannot be one") from None
    if len(value) != len(keys):
        raise FormatError("state.json has the same key or set member twice")
    return value


def _is_array(live: object) -> bool:
    return isinstance(live, np.ndarray) or hasattr(type(live), "untyped_storage")


def _open_live(
    live: object, keys: list[Any], steps: list[object], *, is_sequence: bool
) -> Callable[[Any], object]:
    """Return what finds the live value of a key, in a live container that fits the stored one."""
    what = f"{format_path(steps)} is of type {type(live).__name__}, the stored value a"
    if is_sequence:
        if not isinstance(live, (list, tuple, deque)):
            raise ConflictError(f"{what} sequence")
        items = live
        if len(items) > len(keys):
            raise ConflictError(
                f"{format_path(steps)} has {len(items)} items, the stored value {len(keys)}"
            )
        return lambda index: items[index] if index < len(items) else ABSENT
    if not isinstance(live, Mapping):
        raise ConflictError(f"{what} mapping")
    stored = {key for key in keys if type(key) is not Attribute}
    missing = [key for key in live if key not in stored]
    if missing:
        raise ConflictError(
            f"{format_path([*steps, missing[0]])} is not in the stored state",
            hint="pass only what the state holds",
        )
    return lambda key: ABSENT if type(key) is Attribute else live.get(key, ABSENT)

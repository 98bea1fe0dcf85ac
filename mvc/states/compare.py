"""Two descriptions of a state side by side: which values, types, keys and ties are not the same.

The nodes of ``state.json`` are compared, not the values they stand for: a node says all that a
value is, to the bit, so that NaNs with other payloads, a set in another order of insertion, or a
``defaultdict`` with another factory come out right. The numbers in arrays are not looked at here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mvc.states.document import parse_document
from mvc.states.json_text import encode_text
from mvc.states.outline import ArrayOutline, decode_outline
from mvc.states.refusals import Attribute, format_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mvc.states.document import Document
    from mvc.states.json_text import JsonValue
    from mvc.states.nodes import Node

Steps: TypeAlias = "tuple[object, ...]"

_ABSENT: Final = object()
_BRIEF = 60
_MORE = "..."
_MAPPINGS = ("dict", "OrderedDict", "Counter", "defaultdict")
_SEQUENCES = ("tuple", "deque")
_PARTS = ("indices", "compressed", "plain", "values")
_PLACE = ("in", "name")
_FLAGS = {
    "parameter": ("a Parameter", "no Parameter"),
    "grad": ("made to require a gradient", "made to require no gradient"),
}
_TIES = ("shared", "offset", "byte_strides")


@dataclass(frozen=True, slots=True)
class _Container:
    """A node that holds others.

    Attributes:
        kind: its tag; ``dict`` or ``list`` where JSON says it without one.
        facts: its fields that are no values of their own.
        items: canonical text of the key → the key and the node behind it, in order.
        is_sequence: whether keys are positions.
    """

    kind: str
    facts: dict[str, Any]
    items: dict[str, tuple[object, JsonValue]]
    is_sequence: bool = False


def compare_texts(stored: bytes, live: bytes) -> list[str]:
    """Return a line for every value that two descriptions of a state have otherwise.

    Arrays count as the same where kind, type, shape, strides and ties are.

    Raises:
        FormatError: not the text of a state.
        UnsupportedError: the text of a newer state.
    """
    if stored == live:
        return []
    old, new = parse_document(stored), parse_document(live)
    for document in (old, new):
        decode_outline(document)  # from here on every node is what its tag promises
    return list(_Comparison(old, new).compare(old.state, new.state, ()))


@dataclass(frozen=True, slots=True)
class _Comparison:
    stored: Document
    live: Document

    def compare(self, stored: JsonValue, live: JsonValue, steps: Steps) -> Iterator[str]:
        old, new = _open(stored, self.stored), _open(live, self.live)
        if old is None or new is None or old.kind != new.kind:
            yield from self._compare_leaves(stored, live, steps)
            return
        yield from _compare_facts(old.facts, new.facts, steps)
        if old.is_sequence and len(old.items) != len(new.items):
            yield (
                f"{format_path(steps)} has {len(new.items)} items, the commit has {len(old.items)}"
            )
            return
        for text, (key, node) in old.items.items():
            _, other = new.items.get(text, (key, _ABSENT))
            if other is _ABSENT:
                yield f"{format_path((*steps, key))} is missing"
            else:
                yield from self.compare(node, other, (*steps, key))  # type: ignore[arg-type]  # not ABSENT
        extra = [key for text, (key, _) in new.items.items() if text not in old.items]
        yield from (f"{format_path((*steps, key))} is extra" for key in extra)
        if [text for text in new.items if text in old.items] != [
            text for text in old.items if text in new.items
        ]:
            yield f"{format_path(steps)} has its keys in another order"

    def _compare_leaves(self, stored: JsonValue, live: JsonValue, steps: Steps) -> Iterator[str]:
        old, new = _facts_of(stored, self.stored), _facts_of(live, self.live)
        if repr(old) == repr(new):  # 1, 1.0 and True are equal to Python, and so are 0.0 and -0.0
            return
        seen, wanted = _brief(live, self.live), _brief(stored, self.stored)
        kinds = _kind(live), _kind(stored)
        if seen != wanted:
            yield f"{format_path(steps)} is {seen}, the commit has {wanted}"
        elif kinds[0] != kinds[1]:
            yield f"{format_path(steps)} is of type {kinds[0]}, the commit has {kinds[1]}"
        elif isinstance(old, dict) and isinstance(new, dict) and seen[-3:] != _MORE:
            yield from _compare_facts(old, new, steps)
        else:
            yield f"{format_path(steps)} is {seen}, the commit has another that begins so"


def _compare_facts(old: dict[str, Any], new: dict[str, Any], steps: Steps) -> Iterator[str]:
    """Yield what differs between the fields of two nodes of one kind."""
    where = format_path(steps)
    names = [name for name in {**old, **new} if repr(old.get(name)) != repr(new.get(name))]
    if any(name in _TIES for name in names):
        yield f"{where} shares its memory with other tensors than in the commit"
    for name in names:
        if name == "strides":
            yield f"{where} lies in memory in another order of its dimensions"
        elif name in _FLAGS:
            yield f"{where} is {_FLAGS[name][not new.get(name)]}, in the commit it is not"
        elif name not in _TIES:
            seen, wanted = (_cut(str(one.get(name))) for one in (new, old))
            yield f"{where} has the {name} {seen}, the commit has {wanted}"


def _open(node: JsonValue, document: Document) -> _Container | None:
    """Return what a container holds; None for anything else."""
    if isinstance(node, list):
        return _Container("list", {}, _number(node), is_sequence=True)
    if not isinstance(node, dict):
        return None
    return _open_tagged(node, document) if "$" in node else _Container("dict", {}, _name(node))


def _open_tagged(node: Node, document: Document) -> _Container | None:
    tag = node["$"]
    if tag in _SEQUENCES:
        return _Container(tag, _pick(node, "maxlen"), _number(node["items"]), is_sequence=True)
    if tag in _MAPPINGS:
        found = _name(node["items"], document)
        if "metadata" in node:
            found["metadata"] = (Attribute("_metadata"), node["metadata"])
        return _Container(tag, _pick(node, "factory"), found)
    if tag.startswith("sparse_"):
        found = {name: (Attribute(name), node[name]) for name in _PARTS if name in node}
        return _Container(tag, _pick(node, "shape", "coalesced", "parameter", "grad"), found)
    return None


def _pick(node: Node, *names: str) -> dict[str, Any]:
    return {name: node[name] for name in names if name in node}


def _number(nodes: Sequence[JsonValue]) -> dict[str, tuple[object, JsonValue]]:
    return {str(index): (index, node) for index, node in enumerate(nodes)}


def _name(items: Any, document: Document | None = None) -> dict[str, tuple[object, JsonValue]]:
    """Return the items of a mapping by the text of their keys, which no ``metadata`` can equal."""
    if isinstance(items, dict) or document is None:
        return {encode_text(key).decode(): (key, node) for key, node in items.items()}
    return {
        encode_text(key).decode(): (decode_outline(document, key, as_key=True), node)
        for key, node in items
    }


def _facts_of(node: JsonValue, document: Document) -> Any:
    """Return all that a leaf says, with the storage it shares in place of that one's number."""
    if not isinstance(node, dict):
        return node
    facts: Node = {key: value for key, value in sorted(node.items()) if key not in _PLACE}
    if "shared" in node:
        number: Any = node["shared"]
        is_there = type(number) is int and 0 <= number < len(document.shared)
        facts["shared"] = document.shared[number] if is_there else None
    return facts


def _brief(node: JsonValue, document: Document) -> str:
    value = decode_outline(document, node)
    try:
        return _cut(str(value) if isinstance(value, ArrayOutline) else repr(value))
    except ValueError:  # NumPy cannot show a date without a unit
        return f"a {_kind(node)}"


def _cut(text: str) -> str:
    return text if len(text) <= _BRIEF else f"{text[:_BRIEF]}{_MORE}"


def _kind(node: JsonValue) -> str:
    if isinstance(node, dict):
        return str(node.get("$", "dict"))
    return type(node).__name__

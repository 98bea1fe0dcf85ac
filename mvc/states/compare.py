"""Two descriptions of a state side by side: which values, types, keys and ties are not the same.

The nodes of ``state.json`` are compared, not the values they stand for: a node says all that a
value is, to the bit, so that NaNs with other payloads, a set in another order of insertion, or a
``defaultdict`` with another factory come out right. The numbers in arrays are not looked at here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mvc.states.containers import open_node
from mvc.states.document import encode_text, parse_document
from mvc.states.outline import ArrayOutline, decode_outline
from mvc.states.refusals import Attribute, format_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc.states.containers import OpenNode
    from mvc.states.document import Document, JsonValue, Node

Steps: TypeAlias = "tuple[object, ...]"

_ABSENT: Final = object()
_BRIEF = 60
_MORE = "..."
_PLACE = ("in", "name")
_FLAGS = {
    "parameter": ("a Parameter", "not a Parameter"),
    "grad": ("made to require a gradient", "made to require no gradient"),
}
_TIES = ("shared", "offset", "byte_strides")


def compare_texts(stored: bytes, live: bytes) -> list[str]:
    """Return a line for every value that differs between two descriptions of a state.

    Arrays count as the same if kind, type, shape, strides and ties are.
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
        old, new = open_node(stored, steps), open_node(live, steps)
        if old is None or new is None or old.kind != new.kind:
            yield from self._compare_leaves(stored, live, steps)
            return
        yield from _compare_facts(old.facts, new.facts, steps)
        if old.is_sequence and len(old.items) != len(new.items):
            yield (
                f"{format_path(steps)} has {len(new.items)} items, the commit has {len(old.items)}"
            )
            return
        ours, theirs = _name_items(new, self.live), _name_items(old, self.stored)
        for text, (key, node) in theirs.items():
            _, other = ours.get(text, (key, _ABSENT))
            if other is _ABSENT:
                yield f"{format_path((*steps, key))} is missing"
            else:
                yield from self.compare(node, other, (*steps, key))  # type: ignore[arg-type]  # not ABSENT
        extra = [key for text, (key, _) in ours.items() if text not in theirs]
        yield from (f"{format_path((*steps, key))} is extra" for key in extra)
        if [text for text in ours if text in theirs] != [text for text in theirs if text in ours]:
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


def _name_items(held: OpenNode, document: Document) -> dict[str, tuple[object, JsonValue]]:
    """Return key and node of a container's items, by the key's text.

    The text tells keys apart that are equal to Python, such as 1 and True; that of an attribute
    cannot be a key's, which has quotes or brackets or is a number.
    """
    if held.is_sequence:
        return {str(index): (index, node) for index, node in held.items}
    return {
        f".{key}" if type(key) is Attribute else encode_text(key).decode(): (
            key if isinstance(key, str) else decode_outline(document, key, as_key=True),
            node,
        )
        for key, node in held.items
    }


def _facts_of(node: JsonValue, document: Document) -> Any:
    """Return all that a leaf says; for the number of a shared storage, the storage itself."""
    if not isinstance(node, dict):
        return node
    facts: Node = {key: value for key, value in sorted(node.items()) if key not in _PLACE}
    if "shared" in node:
        number: Any = node["shared"]
        is_there = type(number) is int and 0 <= number < len(document.shared)
        facts["shared"] = document.shared[number] if is_there else None
    return facts


def _brief(node: JsonValue, document: Document) -> str:
    value = decode_outline(document, _without_counters(node))
    try:
        text = str(value) if isinstance(value, ArrayOutline) else repr(value)
    except ValueError:  # NumPy cannot show a date without a unit
        return f"a {_kind(node)}"
    return _cut(f"Counter({text})" if _kind(node) == "Counter" else text)


def _without_counters(node: JsonValue) -> JsonValue:
    """Return a node with dicts for Counters: their ``repr`` sorts by value, whatever that costs."""
    if isinstance(node, list):
        return list(map(_without_counters, node))
    if not isinstance(node, dict):
        return node
    shown = {key: _without_counters(item) for key, item in node.items()}
    return shown | {"$": "dict"} if node.get("$") == "Counter" else shown


def _cut(text: str) -> str:
    return text if len(text) <= _BRIEF else f"{text[:_BRIEF]}{_MORE}"


def _kind(node: JsonValue) -> str:
    if isinstance(node, dict):
        return str(node.get("$", "dict"))
    return type(node).__name__

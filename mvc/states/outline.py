"""What a state holds without the bytes of its arrays, and where two states differ.

An outline has the values of a state, with type and shape in place of every array. Two states are
compared by the nodes of ``state.json``, not by the values they stand for: a node says all that a
value is, to the bit, so that NaNs with other payloads, a set in another order of insertion, or a
``defaultdict`` with another factory come out right. The numbers in arrays are not looked at here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from mvc.errors import FormatError, UnsupportedError
from mvc.states.containers import OpenNode, open_node
from mvc.states.decode import ABSENT, BLOBS, DecodeWalk
from mvc.states.document import PART, encode_text, get_dims, get_field, parse_document
from mvc.states.elements import find_numpy_element
from mvc.states.factory import NumpyFactory
from mvc.states.reads import ReadTable, get_form, load_torch, measure_array
from mvc.states.refusals import Attribute, format_path

if TYPE_CHECKING:
    from mvc.states.document import Document, JsonValue, Node
    from mvc.states.reads import Factory


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


@dataclass(frozen=True, slots=True)
class ArrayOutline:
    """An array of a state without its values."""

    kind: str  # ``tensor``, ``array``, ``bytes`` or ``sparse``
    # spelled as in ``state.json``; ``uint8`` for bytes, that of the values for sparse
    dtype: str
    shape: tuple[int, ...]
    content: str | None = field(default=None, compare=False)  # the same for the same bytes

    def __str__(self) -> str:
        """Return it as messages name it: ``float32 [768, 3072]``."""
        return f"{self.dtype} {list(self.shape)}"

    @classmethod
    def of(cls, array: Any) -> ArrayOutline:
        """Return the outline of a live NumPy array or torch tensor."""
        if isinstance(array, np.ndarray):
            element = find_numpy_element(array.dtype)
            return cls("array", array.dtype.str if element is None else element.name, array.shape)
        kind = "tensor" if str(array.layout) == "torch.strided" else "sparse"
        return cls(kind, str(array.dtype).removeprefix("torch."), tuple(array.shape))


def outline_state(
    state_json: bytes, identify: Callable[[str, str], str] | None = None
) -> dict[Any, Any]:
    """Return a state with an ``ArrayOutline`` in place of every array; raises as ``parse_document``.

    ``identify`` returns what is the same for the same bytes, given file and name of a tensor.
    """
    document = parse_document(state_json)
    table = OutlineTable({}, (), _load_any)
    if identify is not None:
        table = _IdentityTable(identify)
    value: dict[Any, Any] = DecodeWalk(table, is_first=False).decode_state(document.state)
    return value


def decode_outline(document: Document, node: Any = ABSENT, *, as_key: bool = False) -> Any:
    """Return the value of a node, or of the whole state, with an ``ArrayOutline`` for every array."""
    walk = DecodeWalk(OutlineTable({}, (), _load_any), is_first=False)
    if as_key:
        return walk.decode_key(node)
    return walk.decode_state(document.state) if node is ABSENT else walk.decode(node)


def check_sizes(
    state_json: bytes, sizes: Mapping[str, Mapping[str, int]], *, is_local: bool = False
) -> None:
    """Check that files (file → tensor → bytes) hold all the arrays of a state; FormatError if not.

    With ``is_local`` they may hold parts of arrays, as those of one rank do.
    """
    document = parse_document(state_json)
    table = _SizeTable(sizes, (), _load_any, is_local)
    DecodeWalk(table, is_first=False).decode_state(document.state)
    for node in document.shared:
        table.get(node)


class OutlineTable(ReadTable):
    """Has an ``ArrayOutline`` for every node."""

    def get(self, node: Node) -> ArrayOutline:
        """Return the outline of a node."""
        if node["$"] in BLOBS:
            size = get_field(node, "size_bytes", int)
            outline = ArrayOutline("bytes", "uint8", (size,))
        else:
            _, shape = get_form(node)
            size = measure_array(node)
            kind = "tensor" if node["$"] == "tensor" else "array"
            outline = ArrayOutline(kind, get_field(node, "dtype", str), shape)
        self._note(node, size)
        return outline

    def _note(self, node: Node, size_bytes: int) -> None:
        """Do nothing: where the bytes are does not matter here."""

    def check_sparse(self) -> None:
        """Do nothing: an outline can say anything."""

    def make_sparse(
        self,
        tag: str,  # noqa: ARG002  as ReadTable has it
        shape: tuple[int, ...],
        parts: list[Any],
        **flags: bool,  # noqa: ARG002
    ) -> ArrayOutline:
        """Return the outline of a sparse tensor."""
        found = [part.content for part in parts]
        content = None if None in found else " ".join(found)
        return ArrayOutline("sparse", parts[-1].dtype, shape, content)


class _IdentityTable(OutlineTable):
    """Outlines that say whose bytes are the same, too."""

    def __init__(self, identify: Callable[[str, str], str]) -> None:
        super().__init__({}, (), _load_any)
        self._identify = identify

    def get(self, node: Node) -> ArrayOutline:
        file, name = (get_field(node, key, str) for key in _PLACE)
        return replace(super().get(node), content=self._identify(file, name))


class _SizeTable(OutlineTable):
    """Checks that files hold the bytes of every array."""

    def _note(self, node: Node, size_bytes: int) -> None:
        if PART in node and not self.takes_parts:
            raise FormatError("state.json has a part of a tensor, not the whole")
        self.check_held(node, size_bytes)


def _load_any() -> Factory:
    """Return what makes torch's scalars, or what stands for them without torch."""
    try:
        return load_torch()
    except UnsupportedError:
        return NumpyFactory()


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
            yield f"{where} has its dimensions in another order in memory"
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


@dataclass(frozen=True, slots=True)
class ArrayPlace:
    """Where an array is: a tensor of a file, whole, or elements of it at strides in bytes."""

    file: str
    name: str
    shape: tuple[int, ...]
    offset_bytes: int = 0
    byte_strides: tuple[int, ...] | None = None


def locate_arrays(state_json: bytes) -> dict[str, Any]:
    """Return the value of a state with an ``ArrayPlace`` for every array.

    What is not plain data stays an ``ArrayOutline`` or what stands for it without torch.
    """
    document = parse_document(state_json)
    table = _PlaceTable({}, document.shared, NumpyFactory)
    value = DecodeWalk(table, is_first=False).decode_state(document.state)
    return {str(key): one for key, one in value.items()}


class _PlaceTable(OutlineTable):
    def get(self, node: Node) -> Any:  # an array's place, or its outline
        if node["$"] in BLOBS or PART in node:
            return super().get(node)
        _, shape = get_form(node)
        if "offset" not in node:
            return ArrayPlace(get_field(node, "in", str), get_field(node, "name", str), shape)
        number = get_field(node, "shared", int)
        if not 0 <= number < len(self.shared):
            raise FormatError(f"state.json has no shared storage {number}")
        storage = self.shared[number]
        if "strides" in storage or storage.get("dtype") != node["dtype"]:
            return super().get(node)  # its elements are not words of the file
        file, name = get_field(storage, "in", str), get_field(storage, "name", str)
        offset, strides = get_field(node, "offset", int), get_dims(node, "byte_strides")
        return ArrayPlace(file, name, shape, offset, strides)

    def make_sparse(
        self,
        tag: str,  # noqa: ARG002  as ReadTable has it
        shape: tuple[int, ...],
        parts: list[Any],  # noqa: ARG002
        **flags: bool,  # noqa: ARG002
    ) -> ArrayOutline:
        return ArrayOutline("sparse", "", shape)

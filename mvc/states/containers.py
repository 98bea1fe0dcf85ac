"""The containers of a state: what each one holds, how ``state.json`` says it, how it is built again.

Every walk over a state meets containers in one of two forms, and takes both apart here: live ones
with ``open_value`` (encoding, recording, following), stored ones with ``open_node`` (decoding,
outlining, comparing). Sets are not among them: their members are found by value, as keys are.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from mvc.errors import FormatError
from mvc.states.document import JsonValue, Node, check_fields, get_field
from mvc.states.refusals import Attribute, format_path, refusal

MAX_DEPTH = 64
"""Containers within each other, far below where Python's own stack would end."""
MAPPINGS: Final = (dict, OrderedDict, Counter, defaultdict)
SEQUENCES: Final = (list, tuple, deque)
CONTAINERS: Final = frozenset({*MAPPINGS, *SEQUENCES})
SPARSE_PARTS = {
    "sparse_coo": ("indices", "values"),
    **dict.fromkeys(
        ("sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"), ("compressed", "plain", "values")
    ),
}
"""Tag of a sparse tensor → its dense parts."""
SPARSE_FACTS = ("shape", "coalesced", "parameter", "grad")
METADATA: Final = Attribute("_metadata")
"""The attribute in which torch keeps the versions of a state dict's modules."""
_FACTORIES: dict[str, Callable[[], object]] = {
    factory.__name__: factory
    for factory in (
        *(bool, int, float, complex, str, bytes, bytearray),
        *(list, tuple, dict, set, frozenset, deque, Counter, OrderedDict),
    )
}
_FACTORY_NAMES = {factory: name for name, factory in _FACTORIES.items()}
# Fields of a tagged container in addition to its items.
_MAPPING_FIELDS = {
    "dict": (),
    "OrderedDict": ("metadata",),
    "Counter": (),
    "defaultdict": ("factory",),
}
_SEQUENCE_FIELDS = {"tuple": (), "deque": ("maxlen",)}
_NO_FACTS: dict[str, JsonValue] = {}


OpenValue: TypeAlias = "tuple[Sequence[object], Collection[object], dict[str, JsonValue]]"
"""A live container taken apart: the key, index or attribute of each child; the children; and what
else its node says (``maxlen``, ``factory``). A plain tuple, because thousands are made per step."""


def open_value(value: Any, path: Sequence[object]) -> OpenValue:
    """Take a live container of one of ``CONTAINERS`` apart; ``path`` is for messages.

    An attribute that is not stored, or a factory that is not a builtin type, is refused.
    """
    kind = type(value)
    if kind is dict:
        return tuple(value), value.values(), _NO_FACTS
    if kind is list or kind is tuple:
        return range(len(value)), value, _NO_FACTS
    if kind is deque:
        return range(len(value)), value, {"maxlen": value.maxlen}
    if kind is defaultdict:
        factory = value.default_factory
        if factory is not None and factory not in _FACTORY_NAMES:
            raise refusal(factory, [*path, Attribute("default_factory")])
        return tuple(value), value.values(), {"factory": _FACTORY_NAMES.get(factory)}
    for name, item in vars(value).items():
        if name != METADATA or kind is not OrderedDict:
            raise refusal(item, [*path, Attribute(name)])
    own = vars(value).values()  # metadata goes first, as ``state.json`` has it
    steps = (METADATA, *value) if own else tuple(value)
    return steps, (*own, *value.values()), _NO_FACTS


@dataclass(slots=True)  # not frozen, which takes longer to make
class OpenNode:
    """A stored container taken apart; a sparse tensor counts as a container of its dense parts."""

    kind: str  # its tag; ``dict`` or ``list`` if JSON says it without one
    facts: dict[str, Any]  # its fields that are not values themselves
    # node of the key (an index, or an attribute) and node of the value, in order
    items: Collection[tuple[JsonValue, JsonValue]]
    is_sequence: bool = False  # whether keys are positions


def open_node(node: JsonValue, path: Sequence[object]) -> OpenNode | None:
    """Take a stored container apart, and check it; None if the node is of anything else."""
    if isinstance(node, list):
        return OpenNode("list", _NO_FACTS, tuple(enumerate(node)), is_sequence=True)
    if not isinstance(node, dict):
        return None
    if "$" not in node:
        return OpenNode("dict", _NO_FACTS, node.items())
    kind: Any = node["$"]
    opener = _OPENERS.get(kind) if isinstance(kind, str) else None
    return None if opener is None else opener(node, kind, path)


def _open_mapping(node: Node, kind: str, path: Sequence[object]) -> OpenNode:
    check_fields(node, "items", *_MAPPING_FIELDS[kind])
    items: Any = get_field(node, "items", (list, dict))
    if isinstance(items, dict):
        items = items.items()
    elif any(not isinstance(pair, list) or len(pair) != 2 for pair in items):  # noqa: PLR2004  key and value
        raise FormatError(f"{format_path(path)} has items that are not pairs")
    if "metadata" in node:
        items = [(METADATA, node["metadata"]), *items]
    facts: dict[str, Any] = {}
    if kind == "defaultdict":
        name = facts["factory"] = get_field(node, "factory", (str, type(None)))
        if name is not None and name not in _FACTORIES:
            raise FormatError(f"{format_path(path)} has the unknown factory {name[:40]!r}")
    return OpenNode(kind, facts, items)


def _open_sequence(node: Node, kind: str, path: Sequence[object]) -> OpenNode:
    check_fields(node, "items", *_SEQUENCE_FIELDS[kind])
    facts: dict[str, Any] = {}
    items = get_field(node, "items", list)
    if kind == "deque":
        limit = facts["maxlen"] = get_field(node, "maxlen", (int, type(None)))
        if limit is not None and not len(items) <= limit < 2**63:
            raise FormatError(f"{format_path(path)} is longer than its maxlen")
    return OpenNode(kind, facts, tuple(enumerate(items)), is_sequence=True)


def _open_sparse(node: Node, kind: str, path: Sequence[object]) -> OpenNode:
    names = SPARSE_PARTS[kind]
    check_fields(node, *SPARSE_FACTS, *names)
    items = [(Attribute(name), get_field(node, name, dict)) for name in names]
    if any(part.get("$") != "tensor" for _, part in items):
        raise FormatError(f"{format_path(path)} has a part that is not a tensor")
    return OpenNode(kind, {name: node[name] for name in SPARSE_FACTS if name in node}, items)


_OPENERS: dict[str, Callable[[Node, str, Sequence[object]], OpenNode]] = {
    **dict.fromkeys(_MAPPING_FIELDS, _open_mapping),
    **dict.fromkeys(_SEQUENCE_FIELDS, _open_sequence),
    **dict.fromkeys(SPARSE_PARTS, _open_sparse),
}


def build_container(
    kind: str, facts: Mapping[str, Any], keys: Sequence[object], children: list[object]
) -> object:
    """Return the live container of keys and children, whose nodes ``open_node`` gave."""
    if kind == "list":
        return children
    if kind == "tuple":
        return tuple(children)
    if kind == "deque":
        return deque(children, facts["maxlen"])
    return _build_mapping(kind, facts, zip(keys, children, strict=True))


def _build_mapping(
    kind: str, facts: Mapping[str, Any], pairs: Iterable[tuple[object, object]]
) -> object:
    if kind == "OrderedDict":
        attributes: list[Any] = []
        items: list[Any] = []
        for key, child in pairs:
            (attributes if type(key) is Attribute else items).append((key, child))
        value = OrderedDict(items)
        for key, child in attributes:
            setattr(value, str(key), child)
        return value
    if kind == "defaultdict":
        name = facts["factory"]
        return defaultdict(None if name is None else _FACTORIES[name], pairs)
    return Counter(dict(pairs)) if kind == "Counter" else dict(pairs)

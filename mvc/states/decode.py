"""JSON nodes → the nested state they were, in two walks of the same code.

The first walk checks everything, allocates the arrays (or finds them in live containers) and
lists what has to be read. The second one, when the reads are done, builds the containers. Live
containers only lend their arrays: what is returned has the stored structure.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mvc.errors import ConflictError, FormatError
from mvc.states.nodes import FACTORIES, MAX_DEPTH, check_fields, get_dims, get_field
from mvc.states.refusals import Attribute, format_path
from mvc.states.scalars_read import decode_scalar, find_torch_scalar, is_scalar_tag

if TYPE_CHECKING:
    from collections.abc import Callable

    from mvc.states.json_text import JsonValue
    from mvc.states.nodes import Node
    from mvc.states.reads import ReadTable

ABSENT: Final = object()
"""In place of a live value where there is none."""
_SPARSE = {"sparse_coo": ("indices", "values")} | dict.fromkeys(
    ("sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"), ("compressed", "plain", "values")
)


@dataclass(slots=True)
class Walk:
    """One walk over the nodes of a state.

    Attributes:
        table: the arrays.
        is_first: whether this walk adds arrays to the table; else it takes them from there.
        steps: the path to where the walk is.
    """

    table: ReadTable
    is_first: bool
    steps: list[object] = field(default_factory=list)

    def decode(self, node: JsonValue, live: object = ABSENT) -> Any:
        """Return the value of a node.

        Args:
            node: any JSON value.
            live: the live value at the same place, or ABSENT.

        Raises:
            FormatError: a node that no encoder writes.
            ConflictError: a live container or array that does not fit the stored one.
        """
        if len(self.steps) > MAX_DEPTH + 1:
            raise FormatError(f"{format_path(self.steps[:3])}... is nested too deeply")
        if isinstance(node, list):
            return self._decode_items(node, live)
        if not isinstance(node, dict):
            return self._take_scalar(node, live)
        if "$" not in node:
            return dict(self._decode_pairs(list(node.items()), live))
        tag = node["$"]
        if is_scalar_tag(tag) and "in" not in node:
            return self._take_scalar(decode_scalar(node), live)
        scalar = find_torch_scalar(node, self.table.load_factory)
        if scalar is not None:
            return self._take_scalar(scalar, live)
        decode = _TAGS.get(tag) if isinstance(tag, str) else None
        if decode is None:
            raise FormatError(f"{format_path(self.steps)} is of the unknown kind {str(tag)[:40]!r}")
        return decode(self, node, live)

    def _at(self, step: object, node: JsonValue, live: object) -> Any:
        self.steps.append(step)
        value = self.decode(node, live)
        self.steps.pop()
        return value

    def _take_scalar(self, value: object, live: object) -> object:
        if isinstance(live, (Mapping, list, tuple)) or _is_array(live):
            raise self._conflict(live, type(value).__name__)
        return value

    def _conflict(self, live: object, stored: str) -> ConflictError:
        what = f"{format_path(self.steps)} is of type {type(live).__name__}"
        return ConflictError(f"{what}, the stored value of type {stored}")

    def _decode_items(self, nodes: Sequence[JsonValue], live: object) -> list[object]:
        lives = _check_sequence(live, len(nodes), self.steps)
        return [self._at(index, node, lives(index)) for index, node in enumerate(nodes)]

    def _decode_pairs(
        self, pairs: Sequence[tuple[object, JsonValue]], live: object
    ) -> list[tuple[object, object]]:
        if live is not ABSENT and live is not None:
            _check_mapping(live, [key for key, _ in pairs], self.steps)
        lives: Mapping[object, object] = live if isinstance(live, Mapping) else {}
        return [(key, self._at(key, node, lives.get(key, ABSENT))) for key, node in pairs]

    def _decode_mapping(self, node: Node, live: object) -> list[tuple[object, object]]:
        items = get_field(node, "items", (list, dict))
        if isinstance(items, dict):
            return self._decode_pairs(list(items.items()), live)
        if any(not isinstance(pair, list) or len(pair) != 2 for pair in items):  # noqa: PLR2004  key and value
            raise FormatError(f"{format_path(self.steps)} has items that are not pairs")
        pairs = [(self.decode_key(pair[0]), pair[1]) for pair in items]
        _make_set(frozenset, [key for key, _ in pairs])
        return self._decode_pairs(pairs, live)

    def decode_key(self, node: JsonValue) -> object:
        """Return a value that a dict or set can find by its value."""
        if isinstance(node, dict) and node.get("$") in ("tuple", "frozenset"):
            check_fields(node, "items")
            keys = [self.decode_key(item) for item in get_field(node, "items", list)]
            return tuple(keys) if node["$"] == "tuple" else _make_set(frozenset, keys)
        if isinstance(node, list) or (isinstance(node, dict) and "in" in node):
            raise FormatError(f"{format_path(self.steps)} has a key that is a container")
        scalar = (
            find_torch_scalar(node, self.table.load_factory) if isinstance(node, dict) else None
        )
        return decode_scalar(node) if scalar is None else scalar

    def decode_dict(self, node: Node, live: object) -> object:
        """Return a dict that JSON cannot say."""
        check_fields(node, "items")
        return dict(self._decode_mapping(node, live))

    def decode_ordered(self, node: Node, live: object) -> object:
        """Return an OrderedDict with its ``_metadata``."""
        check_fields(node, "items", "metadata")
        value: Any = OrderedDict(self._decode_mapping(node, live))
        if "metadata" in node:
            value._metadata = self._at(Attribute("_metadata"), node["metadata"], ABSENT)  # noqa: SLF001  the name torch gives it
        return value

    def decode_counter(self, node: Node, live: object) -> object:
        """Return a Counter."""
        check_fields(node, "items")
        return Counter(dict(self._decode_mapping(node, live)))

    def decode_defaultdict(self, node: Node, live: object) -> object:
        """Return a defaultdict."""
        check_fields(node, "factory", "items")
        name = get_field(node, "factory", (str, type(None)))
        if name is not None and name not in FACTORIES:
            raise FormatError(f"{format_path(self.steps)} has the unknown factory {name[:40]!r}")
        factory = None if name is None else FACTORIES[name]
        return defaultdict(factory, self._decode_mapping(node, live))

    def decode_tuple(self, node: Node, live: object) -> object:
        """Return a tuple."""
        check_fields(node, "items")
        return tuple(self._decode_items(get_field(node, "items", list), live))

    def decode_deque(self, node: Node, live: object) -> object:
        """Return a deque."""
        check_fields(node, "maxlen", "items")
        items = self._decode_items(get_field(node, "items", list), live)
        limit = get_field(node, "maxlen", (int, type(None)))
        if limit is not None and not len(items) <= limit < 2**63:
            raise FormatError(f"{format_path(self.steps)} is longer than its maxlen")
        return deque(items, limit)

    def decode_set(self, node: Node, live: object) -> object:
        """Return a set or frozenset."""
        self._take_scalar(None, live)
        check_fields(node, "items")
        keys = [self.decode_key(item) for item in get_field(node, "items", list)]
        return _make_set(set if node["$"] == "set" else frozenset, keys)

    def decode_array(self, node: Node, live: object) -> object:
        """Return a tensor, an array, or bytes that lie in a file."""
        if not self.is_first:
            return self.table.get(node)
        if node["$"] in ("bytes", "bytearray"):
            self._take_scalar(b"", live)
            self.table.add_blob(node)
            return None
        if isinstance(live, (Mapping, list, tuple)):
            raise self._conflict(live, node["$"])
        self.table.add(node, live, self.steps)
        if self.table.get(node) is not live and _is_array(live):
            raise self._conflict(live, node["$"])
        return None

    def decode_sparse(self, node: Node, live: object) -> object:
        """Return a sparse tensor."""
        names = _SPARSE[node["$"]]
        check_fields(node, "shape", "coalesced", "parameter", "grad", *names)
        self._take_scalar(None, live)
        factory = self.table.load_factory()
        factory.check_sparse()
        shape = get_dims(node, "shape")
        parts = []
        for name in names:
            part = get_field(node, name, dict)
            if part.get("$") != "tensor":
                raise FormatError(f"{format_path(self.steps)} has a part that is no tensor")
            parts.append(self._at(Attribute(name), part, ABSENT))
        if self.is_first:
            return None
        coalesced = node.get("coalesced") is True
        value = factory.sparse(node["$"], shape, parts, coalesced=coalesced)
        parameter, grad = (node.get(name) is True for name in ("parameter", "grad"))
        return factory.finish(value, parameter=parameter, grad=grad)


_TAGS: dict[str, Callable[[Walk, Node, object], object]] = {
    "dict": Walk.decode_dict,
    "OrderedDict": Walk.decode_ordered,
    "Counter": Walk.decode_counter,
    "defaultdict": Walk.decode_defaultdict,
    "tuple": Walk.decode_tuple,
    "deque": Walk.decode_deque,
    "set": Walk.decode_set,
    "frozenset": Walk.decode_set,
    "tensor": Walk.decode_array,
    "ndarray": Walk.decode_array,
    "bytes": Walk.decode_array,
    "bytearray": Walk.decode_array,
    **dict.fromkeys(_SPARSE, Walk.decode_sparse),
}


def _make_set(kind: Callable[[list[object]], Any], keys: list[object]) -> Any:
    try:
        value = kind(keys)
    except TypeError:
        raise FormatError("state.json has a key or set member that cannot be one") from None
    if len(value) != len(keys):
        raise FormatError("state.json has the same key or set member twice")
    return value


def _is_array(live: object) -> bool:
    return isinstance(live, np.ndarray) or hasattr(type(live), "untyped_storage")


def _check_mapping(live: object, keys: list[object], steps: list[object]) -> None:
    if not isinstance(live, Mapping):
        raise ConflictError(
            f"{format_path(steps)} is of type {type(live).__name__}, the stored value a mapping"
        )
    stored = set(keys)
    missing = [key for key in live if key not in stored]
    if missing:
        raise ConflictError(
            f"{format_path([*steps, missing[0]])} is not in the stored state",
            hint="pass only what the state holds",
        )


def _check_sequence(live: object, count: int, steps: list[object]) -> Callable[[int], object]:
    if live is ABSENT or live is None:
        return lambda _: ABSENT
    if not isinstance(live, (list, tuple, deque)):
        raise ConflictError(
            f"{format_path(steps)} is of type {type(live).__name__}, the stored value a sequence"
        )
    if len(live) > count:
        raise ConflictError(f"{format_path(steps)} has {len(live)} items, the stored value {count}")
    return lambda index: live[index] if index < len(live) else ABSENT

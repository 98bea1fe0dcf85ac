"""A live nested state → JSON nodes and named arrays: one walk, nothing copied."""

from __future__ import annotations

import math
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.checkpoints.limits import Names
from mvc.dtypes import MAX_DIMS
from mvc.errors import UnsupportedError
from mvc.states.document import TENSOR_SUFFIX
from mvc.states.elements import find_numpy_element, stored_form
from mvc.states.files import LiveArray, clean_tensor_name, escape_file_name
from mvc.states.json_text import MAX_VALUES
from mvc.states.memory import HostArray, Region, find_kept_strides, view_memory
from mvc.states.nodes import FACTORIES, MAX_DEPTH
from mvc.states.refusals import Attribute, format_path, refusal
from mvc.states.scalars import NotScalar, encode_inline_bytes, encode_scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from mvc.states.json_text import JsonValue
    from mvc.states.nodes import Node

_FACTORY_NAMES = {factory: name for name, factory in FACTORIES.items()}
_MAX_KEY_DEPTH = 16
_INT_LIMITS = range(-(2**63), 2**64)


@dataclass(slots=True, eq=False)
class FileDraft:
    """A file in the making.

    Attributes:
        path: its name.
        names: tensor names given out in it.
        arrays: its named arrays.
    """

    path: str
    names: Names = field(default_factory=lambda: Names({"__metadata__"}))
    arrays: list[tuple[str, LiveArray]] = field(default_factory=list)

    def add(self, name: str, array: LiveArray) -> str:
        """Add an array; return the name it got."""
        name = self.names.give(clean_tensor_name(name))
        self.arrays.append((name, array))
        return name


@dataclass(frozen=True, slots=True, eq=False)
class PlacedArray:
    """An array, the node that stands for it and the file it lies in."""

    array: LiveArray
    node: Node
    file: FileDraft


@dataclass(slots=True)
class Walk:
    """One walk over a state.

    Attributes:
        files: drafts by top-level key, in the order of the state.
        placed: every array met.
        steps: the path to where the walk is.
    """

    files: dict[object, FileDraft] = field(default_factory=dict)
    placed: list[PlacedArray] = field(default_factory=list)
    steps: list[object] = field(default_factory=list)
    _file_names: Names = field(default_factory=lambda: Names(set(), fold_case=True, mark="-"))
    _open: set[int] = field(default_factory=set)
    _values: int = 0

    def encode(self, value: object) -> JsonValue:
        """Return the node of any value.

        Raises:
            UnsupportedError: names the path of what cannot be stored.
        """
        self._count(1)
        node = encode_scalar(value)
        if not isinstance(node, NotScalar):
            return node
        encode = CONTAINERS.get(type(value))
        if encode is None:
            return self._encode_array(value)
        if id(value) in self._open:
            raise UnsupportedError(f"{format_path(self.steps)} contains itself")
        if len(self._open) >= MAX_DEPTH:
            raise UnsupportedError(
                f"{format_path(self.steps)} is nested more than {MAX_DEPTH} levels deep"
            )
        self._open.add(id(value))
        node = encode(self, value)
        self._open.remove(id(value))
        return node

    def _at(self, step: object, value: object) -> JsonValue:
        self.steps.append(step)
        node = self.encode(value)
        self.steps.pop()
        return node

    def _count(self, values: int) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            raise UnsupportedError(
                f"the state has more than {MAX_VALUES:,} values",
                hint="keep long lists of numbers as arrays",
            )

    def encode_items(self, values: Collection[object]) -> list[JsonValue]:
        """Return the nodes of a sequence's items."""
        types = set(map(type, values))
        ints: Any = values
        if (types == {int} and min(ints) in _INT_LIMITS and max(ints) in _INT_LIMITS) or (
            types == {float} and all(map(math.isfinite, ints))
        ):
            self._count(len(values))
            return list(ints)
        return [self._at(index, value) for index, value in enumerate(values)]

    def encode_mapping(self, value: Mapping[Any, object]) -> JsonValue:
        """Return an object where all keys allow it, else a list of pairs."""
        if all(type(key) is str and key != "$" and _is_text(key) for key in value):
            return {key: self._at(key, item) for key, item in value.items()}
        return [[self.encode_key(key), self._at(key, item)] for key, item in value.items()]

    def encode_dict(self, value: dict[Any, object]) -> JsonValue:
        """Return a dict: itself where JSON can say it."""
        items = self.encode_mapping(value)
        return items if isinstance(items, dict) else {"$": "dict", "items": items}

    def encode_tagged_mapping(self, value: dict[Any, object]) -> JsonValue:
        """Return an OrderedDict (with the ``_metadata`` of a state dict) or a Counter."""
        node: Node = {"$": type(value).__name__}
        for name, item in vars(value).items():
            if name != "_metadata" or type(value) is not OrderedDict:
                raise refusal(item, [*self.steps, Attribute(name)])
            node["metadata"] = self._at(Attribute(name), item)
        return node | {"items": self.encode_mapping(value)}

    def encode_defaultdict(self, value: defaultdict[Any, object]) -> JsonValue:
        """Return a defaultdict whose factory is a builtin type."""
        factory = value.default_factory
        name = None if factory is None else _FACTORY_NAMES.get(factory)
        if factory is not None and name is None:
            raise refusal(factory, [*self.steps, Attribute("default_factory")])
        return {"$": "defaultdict", "factory": name, "items": self.encode_mapping(value)}

    def encode_sequence(self, value: Collection[object]) -> JsonValue:
        """Return a tuple."""
        return {"$": type(value).__name__, "items": self.encode_items(value)}

    def encode_deque(self, value: deque[object]) -> JsonValue:
        """Return a deque."""
        return {"$": "deque", "maxlen": value.maxlen, "items": self.encode_items(value)}

    def encode_set(self, value: Collection[object]) -> JsonValue:
        """Return a set, sorted: its own order means nothing and changes from run to run."""
        nodes = [self.encode_key(item) for item in value]
        return {"$": type(value).__name__, "items": sorted(nodes, key=repr)}

    def encode_key(self, key: object, depth: int = 0) -> JsonValue:
        """Return the node of a value that a dict or set finds by its value."""
        self._count(1)
        if depth > _MAX_KEY_DEPTH:
            raise UnsupportedError(f"{format_path(self.steps)} has a key that is nested too deeply")
        if type(key) in (tuple, frozenset):
            nodes = [self.encode_key(item, depth + 1) for item in key]  # type: ignore[attr-defined]  # one of the two
            if type(key) is frozenset:
                nodes.sort(key=repr)
            return {"$": type(key).__name__, "items": nodes}
        node = encode_inline_bytes(key) if type(key) is bytes else encode_scalar(key)
        if isinstance(node, NotScalar):
            raise refusal(key, [*self.steps, key])
        return node

    def _encode_array(self, value: Any) -> JsonValue:
        if type(value) in (bytes, bytearray):
            return self._encode_blob(value)
        if type(value) is np.ndarray:
            return self.place("ndarray", describe_ndarray(value, self.steps))
        torch: Any = sys.modules.get("torch")
        if torch is None or not isinstance(value, getattr(torch, "Tensor", ())):
            raise refusal(value, self.steps)
        from mvc.states import torch_arrays as state_torch  # noqa: PLC0415  imports torch, which is loaded

        tensor: Any = value
        flags, parts = state_torch.describe_tensor(tensor, self.steps)
        if isinstance(parts, LiveArray):
            node = self.place("tensor", parts)
            node.update(flags)
            return node
        return flags | {name: self._at(Attribute(name), part) for name, part in parts.items()}

    def _encode_blob(self, value: bytes | bytearray) -> Node:
        array = describe_ndarray(np.frombuffer(value, np.uint8), self.steps, can_share=False)
        node = self.place(type(value).__name__, array)
        return {key: node[key] for key in ("$", "in", "name")} | {"size_bytes": len(value)}

    def place(self, kind: str, array: LiveArray) -> Node:
        """Give an array its file and name; return its node."""
        if max(len(array.shape) + 1, len(stored_form(array.element, array.shape)[1])) > MAX_DIMS:
            raise UnsupportedError(f"{format_path(self.steps)} has too many dimensions")
        top = self.steps[0]
        file = self.files.get(top)
        if file is None:
            path = self._file_names.give(escape_file_name(_label(top))) + TENSOR_SUFFIX
            file = self.files[top] = FileDraft(path)
        name = file.add(".".join(map(_label, self.steps[1:] or [top])), array)
        node: Node = {"$": kind, "in": file.path, "name": name}
        node |= {"dtype": array.element.name, "shape": list(array.shape)}
        if array.strides is not None:
            node["strides"] = list(array.strides)
        self.placed.append(PlacedArray(array, node, file))
        return node


CONTAINERS: dict[type, Callable[[Walk, Any], JsonValue]] = {
    dict: Walk.encode_dict,
    OrderedDict: Walk.encode_tagged_mapping,
    Counter: Walk.encode_tagged_mapping,
    defaultdict: Walk.encode_defaultdict,
    list: lambda walk, value: walk.encode_items(value),
    tuple: Walk.encode_sequence,
    deque: Walk.encode_deque,
    set: Walk.encode_set,
    frozenset: Walk.encode_set,
}


def _is_text(key: str) -> bool:
    return key.isascii() or not any("\ud800" <= char <= "\udfff" for char in key)


def _label(step: object) -> str:
    return str(step) if isinstance(step, str) else str(step)[:200]


def describe_ndarray(
    array: np.ndarray[Any, Any], steps: list[object], *, can_share: bool = True
) -> LiveArray:
    """Return the array of a NumPy array, which is not copied.

    Raises:
        UnsupportedError: its elements are no plain data; names its path.
    """
    element = find_numpy_element(array.dtype)
    if element is None:
        raise refusal(array, steps)
    address = array.__array_interface__["data"][0]
    words = view_memory(address, array.shape, array.strides, element, array)
    region = strides = None
    if words.size:
        name = f"numpy {element.name}"
        if can_share:
            region = Region("cpu", address, array.shape, array.strides, name, element.size_bytes)
        if not array.flags.c_contiguous:
            strides = find_kept_strides(array.shape, array.strides, element.size_bytes)
    return LiveArray(element, array.shape, HostArray(words), region, strides, is_torch=False)

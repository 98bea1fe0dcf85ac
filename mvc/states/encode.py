"""A live nested state → JSON nodes and named arrays: one walk, nothing copied."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mvc.checkpoints.limits import Names
from mvc.checkpoints.safetensors import METADATA_KEY
from mvc.dtypes import MAX_DIMS
from mvc.errors import UnsupportedError
from mvc.numbers.boxes import Box, whole_box
from mvc.sources import ByteSource, JoinedSource, MemorySource
from mvc.states.containers import CONTAINERS, MAPPINGS, MAX_DEPTH, OpenValue, open_value
from mvc.states.document import LONG_LIST_HINT, MAX_VALUES, PART, TENSOR_SUFFIX, JsonValue, Node
from mvc.states.elements import find_numpy_element, get_torch_element, stored_form
from mvc.states.files import LiveArray, Spread, clean_tensor_name, escape_file_name
from mvc.states.memory import HostArray, Region, find_kept_strides, view_memory
from mvc.states.refusals import Attribute, format_path, refusal
from mvc.states.scalars import NotScalar, encode_inline_bytes, encode_scalar

FLAT_NAME = "model"
"""What a flat state is: its arrays are in the file that tools look for."""
_EXTRA_STATE = "_extra_state"  # torch's name for what a module adds to its state_dict
_MAX_KEY_DEPTH = 16
_INT_LIMITS = range(-(2**63), 2**64)


@dataclass(slots=True, eq=False)
class FileDraft:
    """A file in the making: its name, the tensor names given out in it, its named arrays."""

    path: str
    names: Names = field(default_factory=lambda: Names({METADATA_KEY}))
    arrays: list[tuple[str, LiveArray]] = field(default_factory=list)

    def add(self, name: str, array: LiveArray) -> str:
        """Add an array; return the name it got."""
        name = self.names.give(clean_tensor_name(name))
        self.arrays.append((name, array))
        return name


@dataclass(frozen=True, slots=True, eq=False)
class PlacedArray:
    """An array, the node that stands for it and the file it is in."""

    array: LiveArray
    node: Node
    file: FileDraft


@dataclass(slots=True)
class EncodeWalk:
    """One walk over a state; ``is_flat`` puts all of its arrays into one file.

    With ``is_local``, a file holds what is here of an array that is spread over several processes.
    At and below the paths ``first`` arrays are those of the first of several ranks.
    """

    is_flat: bool = False
    is_local: bool = False
    first: frozenset[tuple[object, ...]] = frozenset()
    # drafts by top-level key, in the order of the state
    files: dict[object, FileDraft] = field(default_factory=dict)
    placed: list[PlacedArray] = field(default_factory=list)
    steps: list[object] = field(default_factory=list)
    placed_first: set[int] = field(default_factory=set)  # those at ``first``, by number
    _file_names: Names = field(default_factory=lambda: Names(set(), fold_case=True, mark="-"))
    _open: set[int] = field(default_factory=set)
    _values: int = 0

    def encode(self, value: object) -> JsonValue:
        """Return the node of any value; an UnsupportedError names the path of what cannot be stored."""
        self._count(1)
        if type(value) in CONTAINERS:
            if id(value) in self._open:
                raise UnsupportedError(f"{format_path(self.steps)} contains itself")
            self._check_depth()
            self._open.add(id(value))
            held = open_value(value, self.steps)
            node = self.make_node(type(value), held, self._encode_children(held))
            self._open.remove(id(value))
            return node
        scalar = encode_scalar(value)
        if not isinstance(scalar, NotScalar):
            return scalar
        if type(value) is set or type(value) is frozenset:
            self._check_depth()
            nodes = [self.encode_key(item) for item in value]
            # Sorted: its own order means nothing and changes from run to run.
            return {"$": type(value).__name__, "items": sorted(nodes, key=repr)}
        return self._encode_array(value)

    def _check_depth(self) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise UnsupportedError(
                f"{format_path(self.steps)} is nested more than {MAX_DEPTH} levels deep"
            )

    def _encode_children(self, held: OpenValue) -> list[JsonValue]:
        # Long lists of numbers (states of random generators, indexes) are taken in one step.
        steps, children, _ = held
        types = set(map(type, children))
        numbers: Any = children
        if (types == {int} and min(numbers) in _INT_LIMITS and max(numbers) in _INT_LIMITS) or (
            types == {float} and all(map(math.isfinite, numbers))
        ):
            self._count(len(numbers))
            return list(numbers)
        return list(map(self._at, steps, children))

    def _at(self, step: object, value: object) -> JsonValue:
        self.steps.append(step)
        node = self.encode(value)
        self.steps.pop()
        return node

    def _count(self, values: int) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            raise UnsupportedError(
                f"the state has more than {MAX_VALUES:,} values", hint=LONG_LIST_HINT
            )

    def make_node(self, kind: type, held: OpenValue, nodes: list[JsonValue]) -> JsonValue:
        """Return the node of a container, given those of its children."""
        if kind is list:
            return nodes
        keys, _, facts = held
        node: Node = {"$": kind.__name__, **facts}
        if kind not in MAPPINGS:
            return node | {"items": nodes}
        if keys and type(keys[0]) is Attribute:
            node["metadata"], *nodes = nodes
            keys = keys[1:]
        if not all(type(key) is str and key != "$" and _is_text(key) for key in keys):
            pairs = zip(keys, nodes, strict=True)
            return node | {"items": [[self.encode_key(key), item] for key, item in pairs]}
        items: Any = dict(zip(keys, nodes, strict=True))
        return items if kind is dict else node | {"items": items}

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
            array = describe_ndarray(np.frombuffer(value, np.uint8), self.steps, can_share=False)
            node = self.place(type(value).__name__, array)
            return {key: node[key] for key in ("$", "in", "name")} | {"size_bytes": len(value)}
        if type(value) is np.ndarray:
            return self.place("ndarray", describe_ndarray(value, self.steps))
        if type(value) is SpreadTensor:
            return self.place("tensor", describe_spread(value, self.steps))
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

    def take_here(self, array: LiveArray) -> LiveArray:
        """Return what a file is to hold of an array."""
        if not self.is_local or array.spread is None:
            return array
        return replace(array, shape=array.spread.mine.sizes)

    def place(self, kind: str, array: LiveArray) -> Node:
        """Give an array its file and name; return its node."""
        if max(len(array.shape) + 1, len(stored_form(array.element, array.shape)[1])) > MAX_DIMS:
            raise UnsupportedError(f"{format_path(self.steps)} has too many dimensions")
        steps = [FLAT_NAME, *self.steps] if self.is_flat else self.steps
        top = steps[0]
        file = self.files.get(top)
        if file is None:
            path = self._file_names.give(escape_file_name(_label(top))) + TENSOR_SUFFIX
            file = self.files[top] = FileDraft(path)
        node: Node = {"$": kind, "in": file.path, "name": ""}
        node |= {"dtype": array.element.name, "shape": list(array.shape)}
        if array.strides is not None:
            node["strides"] = list(array.strides)
        if self.is_local and array.spread is not None:
            box = array.spread.mine
            node[PART] = {"offsets": list(box.offsets), "sizes": list(box.sizes)}
            array = self.take_here(array)
        node["name"] = file.add(".".join(map(_label, steps[1:] or [top])), array)
        if self.first and any(tuple(steps[:size]) in self.first for size in range(len(steps) + 1)):
            self.placed_first.add(len(self.placed))
        self.placed.append(PlacedArray(array, node, file))
        return node


def is_flat(state: Mapping[Any, object]) -> bool:
    """Return whether a state is the state dict of one model: names → arrays, and nothing else."""
    is_array = [
        type(value) in (np.ndarray, SpreadTensor) or hasattr(type(value), "untyped_storage")
        for key, value in state.items()
        if type(key) is str and not key.endswith(_EXTRA_STATE)
    ]
    return all(is_array) and any(is_array) and all(type(key) is str for key in state)


def _is_text(key: str) -> bool:
    return key.isascii() or not any("\ud800" <= char <= "\udfff" for char in key)


def _label(step: object) -> str:
    return str(step) if isinstance(step, str) else str(step)[:200]


def describe_ndarray(
    array: np.ndarray[Any, Any], steps: list[object], *, can_share: bool = True
) -> LiveArray:
    """Describe a NumPy array, which is not copied; UnsupportedError if it is not plain data."""
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


@dataclass(frozen=True, eq=False)
class SpreadTensor:
    """A tensor that is spread over the ranks of a run, in boxes, as one of these ranks sees it.

    Attributes:
        dtype: as torch spells it: ``bfloat16``.
        shape: of the whole.
        boxes: (rank, offsets, sizes) of every box; given alike, in this order, on every rank.
        mine: number of a box in ``boxes`` → the torch tensor that it is, of those on this rank.
    """

    dtype: str
    shape: Sequence[int]
    boxes: Sequence[tuple[int, Sequence[int], Sequence[int]]]
    mine: Mapping[int, Any]


def describe_spread(tensor: SpreadTensor, steps: Sequence[object]) -> LiveArray:
    """Return the array of a tensor given as boxes.

    UnsupportedError: what is here of it is of another form than its boxes say.
    """
    from mvc.states.torch_arrays import describe_tensor  # noqa: PLC0415  imports torch, which is loaded

    element, shape = get_torch_element(tensor.dtype), tuple(tensor.shape)
    boxes = [Box(tuple(offsets), tuple(sizes)) for _, offsets, sizes in tensor.boxes]
    held: list[tuple[Box, ByteSource]] = []
    for number, part in tensor.mine.items():
        _, array = describe_tensor(part, steps)
        box = boxes[number]
        if not isinstance(array, LiveArray) or (array.element, array.shape) != (element, box.sizes):
            raise UnsupportedError(
                f"{format_path(steps)} is {tensor.dtype} {list(box.sizes)} by its plan, and a "
                f"{str(part.dtype).removeprefix('torch.')} {list(part.shape)} in fact"
            )
        if box.elements:
            held.append((box, array.source))
    mine = [box for box, _ in held] or [Box((0,) * len(shape), (0,) * len(shape))]
    ranks = tuple(rank for rank, _, _ in tensor.boxes)
    spread = Spread(shape, ranks, tuple(boxes), mine[0], tuple(mine[1:]))
    if not boxes:  # an empty tensor: no rank has a part of it
        spread = Spread(shape, (0,), (whole_box(shape),), whole_box(shape))
    source = _join([one for _, one in held])
    return LiveArray(element, shape, source, None, None, is_torch=True, spread=spread)


def _join(parts: Sequence[ByteSource]) -> ByteSource:
    if len(parts) < 2:  # noqa: PLR2004  nothing to join
        return parts[0] if parts else MemorySource(b"")
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + part.size_bytes)
    return JoinedSource(parts, starts)

"""The form of a state, by which the next state of the same form is laid out in a fraction of the time.

A training run lays out a state of the same form again and again: the same names, types, shapes and
ties, other numbers. ``Recorder`` is the ordinary walk, and notes the form as a tree of

* *arrays*: all that the description of an array depends on, except its address;
* *branches*: containers with an array somewhere in them, by type and exact keys;
* *leaves*: whatever holds no array. Nothing outside a leaf depends on it, so it may change freely,
  as long as it still holds none.

``Follow`` walks a live state along such a tree. Arrays and branches have to be exactly what they
were; leaves are encoded again, which is cheap, and if their nodes have changed, the branches above
them get new nodes. Nodes that stay keep their text (``document.Kept``). Anything unexpected ends
the walk, and the state is encoded from scratch: following skips work whose result is known, and never
does it in another way. A tree keeps no part of a live state in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from mvc.numbers.boxes import Box, whole_box
from mvc.states.containers import CONTAINERS, open_value
from mvc.states.document import JsonValue, keep_text
from mvc.states.encode import EncodeWalk, describe_ndarray
from mvc.states.files import LiveArray
from mvc.states.memory import HostArray, HostBytes, Region, find_flat_bytes
from mvc.states.refusals import Attribute

if TYPE_CHECKING:
    from mvc.sources import ByteSource
    from mvc.states.elements import ElementType

_KEYS = {str, int, Attribute}
_encode_json = msgspec.json.Encoder(enc_hook=lambda kept: kept.node).encode


class DiffersError(Exception):
    """A state has another form than the recorded one; never leaves ``layout``."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorForm:
    """What a strided tensor is, except its address.

    ``size_bytes`` counts all elements if they are in host memory in file order, else it is 0.
    """

    kind: Any
    dtype: Any
    layout: Any
    device: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    grad: bool
    conj: bool
    neg: bool
    item_bytes: int
    size_bytes: int
    shard: ShardForm | None = None

    def fits(self, tensor: Any) -> bool:
        """Return whether a tensor is the same except for its address; torch may raise RuntimeError."""
        return (
            type(tensor) is self.kind
            and tensor.dtype is self.dtype
            and tensor.layout is self.layout
            and not tensor.is_nested
            and tensor.shape == self.shape
            and tensor.stride() == self.strides
            and tensor.requires_grad is self.grad
            and tensor.device == self.device
            and tensor.is_conj() is self.conj
            and tensor.is_neg() is self.neg
            and (self.shard is None or self.shard.fits(tensor))
        )

    def find_bytes(self, tensor: Any) -> HostBytes:
        """Return where the bytes are of a tensor that fits and whose ``size_bytes`` is not 0."""
        if self.shard is not None:
            return self.shard.local.find_bytes(tensor._local_tensor)  # noqa: SLF001  as in ``torch_shards``
        storage = tensor.untyped_storage()
        base, limit = storage.data_ptr(), storage.nbytes()
        start = tensor.storage_offset() * self.item_bytes
        if start + self.size_bytes > limit:
            raise DiffersError
        return HostBytes(storage, base, limit, base + start, self.size_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class ShardForm:
    """What a DTensor is besides: how it is sharded, and what the part is that is here."""

    mesh: Any
    placements: tuple[Any, ...]
    box: Box
    local: TensorForm

    def fits(self, tensor: Any) -> bool:
        """Return whether a DTensor of the same form is sharded alike."""
        return (
            tensor.placements == self.placements
            and tensor.device_mesh == self.mesh
            and self.local.fits(tensor._local_tensor)  # noqa: SLF001  as in ``torch_shards``
        )


@dataclass(frozen=True, slots=True, eq=False)
class ArrayPlan:
    """An array: its node, and what it was. Only the address of ``region`` may have changed."""

    form: JsonValue
    tensor: TensorForm | None
    element: ElementType
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    region: Region | None

    @property
    def is_plain(self) -> bool:
        """Whether its source is ``HostBytes``."""
        return self.tensor is not None and self.tensor.size_bytes > 0


@dataclass(frozen=True, slots=True, eq=False)
class LeafPlan:
    """Anything without arrays; ``text`` says exactly what its node is."""

    form: JsonValue
    text: bytes


@dataclass(frozen=True, slots=True, eq=False)
class BranchPlan:
    """A container with arrays in it: steps, their types and facts are all it is besides children."""

    form: JsonValue
    kind: type
    steps: Sequence[object]
    types: tuple[type, ...]
    facts: dict[str, JsonValue]
    children: tuple[StatePart, ...]


StatePart: TypeAlias = "ArrayPlan | LeafPlan | BranchPlan"


def _seal(part: StatePart) -> StatePart:
    """Return a leaf with its text; other parts have all they need.

    The text is JSON, because ``==`` would take True for 1 and -0.0 for 0.0.
    """
    return LeafPlan(part.form, _encode_json(part.form)) if isinstance(part, LeafPlan) else part


@dataclass(slots=True)
class Recorder(EncodeWalk):
    """A walk that notes the form of what it meets."""

    arrays: list[ArrayPlan] = field(default_factory=list)  # every array, in the order of ``placed``
    parts: list[StatePart] = field(default_factory=list)
    is_complete: bool = True  # whether the form says everything; if not, nothing can follow it

    @property
    def root(self) -> StatePart:
        """The form of the whole, after the walk."""
        return _seal(self.parts[0])

    def encode(self, value: object) -> JsonValue:
        """Return the node of any value, which keeps its text."""
        outer, self.parts = self.parts, []
        first = len(self.placed)
        node = EncodeWalk.encode(self, value)  # super() does not work in a class with slots
        form = keep_text(node)
        found = self.placed[first:]
        if not found:
            part: StatePart | None = LeafPlan(form, b"")  # sealed only if it ends up in a branch
        elif type(value) in CONTAINERS:
            steps, _, facts = open_value(value, self.steps)
            types, children = tuple(map(type, steps)), tuple(map(_seal, self.parts))
            part = None
            if _KEYS.issuperset(types):  # ``==`` would not do for other keys
                part = BranchPlan(form, type(value), steps, types, facts, children)
        else:
            part = _plan_array(value, found[0].array, form)
        self.parts = outer
        if part is None:
            self.is_complete = False
        else:
            self.parts.append(part)
            if isinstance(part, ArrayPlan):
                self.arrays.append(part)
        return form


def _plan_array(value: Any, array: LiveArray, form: JsonValue) -> ArrayPlan | None:
    """Return the plan of a tensor or array; None for anything else, and for sparse tensors."""
    tensor, source = None, array.source
    if array.is_torch:
        if str(getattr(value, "layout", None)) != "torch.strided":
            return None
        is_plain = (
            isinstance(source, HostArray)
            and array.region is not None
            and find_flat_bytes(source.words) is not None
        )
        size_bytes = source.size_bytes if is_plain else 0
        tensor = _form_tensor(value, array.element.size_bytes, size_bytes)
        if hasattr(value, "placements"):  # a DTensor, even if all of it is here
            box = whole_box(array.shape) if array.spread is None else array.spread.mine
            local = _form_tensor(value._local_tensor, array.element.size_bytes, size_bytes)  # noqa: SLF001
            shard = ShardForm(value.device_mesh, value.placements, box, local)
            tensor = replace(tensor, shard=shard)
    elif type(value) is not np.ndarray:
        return None
    return ArrayPlan(form, tensor, array.element, array.shape, array.strides, array.region)


def _form_tensor(value: Any, item_bytes: int, size_bytes: int) -> TensorForm:
    return TensorForm(
        type(value),
        value.dtype,
        value.layout,
        value.device,
        tuple(value.shape),
        tuple(value.stride()),
        value.requires_grad,
        value.is_conj(),
        value.is_neg(),
        item_bytes,
        size_bytes,
    )


@dataclass(slots=True)
class Follow(EncodeWalk):
    """A walk along a recorded form."""

    # the bytes of every array, in the order of the walk
    sources: list[ByteSource] = field(default_factory=list)
    # lowest address, address past the highest byte, and index of each
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    _regions: dict[int, Region] = field(default_factory=dict)

    def follow(self, part: StatePart, value: object) -> StatePart:
        """Return the form of a value: the recorded one if only addresses have changed.

        Raises DiffersError, or any error of the ordinary walk, if it is another one.
        """
        if isinstance(part, ArrayPlan):
            return self._follow_array(part, value)
        if isinstance(part, BranchPlan):
            return self._follow_branch(part, value)
        node = self.encode(value)
        text = _encode_json(node)
        return part if text == part.text else LeafPlan(keep_text(node), text)

    def find_region(self, index: int, part: ArrayPlan) -> Region:
        """Return the place of an array that is in ``spans``."""
        source = self.sources[index]
        if index in self._regions or not isinstance(source, HostBytes):
            return self._regions[index]
        assert part.region is not None
        return replace(part.region, address=source.address)

    def _follow_branch(self, branch: BranchPlan, value: object) -> BranchPlan:
        if type(value) is not branch.kind or id(value) in self._open:
            raise DiffersError
        held = steps, values, facts = open_value(value, ())
        if (
            steps != branch.steps
            or tuple(map(type, steps)) != branch.types
            or facts != branch.facts
        ):
            raise DiffersError
        self._open.add(id(value))
        # Arrays are asked for first and directly: nearly all children are, thousands of them.
        children = tuple(
            self._follow_array(part, child) if type(part) is ArrayPlan else self.follow(part, child)
            for part, child in zip(branch.children, values, strict=True)
        )
        self._open.remove(id(value))
        if all(new is old for new, old in zip(children, branch.children, strict=True)):
            return branch
        node = self.make_node(branch.kind, held, [child.form for child in children])
        return replace(branch, form=keep_text(node), children=children)

    def _follow_array(self, part: ArrayPlan, value: Any) -> ArrayPlan:
        form, index = part.tensor, len(self.sources)
        if form is not None and not form.fits(value):
            raise DiffersError
        if form is not None and form.size_bytes:
            found = form.find_bytes(value)
            self.sources.append(found)
            self.spans.append((found.address, found.address + form.size_bytes, index))
            if form.shard is not None:
                from mvc.states.torch_shards import locate_shard  # noqa: PLC0415  imports torch, which is loaded

                local = value._local_tensor  # noqa: SLF001  as there
                self._regions[index] = locate_shard(local, form.shard.box, part.element)
            return part
        array = self.take_here(_describe(value, is_tensor=form is not None))
        if (array.element, array.shape, array.strides, array.region is None) != (
            part.element,
            part.shape,
            part.strides,
            part.region is None,
        ):
            raise DiffersError
        self.sources.append(array.source)
        if array.region is not None:
            self._regions[index] = array.region
            self.spans.append((*array.region.span, index))
        return part

    def _encode_array(self, value: Any) -> JsonValue:  # noqa: ARG002  as the walk calls it
        raise DiffersError  # an array in what was a leaf


def _describe(value: Any, *, is_tensor: bool) -> LiveArray:
    if not is_tensor:
        if type(value) is not np.ndarray:
            raise DiffersError
        return describe_ndarray(value, [])
    from mvc.states import torch_arrays as state_torch  # noqa: PLC0415  imports torch, which is loaded

    _, array = state_torch.describe_tensor(value, [])
    if not isinstance(array, LiveArray):
        raise DiffersError
    return array

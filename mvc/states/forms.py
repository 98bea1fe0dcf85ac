"""What of a state has to stay as it is for its layout to be used again (see ``state_plan``)."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from mvc.states.memory import HostArray, find_flat_bytes
from mvc.states.runs import HostBytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mvc.states.elements import ElementType
    from mvc.states.files import LiveArray
    from mvc.states.json_text import JsonValue
    from mvc.states.memory import Region

_MAPPINGS = (dict, OrderedDict, Counter, defaultdict)
_KEYS = {str, int}
_encode_json = msgspec.json.Encoder(enc_hook=lambda kept: kept.node).encode


class DiffersError(Exception):
    """A state has another form than the recorded one; never leaves ``state_layout``."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorForm:
    """What a strided tensor is but for its address.

    Attributes:
        kind: its class.
        dtype, layout, device: as torch says them.
        shape: elements per dimension.
        strides: elements between neighbours.
        grad: whether it requires a gradient.
        conj: whether it is conjugated lazily.
        neg: whether it is negated lazily.
        item_bytes: bytes of an element.
        size_bytes: of all elements, where they lie in host memory in file order, else 0.
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

    def fits(self, tensor: Any) -> bool:
        """Tell whether a tensor is the same but for its address.

        Raises:
            RuntimeError: torch has no answer for a tensor of that sort.
        """
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
        )

    def find_bytes(self, tensor: Any) -> HostBytes:
        """Return where the bytes of a tensor lie that fits, and whose ``size_bytes`` is not 0."""
        storage = tensor.untyped_storage()
        base, limit = storage.data_ptr(), storage.nbytes()
        start = tensor.storage_offset() * self.item_bytes
        if start + self.size_bytes > limit:
            raise DiffersError
        return HostBytes(storage, base, limit, base + start, self.size_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class ArrayPlan:
    """An array.

    Attributes:
        form: stands for its node.
        tensor: what it is, or None for NumPy arrays.
        element, shape, strides: as of ``LiveArray``.
        region: where it lay; only its address may have changed.
        size_bytes: its length.
    """

    form: JsonValue
    tensor: TensorForm | None
    element: ElementType
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    region: Region | None
    size_bytes: int

    @property
    def is_plain(self) -> bool:
        """Whether its source is ``HostBytes``."""
        return self.tensor is not None and self.tensor.size_bytes > 0


@dataclass(frozen=True, slots=True, eq=False)
class LeafPlan:
    """Anything without arrays.

    Attributes:
        form: stands for its node.
        text: says exactly what the node is.
    """

    form: JsonValue
    text: bytes


@dataclass(frozen=True, slots=True, eq=False)
class BranchPlan:
    """A container with arrays in it.

    Attributes:
        form: stands for its node.
        kind: its class.
        keys: what else it is but its items.
        children: what it holds, in the order of the walk.
    """

    form: JsonValue
    kind: type
    keys: tuple[object, ...]
    children: tuple[StatePart, ...]


StatePart: TypeAlias = "ArrayPlan | LeafPlan | BranchPlan"


def encode_node(node: JsonValue) -> bytes:
    """Return a text that two nodes have in common only where they are the same.

    ``==`` would take True for 1 and -0.0 for 0.0.
    """
    return _encode_json(node)


def seal_leaf(part: StatePart) -> StatePart:
    """Return a part that is complete."""
    return LeafPlan(part.form, encode_node(part.form)) if isinstance(part, LeafPlan) else part


def find_keys(value: Any) -> tuple[object, ...] | None:
    """Return what a container is but for its items, or None where ``==`` would not tell."""
    if isinstance(value, _MAPPINGS):
        types = tuple(map(type, value))
        if not _KEYS.issuperset(types):
            return None
        own = tuple(vars(value)) if isinstance(value, (OrderedDict, Counter)) else ()
        return (types, tuple(value), own, getattr(value, "default_factory", None))
    return (len(value), getattr(value, "maxlen", None))


def iterate_children(value: Any) -> Iterable[object]:
    """Return what a container holds, in the order of the walk."""
    if not isinstance(value, _MAPPINGS):
        sequence: Iterable[object] = value
        return sequence
    if isinstance(value, (OrderedDict, Counter)):
        return (*vars(value).values(), *value.values())
    items: Iterable[object] = value.values()
    return items


def plan_array(value: Any, array: LiveArray, form: JsonValue) -> ArrayPlan | None:
    """Return the plan of an array; None for sparse tensors, and bytes that are kept as an array."""
    tensor, source = None, array.source
    if array.is_torch:
        if str(value.layout) != "torch.strided":
            return None
        is_plain = (
            isinstance(source, HostArray)
            and array.region is not None
            and find_flat_bytes(source.words) is not None
        )
        tensor = TensorForm(
            type(value),
            value.dtype,
            value.layout,
            value.device,
            tuple(value.shape),
            tuple(value.stride()),
            value.requires_grad,
            value.is_conj(),
            value.is_neg(),
            array.element.size_bytes,
            source.size_bytes if is_plain else 0,
        )
    elif type(value) is not np.ndarray:
        return None
    form_of = (array.element, array.shape, array.strides, array.region, source.size_bytes)
    return ArrayPlan(form, tensor, *form_of)

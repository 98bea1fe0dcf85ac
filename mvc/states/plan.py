"""The form of a state, by which the next state of the same form is walked in a fraction of the time.

A training run lays out a state of the same form again and again: the same names, types, shapes and
ties, other numbers. ``Recorder`` is the ordinary walk, and notes the form as a tree of

* *arrays*: all that the description of an array depends on but for its address;
* *branches*: containers with an array somewhere in them, by type and exact keys;
* *leaves*: whatever holds no array. It takes part in nothing outside of itself, so it may change at
  will, as long as it still holds none.

``Follow`` walks a live state along such a tree. Arrays and branches have to be just what they were;
leaves are encoded again, which is cheap, and where their nodes say something else the branches above
them get new nodes. Nodes that stay keep their text (``state_json.Kept``). Anything unexpected ends
the walk, and the state is encoded as if it was the first one: following skips work whose result is
known, and never does it in another way. A tree holds no part of a live state in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.states.encode import CONTAINERS, Walk, describe_ndarray
from mvc.states.files import LiveArray
from mvc.states.forms import (
    ArrayPlan,
    BranchPlan,
    DiffersError,
    LeafPlan,
    encode_node,
    find_keys,
    iterate_children,
    plan_array,
    seal_leaf,
)
from mvc.states.json_text import keep_text
from mvc.states.runs import HostBytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc.sources import ByteSource
    from mvc.states.forms import StatePart
    from mvc.states.json_text import JsonValue
    from mvc.states.memory import Region


@dataclass(slots=True)
class Recorder(Walk):
    """A walk that notes the form of what it meets.

    Attributes:
        arrays: every array, in the order of ``placed``.
        parts: of a container while the walk is in it.
        is_complete: whether the form says all; else nothing can follow it.
    """

    arrays: list[ArrayPlan] = field(default_factory=list)
    parts: list[StatePart] = field(default_factory=list)
    is_complete: bool = True

    @property
    def root(self) -> StatePart:
        """The form of the whole, after the walk."""
        return seal_leaf(self.parts[0])

    def encode(self, value: object) -> JsonValue:
        """Return what stands for the node of any value.

        Raises:
            UnsupportedError: names the path of what cannot be stored.
        """
        outer, self.parts = self.parts, []
        first = len(self.placed)
        node = Walk.encode(self, value)  # super() does not work in a class with slots
        form = keep_text(node)
        found = self.placed[first:]
        if not found:
            part: StatePart | None = LeafPlan(form, b"")  # in another leaf nobody asks for its text
        elif type(value) in CONTAINERS:
            keys = find_keys(value)
            part = None
            if keys is not None:
                part = BranchPlan(form, type(value), keys, tuple(map(seal_leaf, self.parts)))
        else:
            part = plan_array(value, found[0].array, form)
        self.parts = outer
        if part is None:
            self.is_complete = False
        else:
            self.parts.append(part)
            if isinstance(part, ArrayPlan):
                self.arrays.append(part)
        return form


@dataclass(slots=True)
class Follow(Walk):
    """A walk along a recorded form.

    Attributes:
        sources: the bytes of every array, in the order of the walk.
        spans: lowest address, address behind the highest byte, and index of each.
    """

    sources: list[ByteSource] = field(default_factory=list)
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    _regions: dict[int, Region] = field(default_factory=dict)

    def follow(self, part: StatePart, value: object) -> StatePart:
        """Return the form of a value: the very same where everything but addresses is.

        Raises:
            DiffersError: it is another one.
            MvcError, RuntimeError, ValueError: it is another one, and not a good one.
        """
        if isinstance(part, ArrayPlan):
            return self._follow_array(part, value)
        if isinstance(part, BranchPlan):
            return self._follow_branch(part, value)
        node = self.encode(value)
        text = encode_node(node)
        return part if text == part.text else LeafPlan(keep_text(node), text)

    def find_region(self, index: int, part: ArrayPlan) -> Region:
        """Return where an array lies that is in ``spans``."""
        source = self.sources[index]
        if not isinstance(source, HostBytes):
            return self._regions[index]
        assert part.region is not None
        return replace(part.region, address=source.address)

    def _follow_branch(self, branch: BranchPlan, value: object) -> BranchPlan:
        if type(value) is not branch.kind or find_keys(value) != branch.keys:
            raise DiffersError
        if id(value) in self._open:
            raise DiffersError
        self._open.add(id(value))
        children = tuple(
            self._follow_array(part, child) if type(part) is ArrayPlan else self.follow(part, child)
            for part, child in zip(branch.children, iterate_children(value), strict=True)
        )
        self._open.remove(id(value))
        if all(new is old for new, old in zip(children, branch.children, strict=True)):
            return branch
        forms = iter([child.form for child in children])
        node = CONTAINERS[branch.kind](_Replay(forms=forms), value)
        return BranchPlan(keep_text(node), branch.kind, branch.keys, children)

    def _follow_array(self, part: ArrayPlan, value: Any) -> ArrayPlan:
        form, index = part.tensor, len(self.sources)
        if form is not None and not form.fits(value):
            raise DiffersError
        if form is not None and form.size_bytes:
            found = form.find_bytes(value)
            self.sources.append(found)
            self.spans.append((found.address, found.address + form.size_bytes, index))
            return part
        array = _describe(value, is_tensor=form is not None)
        same = (array.element, array.shape, array.strides) == (
            part.element,
            part.shape,
            part.strides,
        )
        if not same or (array.region is None) != (part.region is None):
            raise DiffersError
        self.sources.append(array.source)
        if array.region is not None:
            self._regions[index] = array.region
            self.spans.append((*array.region.span, index))
        return part

    def _encode_array(self, value: Any) -> JsonValue:  # noqa: ARG002  as the walk calls it
        raise DiffersError  # where no array was


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


@dataclass(slots=True)
class _Replay(Walk):
    """Encodes one container, whose items are encoded already."""

    forms: Iterator[JsonValue] = field(default_factory=lambda: iter(()))

    def _at(self, step: object, value: object) -> JsonValue:  # noqa: ARG002  as the walk calls it
        return next(self.forms)

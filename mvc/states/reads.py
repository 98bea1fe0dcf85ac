"""Array nodes → memory to be filled, and the list of reads that fill it.

Nothing is allocated before a node's dtype and shape agree with the bytes that its file really
holds, and no tensor of a file is allocated twice, so a hostile ``state.json`` cannot ask for more
memory than the commit has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mvc.dtypes import MAX_TENSOR_BYTES, count_elements
from mvc.errors import ConflictError, FormatError, UnsupportedError
from mvc.numbers.boxes import Box, TensorPart, is_inside
from mvc.states.document import PART, Node, check_fields, get_dims, get_field
from mvc.states.elements import ElementType, get_numpy_element, get_torch_element
from mvc.states.factory import MemoryForm, NumpyFactory, fill_words, numpy_dtype, view_array
from mvc.states.memory import MAX_SKEW, Region, c_strides, is_dense, view_memory
from mvc.states.refusals import format_path

if TYPE_CHECKING:
    from mvc.states.factory import Filler, LiveTarget
    from mvc.states.torch_arrays import TorchFactory

    Factory: TypeAlias = NumpyFactory | TorchFactory

_PLACE = ("in", "name", "dtype", "shape")
_NUMPY = NumpyFactory()


@cache
def load_torch() -> TorchFactory:
    """Return what makes torch's tensors; imports torch when it is first called."""
    try:
        from mvc.states.torch_arrays import TorchFactory  # noqa: PLC0415  torch on demand
    except ImportError:
        raise UnsupportedError(
            "the state holds torch objects and torch is not installed",
            hint='install torch, or load with framework="numpy"',
        ) from None
    return TorchFactory()


@dataclass(frozen=True, slots=True, eq=False)
class TensorRead:
    """One tensor of a file that has to be read, or a part of it, and where its bytes go."""

    file: str
    tensor: str
    size_bytes: int
    # Has a function fill a writable buffer of ``size_bytes`` with the tensor's bytes. Reads may be
    # filled in any order and from many threads, each of them once. A tensor that is not contiguous,
    # or not on the host, takes memory of its size while it is filled.
    fill: Filler
    part: TensorPart | None = None  # None is the whole tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Storage:
    """Allocated memory, and the form of the array that fills it."""

    memory: object
    size_bytes: int
    skew: int
    form: MemoryForm


@dataclass(slots=True, eq=False)
class ReadTable:
    """The arrays of a state that is being read."""

    sizes: Mapping[str, Mapping[str, int]]  # bytes of every tensor of every file
    shared: Sequence[Node]  # nodes of the shared storages
    load_factory: Callable[[], Factory]  # returns what makes tensors
    takes_parts: bool = False  # whether a node may stand for a part of a tensor
    # what has to be read, complete once all nodes are added
    reads: list[TensorRead] = field(default_factory=list)
    _held: dict[str, Mapping[str, int]] = field(default_factory=dict)
    _values: dict[int, object] = field(default_factory=dict)
    _storages: dict[int, _Storage] = field(default_factory=dict)
    _claimed: set[tuple[str, str]] = field(default_factory=set)
    _filled: dict[Region, tuple[object, ...]] = field(default_factory=dict)

    def get(self, node: Node) -> object:
        """Return the array of a node that was added."""
        value: Any = self._values[id(node)]
        if node["$"] == "bytearray":
            return bytearray(value)
        return value.tobytes() if node["$"] == "bytes" else value

    def add_blob(self, node: Node) -> None:
        """Add ``bytes`` or a ``bytearray`` that are in a file, whose size is checked."""
        check_fields(node, "in", "name", "size_bytes")
        size = get_field(node, "size_bytes", int)
        self._claim(node, size)
        buffer = np.empty(size, np.uint8)
        self._add_read(node, size, partial(fill_words, buffer))
        self._values[id(node)] = buffer

    def add(self, node: Node, live: object, steps: Sequence[object]) -> None:
        """Add a tensor or an array; ``live`` is the one to fill in place, if it is an array."""
        is_tensor = node["$"] == "tensor"
        flags = ("parameter", "grad") if is_tensor else ()
        parts = (PART,) if self.takes_parts else ()
        check_fields(node, *_PLACE, *flags, *parts, "strides", "shared", "offset", "byte_strides")
        element, shape = get_form(node)
        self.check_held(node, measure_array(node))
        factory = self.load_factory() if is_tensor else _NUMPY
        found = factory.find_live(live, element, shape, steps)
        if found is not None:
            self._values[id(node)] = live
            self._fill_live(node, found, steps)
            return
        if PART in node:
            raise ConflictError(
                f"only a part of {format_path(steps)} is stored there",
                hint="pass a DTensor that has this part",
            )
        storage, form = self._place(node, element, shape)
        if is_tensor:
            parameter, grad = (node.get(name, False) is True for name in flags)
            value = factory.view(storage.memory, form)
            value = factory.finish(value, parameter=parameter, grad=grad)
        else:
            value = view_array(storage.memory, numpy_dtype(element), form)
        self._values[id(node)] = value

    def check_sparse(self) -> None:
        """Refuse a sparse tensor before anything is read, if only NumPy could make it."""
        if isinstance(self.load_factory(), NumpyFactory):
            raise UnsupportedError("the state holds a sparse tensor", hint="load it with torch")

    def make_sparse(
        self, tag: str, shape: tuple[int, ...], parts: list[Any], **flags: bool
    ) -> object:
        """Return the sparse tensor of dense parts; FormatError if they do not fit together."""
        return load_torch().sparse(tag, shape, parts, **flags)

    def _place(
        self, node: Node, element: ElementType, shape: tuple[int, ...]
    ) -> tuple[_Storage, MemoryForm]:
        """Return the memory that holds a node's array, and its layout there."""
        if "shared" not in node:
            storage = self._allocate(node)
            return storage, storage.form
        number = get_field(node, "shared", int)
        if not 0 <= number < len(self.shared):
            raise FormatError(f"state.json has no shared storage {number}")
        if number not in self._storages:
            check_fields(self.shared[number], *_PLACE, "strides", "skew")
            self._storages[number] = self._allocate(self.shared[number])
        storage = self._storages[number]
        if "offset" not in node:
            if (storage.form.element, storage.form.shape) != (element, shape):
                raise FormatError(f"tensor {node['name']!r} is not the storage it is tied to")
            return storage, storage.form
        form = MemoryForm(
            element,
            shape,
            get_field(node, "offset", int) + storage.skew,
            get_dims(node, "byte_strides"),
        )
        _check_inside(node, form, storage)
        return storage, form

    def _allocate(self, node: Node) -> _Storage:
        """Allocate the memory of an array of a file and note that it has to be read."""
        element, shape = get_form(node)
        size = count_elements(shape) * element.size_bytes
        self._claim(node, size)
        # A view may begin so that torch's alignment needs a storage that starts some bytes late.
        skew = get_field(node, "skew", int) if "skew" in node else 0
        if not 0 <= skew < MAX_SKEW:
            raise FormatError(f"a shared storage begins {skew} bytes late")
        factory = self.load_factory() if node["$"] == "tensor" else _NUMPY
        memory, address = factory.allocate(size + skew)
        form = MemoryForm(element, shape, skew, _get_strides(node, element, shape))
        words = view_memory(address + skew, shape, form.strides, element, memory, writable=True)
        self._add_read(node, size, partial(fill_words, words))
        return _Storage(memory, size + skew, skew, form)

    def _fill_live(self, node: Node, found: LiveTarget, steps: Sequence[object]) -> None:
        region, part = found.region, found.part
        if PART in node:
            if part is None or part.box != get_box(node):
                raise ConflictError(f"{format_path(steps)} is not the part that is stored there")
            part = None  # what is stored is all of this part
        size = measure_array(node) if part is None else part.size_bytes
        stored: tuple[str, ...] = (node["in"], node["name"])
        if "shared" in node:
            stored = tuple(str(node.get(name)) for name in ("shared", "offset", "byte_strides"))
        known = stored if region is None else self._filled.setdefault(region, stored)
        if known is stored:
            self._add_read(node, size, found.fill, part)
        elif known != stored:
            raise ConflictError(
                f"{format_path(steps)} shares its memory with another live tensor, "
                "but not with that one in the stored state"
            )

    def _add_read(
        self, node: Node, size: int, fill: Filler, part: TensorPart | None = None
    ) -> None:
        if size:
            self.reads.append(TensorRead(node["in"], node["name"], size, fill, part))

    def _claim(self, node: Node, size: int) -> None:
        self.check_held(node, size)
        place = (node["in"], node["name"])
        if place in self._claimed:
            raise FormatError(f"state.json uses tensor {place[1]!r} of {place[0]!r} twice")
        self._claimed.add(place)

    def check_held(self, node: Node, size: int) -> None:
        """Raise FormatError unless a file holds a node's tensor, of exactly that size."""
        file, name = get_field(node, "in", str), get_field(node, "name", str)
        if file not in self._held:
            self._held[file] = self.sizes.get(file, {})
        held = self._held[file].get(name)
        if held is None:
            raise FormatError(f"there is no tensor {name[:80]!r} in {file[:80]!r}")
        if held != size:
            raise FormatError(
                f"tensor {name[:80]!r} in {file[:80]!r} holds {held:,} bytes, "
                f"state.json wants {size:,}"
            )


def get_form(node: Node) -> tuple[ElementType, tuple[int, ...]]:
    """Return the element type and the shape of an array's node; FormatError if it has none."""
    name = get_field(node, "dtype", str)
    get_element = get_torch_element if node["$"] == "tensor" else get_numpy_element
    return get_element(name), get_dims(node, "shape")


def measure_array(node: Node) -> int:
    """Return the bytes that a file holds of an array; FormatError if its node is not one."""
    element, shape = get_form(node)
    return count_elements(get_box(node).sizes if PART in node else shape) * element.size_bytes


def get_box(node: Node) -> Box:
    """Return the part of a tensor that a node stands for; FormatError if it is none of it."""
    part = get_field(node, PART, dict)
    box = Box(get_dims(part, "offsets"), get_dims(part, "sizes"))
    if part.keys() != {"offsets", "sizes"} or not is_inside(get_dims(node, "shape"), box):
        raise FormatError("state.json has a part that is not inside its tensor")
    return box


def _get_strides(node: Node, element: ElementType, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in bytes, of an array that is not a view of shared memory."""
    if "strides" not in node:
        return c_strides(shape, element.size_bytes)
    strides = get_dims(node, "strides")
    if (
        len(strides) != len(shape)
        or not all(shape)
        or any(not 0 <= stride < MAX_TENSOR_BYTES for stride in strides)
        or not is_dense(shape, strides, 1)
    ):
        raise FormatError(f"tensor {node['name']!r} has strides that do not fit its shape")
    return tuple(stride * element.size_bytes for stride in strides)


def _check_inside(node: Node, form: MemoryForm, storage: _Storage) -> None:
    """Check that a view is in its storage, and is aligned if it is torch's."""
    size = form.element.size_bytes
    fits = len(form.strides) == len(form.shape) and all(form.shape)
    if fits:
        region = Region("", form.offset, form.shape, form.strides, "", size)
        fits = region.low >= storage.skew and region.high <= storage.size_bytes
    if fits and node["$"] == "tensor":
        fits = all(step >= 0 and step % size == 0 for step in (form.offset, *form.strides))
    if not fits:
        raise FormatError(f"tensor {node['name']!r} reaches outside the storage it shares")

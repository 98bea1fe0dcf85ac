"""torch's side of a state; with ``torch_shards`` all that the core knows of torch.

It is imported only when a state holds torch objects, or is read as some. What it makes is on the
host, whatever torch's default device is. Tensors in host memory are read in place. Tensors
elsewhere, and those that are conjugated or negated lazily, are copied to the host range by range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mvc.dtypes import TORCH_NAMES
from mvc.errors import ConflictError, FormatError, UnsupportedError
from mvc.numbers.boxes import iterate_slabs, whole_box
from mvc.states.elements import TORCH_ELEMENTS, ElementType
from mvc.states.factory import Filler, LiveTarget, MemoryForm, Reader, fill_words
from mvc.states.files import LiveArray
from mvc.states.memory import (
    HostArray,
    Region,
    c_strides,
    check_storage,
    find_kept_strides,
    read_units,
    view_memory,
)
from mvc.states.refusals import format_path
from mvc.states.scalars import PlainScalars
from mvc.states.torch_shards import find_spread, get_local, is_sharded, locate_shard

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.formats.layout import TensorView
    from mvc.sources import ByteSource
    from mvc.states.document import Node

_DTYPES: dict[str, torch.dtype] = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}
_ELEMENTS = {_DTYPES[name]: element for name, element in TORCH_ELEMENTS.items() if name in _DTYPES}
_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
_SPARSE_LAYOUTS = {str(layout).removeprefix("torch."): layout for layout in _COMPRESSED}
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def describe_tensor(
    tensor: torch.Tensor, steps: Sequence[object]
) -> tuple[Node, LiveArray | dict[str, torch.Tensor]]:
    """Return a tensor's flags for its node, and its array; for a sparse one, node and dense parts."""
    what = _find_objection(tensor)
    if what is not None:
        raise UnsupportedError(
            f"{format_path(steps)} is {what[0]}; mvc stores only data", hint=what[1]
        )
    flags: Node = {}
    if isinstance(tensor, torch.nn.Parameter):
        flags["parameter"] = True
    if tensor.requires_grad:
        flags["grad"] = True
    plain = tensor.detach()
    if is_sharded(tensor):
        return flags, _describe_sharded(plain, steps)
    if plain.layout is not torch.strided:
        node, parts = _split_sparse(plain)
        return node | flags, parts
    return flags, _describe_strided(plain, steps)


def _find_objection(tensor: torch.Tensor) -> tuple[str, str] | None:
    if is_sharded(tensor):
        return _find_objection(get_local(tensor))
    cls = type(tensor)
    if cls not in (torch.Tensor, torch.nn.Parameter):
        name = f"{cls.__module__}.{cls.__qualname__}"
        hint = "pass its local part, to_local()" if hasattr(tensor, "to_local") else ""
        return f"a tensor of the subclass {name}", hint or "pass a plain torch.Tensor"
    if tensor.is_quantized:
        return "a quantised tensor", "pass int_repr() and its scales"
    if tensor.is_nested:
        return "a nested tensor", "pass its parts as a list, unbind()"
    return _find_missing_data(tensor)


def _find_missing_data(tensor: torch.Tensor) -> tuple[str, str] | None:
    if tensor.device.type == "meta":
        return "a tensor without data (on device 'meta')", "materialise it first"
    is_sparse = tensor.layout is torch.sparse_coo or tensor.layout in _COMPRESSED
    if tensor.layout is not torch.strided and not is_sparse:
        return f"a tensor of layout {tensor.layout}", "pass to_dense()"
    if tensor.dtype not in _ELEMENTS:
        return f"a tensor of dtype {tensor.dtype}", "pass it as another dtype"
    return None


def _split_sparse(tensor: torch.Tensor) -> tuple[Node, dict[str, torch.Tensor]]:
    node: Node = {"$": str(tensor.layout).removeprefix("torch."), "shape": list(tensor.shape)}
    if tensor.layout is torch.sparse_coo:
        node["coalesced"] = tensor.is_coalesced()
        return node, {"indices": tensor._indices(), "values": tensor._values()}  # noqa: SLF001  the public ones refuse uncoalesced tensors
    names = (*_COMPRESSED[tensor.layout], "values")
    parts = [getattr(tensor, name)() for name in names]
    return node, dict(zip(("compressed", "plain", "values"), parts, strict=True))


def _describe_strided(tensor: torch.Tensor, steps: Sequence[object]) -> LiveArray:
    element = _ELEMENTS[tensor.dtype]
    size = element.size_bytes
    shape, strides = tuple(tensor.shape), tuple(step * size for step in tensor.stride())
    if not tensor.numel():
        words = view_memory(0, shape, strides, element, None)
        return LiveArray(element, shape, HostArray(words), None, None, is_torch=True)
    storage = _get_storage(tensor, steps)
    start = storage.data_ptr() + int(tensor.storage_offset()) * size
    kept = find_kept_strides(shape, strides, size)
    if tensor.is_conj() or tensor.is_neg():
        return LiveArray(element, shape, TorchArray(tensor, size), None, kept, is_torch=True)
    source: ByteSource
    space = str(tensor.device)
    if tensor.device.type == "cpu":
        check = partial(check_storage, storage, storage.data_ptr(), storage.nbytes())
        source = HostArray(view_memory(start, shape, strides, element, storage), check)
    else:
        source = TorchArray(view_words(tensor, element), element.word_bytes)
        space = f"{space} {storage.data_ptr()}"
    region = Region(space, start, shape, strides, f"torch {element.name}", size)
    return LiveArray(element, shape, source, region, kept, is_torch=True)


def _describe_sharded(tensor: Any, steps: Sequence[object]) -> LiveArray:
    spread = find_spread(tensor, steps)
    local = get_local(tensor)
    array = _describe_strided(local, steps)
    shape, size = tuple(tensor.shape), array.element.size_bytes
    if spread.mine == whole_box(shape) and len(spread.ranks) == 1:
        return array
    region = locate_shard(local, spread.mine, array.element)
    steps_bytes = tuple(step * size for step in tensor.stride())
    strides = find_kept_strides(shape, steps_bytes, size) if math.prod(shape) else None
    is_empty = not math.prod(shape)
    return replace(
        array, shape=shape, region=None if is_empty else region, strides=strides, spread=spread
    )


def _get_storage(tensor: torch.Tensor, steps: Sequence[object]) -> torch.UntypedStorage:
    try:
        storage = tensor.untyped_storage()
        storage.data_ptr()
    except RuntimeError:
        raise UnsupportedError(
            f"{format_path(steps)} is a tensor that has no memory",
            hint="pass it from outside torch.func transforms and tracing",
        ) from None
    reach = sum((dim - 1) * step for dim, step in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + reach + 1) * tensor.element_size()
    if storage.nbytes() < needed:
        raise UnsupportedError(
            f"{format_path(steps)} is a tensor whose storage holds {storage.nbytes():,} of "
            f"{needed:,} bytes",
            hint="gather sharded or offloaded parameters first",
        )
    return storage


def view_words(tensor: torch.Tensor, element: ElementType) -> torch.Tensor:
    """Return a tensor's memory as integers of the element's words; nothing is copied.

    Elements of several words add a dimension to the shape.
    """
    words = element.words
    shape, strides = tuple(tensor.shape), tuple(step * words for step in tensor.stride())
    if words > 1:
        shape, strides = (*shape, words), (*strides, 1)
    empty = torch.empty(0, dtype=_WORDS[element.word_bytes], device=tensor.device)
    return empty.set_(tensor.untyped_storage(), tensor.storage_offset() * words, shape, strides)


@dataclass(frozen=True, slots=True, eq=False)
class TorchArray:
    """The bytes of a tensor that the host cannot see, as units of ``unit`` bytes.

    ``tensor`` holds its words, or its values if they are conjugated or negated lazily.
    """

    tensor: torch.Tensor
    unit: int

    @property
    def size_bytes(self) -> int:
        """Its length."""
        return self.tensor.numel() * self.unit

    def view(self, offset: int, size_bytes: int) -> None:
        """Return None: every range has to be copied."""

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset`` on, copying only what it takes."""
        read_units(self._gather, self.unit, offset, buffer)

    def cut(self, start: int, size_bytes: int) -> TorchArray | None:
        """Return a range of whole elements, or None if they do not follow each other in memory."""
        if not self.tensor.is_contiguous() or start % self.unit or size_bytes % self.unit:
            return None
        first, count = start // self.unit, size_bytes // self.unit
        return TorchArray(self.tensor.view(-1)[first : first + count], self.unit)

    def _gather(self, first: int, out: NDArray[np.uint8]) -> None:
        tensor = self.tensor if self.tensor.ndim else self.tensor.reshape(1)
        done, count = 0, len(out) // self.unit
        for prefix, start, stop in iterate_slabs(tuple(tensor.shape), first, first + count):
            block = tensor[prefix][start:stop].resolve_conj().resolve_neg().contiguous().cpu()
            size = block.numel() * self.unit
            element = _ELEMENTS[block.dtype]
            words = view_memory(block.data_ptr(), (block.numel(),), (self.unit,), element, block)
            little = words.astype(f"<u{element.word_bytes}", copy=False)
            out[done : done + size] = little.reshape(-1).view(np.uint8)
            done += size


def span_storage(source: ByteSource, low: int, size_bytes: int) -> ByteSource:
    """Return a range of the device memory that a source is in, given its lowest address."""
    assert isinstance(source, TorchArray)
    storage = source.tensor.untyped_storage()
    empty = torch.empty(0, dtype=torch.uint8, device=source.tensor.device)
    return TorchArray(empty.set_(storage, low - storage.data_ptr(), (size_bytes,), (1,)), 1)


class TorchFactory(PlainScalars):
    """Makes torch's objects when a state is read."""

    def size(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        """Return a torch.Size."""
        return torch.Size(dims)

    def dtype(self, name: str) -> object:
        """Return a torch.dtype."""
        return _get_dtype(name)

    def device(self, kind: str, index: int | None) -> object:
        """Return a torch.device."""
        try:
            return torch.device(kind) if index is None else torch.device(kind, index)
        except (RuntimeError, ValueError, TypeError, OverflowError):
            raise FormatError(f"state.json names the unknown device {kind[:40]!r}") from None

    def allocate(self, size_bytes: int) -> tuple[object, int]:
        """Return new memory, as a tensor of bytes, and its address."""
        memory = torch.empty(size_bytes, dtype=torch.uint8, device="cpu")
        return memory, memory.data_ptr()

    def view(self, memory: object, form: MemoryForm) -> object:
        """Return the tensor of that form in that memory."""
        assert isinstance(memory, torch.Tensor)
        size = form.element.size_bytes
        strides = tuple(step // size for step in form.strides)
        empty = torch.empty(0, dtype=_get_dtype(form.element.name), device="cpu")
        try:
            return empty.set_(memory.untyped_storage(), form.offset // size, form.shape, strides)
        except (RuntimeError, TypeError, ValueError):
            shape = list(form.shape)
            raise FormatError(f"state.json has a tensor of impossible shape {shape}") from None

    def finish(self, tensor: object, *, parameter: bool, grad: bool) -> object:
        """Return the tensor as a Parameter and with ``requires_grad``, as it was."""
        assert isinstance(tensor, torch.Tensor)
        if grad and not (tensor.is_floating_point() or tensor.is_complex()):
            raise FormatError(f"state.json wants a gradient for {tensor.dtype}")
        if parameter:
            return torch.nn.Parameter(tensor, requires_grad=grad)
        return tensor.requires_grad_(grad) if grad else tensor

    def sparse(
        self,
        tag: str,
        shape: tuple[int, ...],
        parts: list[Any],
        *,
        coalesced: bool,
        parameter: bool,
        grad: bool,
    ) -> object:
        """Return a sparse tensor of its parts."""
        make: Any = torch.sparse_coo_tensor
        options: dict[str, Any] = {"is_coalesced": coalesced}
        if tag != "sparse_coo":
            make, options = torch.sparse_compressed_tensor, {"layout": _SPARSE_LAYOUTS[tag]}
        try:
            value = make(*parts, shape, check_invariants=True, device="cpu", **options)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            reason = str(error).splitlines()[0]
            raise FormatError(f"the parts of a sparse tensor do not fit: {reason}") from None
        return self.finish(value, parameter=parameter, grad=grad)

    def find_live(
        self, live: object, element: ElementType, shape: tuple[int, ...], steps: Sequence[object]
    ) -> LiveTarget | None:
        """Return how to fill a live tensor; None if it is not a tensor.

        Of a DTensor what is here is filled. A tensor that does not fit, or cannot be filled, is a
        ConflictError or UnsupportedError.
        """
        if not isinstance(live, torch.Tensor):
            return None
        path, name = format_path(steps), element.name
        if str(live.dtype) != f"torch.{name}" or tuple(live.shape) != shape:
            raise ConflictError(
                f"{path} is {str(live.dtype).removeprefix('torch.')} {list(live.shape)}, "
                f"the stored tensor is {name} {list(shape)}"
            )
        _, array = describe_tensor(live, steps)
        if isinstance(array, dict):
            raise UnsupportedError(f"{path} is sparse and cannot be filled in place")
        local = get_local(live) if is_sharded(live) else live
        plain = array if array.part is None else _describe_strided(local, steps)
        return LiveTarget(_find_filler(local, plain, path), array.region, array.part)


def _find_filler(tensor: torch.Tensor, array: LiveArray, path: str) -> Filler:
    """Return how to fill a tensor, which an array describes."""
    region = array.region
    if array.source.size_bytes and (
        region is None
        or any(d > 1 and not s for d, s in zip(array.shape, region.strides, strict=True))
    ):
        raise ConflictError(f"{path} cannot be filled in place", hint="pass a clone() of it")
    if isinstance(array.source, TorchArray):
        return partial(fill_device, tensor.detach())
    if region is None:
        return partial(fill_words, np.empty(0, np.uint8))
    place = (region.address, array.shape, region.strides, array.element)
    return partial(fill_words, view_memory(*place, tensor, writable=True))


def fill_device(tensor: torch.Tensor, read: Reader) -> None:
    """Fill a tensor on the host by ``read``, and copy it to one outside host memory."""
    element = _ELEMENTS[tensor.dtype]
    aside = torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="cpu")
    strides = c_strides(aside.shape, element.size_bytes)
    words = view_memory(aside.data_ptr(), aside.shape, strides, element, aside, writable=True)
    fill_words(words, read)
    tensor.copy_(aside)


def _get_dtype(name: str) -> torch.dtype:
    try:
        return _DTYPES[name]
    except KeyError:
        raise UnsupportedError(
            f"the installed torch has no dtype {name[:40]!r}", hint="install a newer torch"
        ) from None


def make_tensor(raw: NDArray[np.uint8], view: TensorView) -> torch.Tensor:
    """Return a contiguous tensor over (or gathered from) the bytes that a stored tensor spans.

    Packed types give a flat uint8 tensor of their bytes.
    """
    name = TORCH_NAMES.get(view.dtype)  # packed and quantised types have none and stay bytes
    if name is None:
        return _flat(raw, torch.uint8)
    kind = getattr(torch, name, None)
    if kind is None:
        raise UnsupportedError(f"the installed torch has no {name}", hint="install a newer torch")
    flat = _flat(raw, kind)
    if view.strides is None:
        return flat.reshape(view.shape)
    return flat.as_strided(view.shape, view.strides).clone(memory_format=torch.contiguous_format)


def _flat(raw: NDArray[np.uint8], kind: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(raw, dtype=kind) if raw.size else torch.empty(0, dtype=kind)

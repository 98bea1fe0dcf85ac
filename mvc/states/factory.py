"""What makes the arrays of a state when it is read: NumPy alone, or torch (``torch_arrays``).

Tensors are made as views of plain memory, because several may share it. ``NumpyFactory`` serves
readers without torch: a tensor becomes the array of the same bytes (with ml_dtypes for types that
NumPy lacks; ``float4_e2m1fn_x2`` as uint8, two elements a byte), and so does a Parameter;
``torch.Size`` becomes a tuple, ``torch.dtype`` and ``torch.device`` the strings that torch prints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mvc.errors import ConflictError, FormatError
from mvc.states.elements import TORCH_ELEMENTS, parse_numpy_dtype
from mvc.states.memory import Region, copy_words, find_flat_bytes, view_memory
from mvc.states.refusals import format_path
from mvc.states.scalars import PlainScalars

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.numbers.boxes import TensorPart
    from mvc.states.elements import AnyDType, ElementType

Reader: TypeAlias = "Callable[[memoryview], None]"
"""Fills a buffer with the bytes of an array in file order."""
Filler: TypeAlias = "Callable[[Reader], None]"
"""Calls a reader once, with an array or a buffer of its size to fill."""


@dataclass(frozen=True, slots=True, eq=False)
class LiveTarget:
    """A live array: how to fill it, where it is, and which part of the stored one it takes."""

    fill: Filler
    region: Region | None
    part: TensorPart | None = None  # None is all of it


_NUMPY_NAMES = {"bool": "|b1", "float4_e2m1fn_x2": "|u1"}


def fill_words(words: NDArray[Any], read: Reader) -> None:
    """Fill the words that ``view_memory`` returned by ``read``, in place if they are in file order."""
    flat = find_flat_bytes(words)
    if flat is not None:
        read(flat.data)
        return
    aside = np.empty(words.shape, words.dtype.newbyteorder("<"))
    read(aside.reshape(-1).view(np.uint8).data)
    copy_words(words, aside)


@dataclass(frozen=True, slots=True, eq=False)
class MemoryForm:
    """How an array is laid out in its memory; ``offset`` and ``strides`` count bytes."""

    element: ElementType
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]


class NumpyFactory(PlainScalars):
    """Makes NumPy arrays of everything."""

    def allocate(self, size_bytes: int) -> tuple[object, int]:
        """Return new memory, as an array of bytes, and its address."""
        memory = np.empty(size_bytes, np.uint8)
        return memory, memory.__array_interface__["data"][0]

    def view(self, memory: object, form: MemoryForm) -> object:
        """Return the array of that form in that memory."""
        return view_array(memory, numpy_dtype(form.element), form)

    def finish(self, tensor: object, *, parameter: bool, grad: bool) -> object:  # noqa: ARG002  TorchFactory uses them
        """Return the array: NumPy has neither Parameters nor gradients."""
        return tensor

    def find_live(
        self, live: object, element: ElementType, shape: tuple[int, ...], steps: Sequence[object]
    ) -> LiveTarget | None:
        """Return how to fill a live array in place; None if it is not an array.

        Another dtype or shape, or an array that cannot be written to, is a ConflictError.
        """
        if not isinstance(live, np.ndarray):
            return None
        path, dtype = format_path(steps), numpy_dtype(element)
        if live.dtype != dtype or live.shape != shape:
            raise ConflictError(
                f"{path} is {live.dtype} {list(live.shape)}, "
                f"the stored array is {dtype} {list(shape)}"
            )
        repeats = any(dim > 1 and not step for dim, step in zip(shape, live.strides, strict=True))
        if repeats or not live.flags.writeable:
            raise ConflictError(f"{path} cannot be written to", hint="pass a copy of it")
        address = live.__array_interface__["data"][0]
        words = view_memory(address, shape, live.strides, element, live, writable=True)
        region = Region("cpu", address, shape, live.strides, element.name, element.size_bytes)
        return LiveTarget(partial(fill_words, words), region if live.size else None)


def numpy_dtype(element: ElementType) -> AnyDType:
    """Return the NumPy dtype that shows an element type's values."""
    name = element.name
    if name not in TORCH_ELEMENTS:
        return parse_numpy_dtype(name)
    if name in _NUMPY_NAMES:
        return np.dtype(_NUMPY_NAMES[name])
    return np.dtype(name) if hasattr(np, name) else parse_numpy_dtype(name)


def view_array(memory: Any, dtype: AnyDType, form: MemoryForm) -> NDArray[Any]:
    """Return the array of that form in memory, which may be torch's; FormatError if it cannot be."""
    try:
        return np.ndarray(form.shape, dtype, np.asarray(memory), form.offset, form.strides)
    except (ValueError, TypeError, OverflowError):
        shape = list(form.shape)
        raise FormatError(f"state.json has an array of impossible shape {shape}") from None

"""What makes the arrays of a state when it comes back: torch, or NumPy alone.

Tensors are made as views of plain memory, because several may share it. ``NumpyFactory`` serves
who has no torch: a tensor becomes the array of the same bytes (with ml_dtypes where NumPy has no
such type; ``float4_e2m1fn_x2`` as uint8, two elements a byte), a Parameter the same, ``torch.Size``
a tuple, ``torch.dtype`` and ``torch.device`` the strings that torch prints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mvc.errors import ConflictError, FormatError, UnsupportedError
from mvc.states.elements import TORCH_ELEMENTS, parse_numpy_dtype
from mvc.states.memory import Region, copy_words, find_flat_bytes, view_memory
from mvc.states.refusals import format_path
from mvc.states.scalars_read import PlainScalars, TorchScalars

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from mvc.states.elements import AnyDType, ElementType

_NUMPY_NAMES = {"bool": "|b1", "float4_e2m1fn_x2": "|u1"}


class Destination(Protocol):
    """An array that is to be filled with bytes in file order."""

    def fill(self, read: Callable[[memoryview], None]) -> None:
        """Have ``read`` fill a buffer of the array's size, once."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class HostDestination:
    """An array in host memory.

    Attributes:
        words: its writable words as ``view_memory`` returns them.
    """

    words: NDArray[Any]

    def fill(self, read: Callable[[memoryview], None]) -> None:
        """Have ``read`` fill the memory itself, or an array beside it where the order differs."""
        flat = find_flat_bytes(self.words)
        if flat is not None:
            read(flat.data)
            return
        aside = np.empty(self.words.shape, self.words.dtype.newbyteorder("<"))
        read(aside.reshape(-1).view(np.uint8).data)
        copy_words(self.words, aside)


@dataclass(frozen=True, slots=True, eq=False)
class ArrayForm:
    """How an array lies in its memory.

    Attributes:
        element: its element type.
        shape: elements per dimension.
        offset: bytes before its first element.
        strides: bytes between neighbours per dimension.
    """

    element: ElementType
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]


class Factory(TorchScalars, Protocol):
    """What makes tensors."""

    def allocate(self, size_bytes: int) -> tuple[object, int]:
        """Return memory of its own, and its address."""
        ...

    def as_bytes(self, memory: object) -> NDArray[np.uint8]:
        """Return that memory as a NumPy array."""
        ...

    def view(self, memory: object, form: ArrayForm) -> object:
        """Return the tensor that lies so in that memory."""
        ...

    def finish(self, tensor: object, *, parameter: bool, grad: bool) -> object:
        """Return the tensor as the object it was."""
        ...

    def check_sparse(self) -> None:
        """Refuse, before anything is read, where there are no sparse tensors."""
        ...

    def sparse(
        self, tag: str, shape: tuple[int, ...], parts: list[Any], *, coalesced: bool
    ) -> object:
        """Return the sparse tensor of these parts."""
        ...

    def find_live(
        self, live: object, element: ElementType, shape: tuple[int, ...], steps: Sequence[object]
    ) -> tuple[Destination, Region | None] | None:
        """Return how to fill a live tensor in place; None for what is no tensor."""
        ...


class NumpyFactory(PlainScalars):
    """Makes NumPy arrays of everything."""

    def allocate(self, size_bytes: int) -> tuple[object, int]:
        """Return an array of bytes, and its address."""
        memory = np.empty(size_bytes, np.uint8)
        return memory, memory.__array_interface__["data"][0]

    def as_bytes(self, memory: object) -> NDArray[np.uint8]:
        """Return that memory."""
        assert isinstance(memory, np.ndarray)
        return memory

    def view(self, memory: object, form: ArrayForm) -> object:
        """Return the array that lies so in that memory."""
        return view_array(self.as_bytes(memory), numpy_dtype(form.element), form)

    def finish(self, tensor: object, *, parameter: bool, grad: bool) -> object:  # noqa: ARG002  of the protocol
        """Return the array: NumPy has neither Parameters nor gradients."""
        return tensor

    def check_sparse(self) -> None:
        """Refuse: NumPy has no sparse arrays.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("the state holds a sparse tensor", hint="load it with torch")

    def sparse(
        self,
        tag: str,  # noqa: ARG002  of the protocol
        shape: tuple[int, ...],  # noqa: ARG002
        parts: list[Any],  # noqa: ARG002
        *,
        coalesced: bool,  # noqa: ARG002
    ) -> object:
        """Refuse, as ``check_sparse``."""
        self.check_sparse()
        return None

    def find_live(
        self, live: object, element: ElementType, shape: tuple[int, ...], steps: Sequence[object]
    ) -> tuple[Destination, Region | None] | None:
        """Return how to fill a live array in place; None for what is none.

        Raises:
            ConflictError: its dtype or shape is another, or it cannot be written to.
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
        return HostDestination(words), region if live.size else None


@dataclass(slots=True)
class TorchLoader:
    """Returns what makes torch's tensors; imports torch when it is called first."""

    _factory: Factory | None = None

    def __call__(self) -> Factory:
        """Return it.

        Raises:
            UnsupportedError: torch is not installed.
        """
        if self._factory is None:
            try:
                from mvc.states.torch_arrays import TorchFactory  # noqa: PLC0415  torch on demand
            except ImportError:
                raise UnsupportedError(
                    "the state holds torch objects and torch is not installed",
                    hint='install torch, or load with framework="numpy"',
                ) from None
            self._factory = TorchFactory()
        return self._factory


def numpy_dtype(element: ElementType) -> AnyDType:
    """Return the NumPy dtype that shows an element type's values."""
    name = element.name
    if name not in TORCH_ELEMENTS:
        return parse_numpy_dtype(name)
    if name in _NUMPY_NAMES:
        return np.dtype(_NUMPY_NAMES[name])
    return np.dtype(name) if hasattr(np, name) else parse_numpy_dtype(name)


def view_array(memory: NDArray[np.uint8], dtype: AnyDType, form: ArrayForm) -> NDArray[Any]:
    """Return the array that lies so in memory.

    Raises:
        FormatError: a shape that NumPy cannot have.
    """
    try:
        return np.ndarray(form.shape, dtype, memory, form.offset, form.strides)
    except (ValueError, TypeError, OverflowError):
        shape = list(form.shape)
        raise FormatError(f"state.json has an array of impossible shape {shape}") from None

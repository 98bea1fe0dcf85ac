"""Raw memory of live arrays: where their elements lie, and how to see them there.

Every array on the host is seen as an array of unsigned words, given by address, shape and strides;
what the words mean does not matter here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.states.elements import ElementType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


MAX_SKEW = 16
"""Elements are at most so wide, so a storage never has to begin that many bytes later."""
BYTE = ElementType("bytes", 1, 1, "U8")
"""For memory that is seen as bytes, whatever its elements are."""


@dataclass(frozen=True, slots=True)
class Region:
    """Where the elements of an array lie in memory."""

    space: str  # what addresses are comparable in: ``cpu`` or a device's storage
    address: int  # of the first element, in bytes
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes between neighbours per dimension; may be negative
    element: str  # the element type's name, with its library
    size_bytes: int

    @property
    def low(self) -> int:
        """Address of the lowest byte."""
        return self.span[0]

    @property
    def high(self) -> int:
        """Address past the highest byte."""
        return self.span[1]

    @property
    def span(self) -> tuple[int, int]:
        """Addresses of the lowest byte and past the highest."""
        low = self.address
        high = low + self.size_bytes
        for dim, stride in zip(self.shape, self.strides, strict=True):
            reach = (dim - 1) * stride
            if reach > 0:
                high += reach
            else:
                low += reach
        return low, high

    @property
    def is_dense(self) -> bool:
        """Whether the elements fill the memory from low to high, each byte once."""
        return is_dense(self.shape, self.strides, self.size_bytes)


def is_dense(shape: Sequence[int], strides: Sequence[int], unit: int) -> bool:
    """Return whether positive strides are a reordering of the C-contiguous ones.

    ``unit`` is the distance of neighbours in the innermost dimension; no dimension is 0.
    """
    for stride, dim in sorted(
        (stride, dim) for dim, stride in zip(shape, strides, strict=True) if dim != 1
    ):
        if stride != unit:
            return False
        unit *= dim
    return True


def c_strides(shape: Sequence[int], unit: int = 1) -> tuple[int, ...]:
    """Return the strides of a C-contiguous array."""
    strides = []
    for dim in reversed(shape):
        strides.append(unit)
        unit *= max(dim, 1)
    return tuple(reversed(strides))


def find_kept_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], size_bytes: int
) -> tuple[int, ...] | None:
    """Return the strides, in elements, of an array that is dense but not in C order; else None.

    ``strides`` and ``size_bytes`` (of an element) are in bytes; no dimension is 0.
    """
    if strides == c_strides(shape, size_bytes) or not is_dense(shape, strides, size_bytes):
        return None
    return tuple(stride // size_bytes for stride in strides)


class _Memory:
    """Memory at an address, in the form NumPy takes; keeps its owner alive."""

    def __init__(self, interface: dict[str, object], owner: object) -> None:
        self.__array_interface__ = interface
        self.owner = owner


def view_memory(
    address: int,
    shape: Sequence[int],
    strides: Sequence[int],
    element: ElementType,
    owner: object,
    *,
    writable: bool = False,
) -> NDArray[Any]:
    """Return the words of an array that lies at an address; nothing is copied.

    Strides are in bytes; ``owner`` keeps the memory alive. The result has one more dimension if
    elements have several words.
    """
    words = () if element.words == 1 else (element.words,)
    full_shape = (*shape, *words)
    if math.prod(full_shape) == 0:
        return np.empty(full_shape, element.word_type)
    interface = {
        "data": (address, not writable),
        "shape": full_shape,
        "strides": (*strides, *((element.word_bytes,) if words else ())),
        "typestr": element.word_type,
        "version": 3,
    }
    return np.asarray(_Memory(interface, owner))


def find_flat_bytes(words: NDArray[Any]) -> NDArray[np.uint8] | None:
    """Return the bytes of an array without a copy, or None if they are not in file order."""
    if words.dtype.str[0] == ">" or not words.flags.c_contiguous:
        return None
    return words.reshape(-1).view(np.uint8)

"""Raw memory of live arrays: looked at where it lies, copied only piece by piece.

Every array on the host is seen as an array of unsigned words, given by address, shape and strides;
what the words mean does not matter here. The bytes of an array are its C-contiguous little-endian
bytes. Where the memory already is just that, ranges of it are handed out without a copy. Elsewhere
(transposed, sliced, big-endian) only the asked range is gathered, so that no array is ever copied
as a whole and memory is bounded by the reader's buffer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from mvc.states.elements import ElementType


MAX_SKEW = 16
"""Elements are at most so wide, so a storage never has to begin that many bytes later."""
_COLUMNS = 16


@dataclass(frozen=True, slots=True)
class Region:
    """Where the elements of an array lie in memory.

    Attributes:
        space: what addresses are comparable in: ``cpu`` or a device's storage.
        address: of the first element, in bytes.
        shape: elements per dimension, none of them 0.
        strides: bytes between neighbours per dimension; may be negative.
        element: the element type's name, with its library.
        size_bytes: bytes of one element.
    """

    space: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element: str
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

    Args:
        shape: elements per dimension, none of them 0.
        strides: distance of neighbours per dimension.
        unit: distance of neighbours in the innermost dimension.
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
    """Return the strides, in elements, of an array that is dense but not in C order.

    Args:
        shape: elements per dimension, none of them 0.
        strides: bytes between neighbours.
        size_bytes: bytes of an element.
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

    Args:
        address: of its first element.
        shape: elements per dimension.
        strides: bytes between neighbours per dimension.
        element: says how many words an element has and how wide they are.
        owner: object that keeps the memory alive, held by the result.
        writable: whether the result may be written to.

    Returns:
        An array of unsigned words; one more dimension where an element has several.
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


def iterate_slabs(
    shape: tuple[int, ...], first: int, last: int, prefix: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Cut elements ``first..last`` of C order into boxes ``array[prefix][start:stop]``."""
    if len(shape) == 1:
        yield prefix, first, last
        return
    row = math.prod(shape[1:])
    while first < last:
        index, inside = divmod(first, row)
        stop = last // row
        if inside == 0 and stop > index:
            yield prefix, index, stop
            first = stop * row
        else:
            end = min(last - index * row, row)
            yield from iterate_slabs(shape[1:], inside, end, (*prefix, index))
            first = index * row + end


def copy_words(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Copy an array into another of its shape, five times faster where one is transposed.

    A plain copy then takes one word from each cache line before it comes back for the next one;
    in narrow columns it comes back while the line is still there.
    """
    if source.ndim < 2 or _is_row_major(source) == _is_row_major(target):  # noqa: PLR2004  rows and columns
        np.copyto(target, source)
        return
    for start in range(0, source.shape[-1], _COLUMNS):
        column = slice(start, start + _COLUMNS)
        np.copyto(target[..., column], source[..., column])


def _is_row_major(words: NDArray[Any]) -> bool:
    steps = [abs(step) for step, dim in zip(words.strides, words.shape, strict=True) if dim > 1]
    return not steps or steps[-1] == min(steps)


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True, eq=False)
class HostArray:
    """The bytes of an array in host memory.

    Attributes:
        words: its words as ``view_memory`` returns them.
        is_alive: whether the memory is still there; asked before every access.
    """

    words: NDArray[Any]
    is_alive: Callable[[], bool] = _always

    @property
    def size_bytes(self) -> int:
        """Its length."""
        return self.words.nbytes

    def view(self, offset: int, size_bytes: int) -> memoryview | None:
        """Return that range without a copy, or None where it has to be gathered."""
        self._check_alive()
        flat = find_flat_bytes(self.words)
        if flat is None:
            return None
        return flat[offset : offset + size_bytes].data

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset`` on, gathering only what it takes."""
        direct = self.view(offset, len(buffer))
        if direct is not None:
            buffer[:] = direct
            return
        read_units(self._gather, self.words.itemsize, offset, buffer)

    def _gather(self, first: int, out: NDArray[np.uint8]) -> None:
        words = self.words if self.words.ndim else self.words.reshape(1)
        target = out.view(words.dtype.newbyteorder("<"))
        done = 0
        for prefix, start, stop in iterate_slabs(words.shape, first, first + target.size):
            block = words[prefix][start:stop]
            copy_words(target[done : done + block.size].reshape(block.shape), block)
            done += block.size

    def _check_alive(self) -> None:
        if not self.is_alive():
            raise ConflictError(
                "a tensor's storage was resized or freed before its bytes were read",
                hint="commit a copy of the state, or wait with changes until the commit is done",
            )


def read_units(
    gather: Callable[[int, NDArray[np.uint8]], None], unit: int, offset: int, buffer: memoryview
) -> None:
    """Fill a buffer at any offset through a function that only knows whole units.

    Args:
        gather: fills an array of bytes with units, from the unit of that index on.
        unit: bytes of one.
        offset: where to begin, in bytes.
        buffer: what to fill.
    """
    first, skip = divmod(offset, unit)
    if not skip and not len(buffer) % unit and buffer:
        gather(first, np.frombuffer(buffer, np.uint8))
    elif buffer:
        count = -(-(skip + len(buffer)) // unit)
        whole = np.empty(count * unit, np.uint8)
        gather(first, whole)
        buffer[:] = whole[skip : skip + len(buffer)].data

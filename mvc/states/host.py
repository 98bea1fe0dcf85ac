"""The bytes of arrays in host memory, read in place.

The bytes of an array are its C-contiguous little-endian bytes. If the memory holds just these,
ranges of it are handed out without a copy. If not (transposed, sliced, big-endian), only the asked
range is gathered, so that no array is ever copied as a whole and memory is bounded by the reader's
buffer. Most tensors of a training state are small and in file order: ``HostBytes`` costs next to
nothing to make for one of them, and ``HostRun`` copies many that follow each other in a file in one go.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mvc.errors import ConflictError
from mvc.states.memory import BYTE, find_flat_bytes, view_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

_COLUMNS = 16


class TorchStorage(Protocol):
    """The memory of a tensor, as torch gives it; alive as long as it is held."""

    def data_ptr(self) -> int:
        """Return its address."""
        ...

    def nbytes(self) -> int:
        """Return its length."""
        ...


def check_storage(storage: TorchStorage, address: int, size_bytes: int) -> None:
    """Raise ConflictError if a storage was resized or freed since it had that address and length."""
    if storage.data_ptr() != address or storage.nbytes() != size_bytes:
        raise ConflictError(
            "a tensor's storage was resized or freed before its bytes were read",
            hint="commit a copy of the state, or wait with changes until the commit is done",
        )


@dataclass(frozen=True, slots=True, eq=False)
class HostArray:
    """The bytes of an array in host memory.

    ``words`` is what ``view_memory`` returned; ``check_alive`` raises if that memory is gone.
    """

    words: NDArray[Any]
    check_alive: Callable[[], None] | None = None

    @property
    def size_bytes(self) -> int:
        """Its length."""
        return self.words.nbytes

    def view(self, offset: int, size_bytes: int) -> memoryview | None:
        """Return that range without a copy, or None if it has to be gathered."""
        if self.check_alive is not None:
            self.check_alive()
        flat = find_flat_bytes(self.words)
        return None if flat is None else flat[offset : offset + size_bytes].data

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


def read_units(
    gather: Callable[[int, NDArray[np.uint8]], None], unit: int, offset: int, buffer: memoryview
) -> None:
    """Fill a buffer from any offset with ``gather``, which only knows whole units of some bytes."""
    first, skip = divmod(offset, unit)
    if not skip and not len(buffer) % unit and buffer:
        gather(first, np.frombuffer(buffer, np.uint8))
    elif buffer:
        count = -(-(skip + len(buffer)) // unit)
        whole = np.empty(count * unit, np.uint8)
        gather(first, whole)
        buffer[:] = whole[skip : skip + len(buffer)].data


@dataclass(slots=True, eq=False)  # not frozen, which would take three times as long to make
class HostBytes:
    """A range of a tensor's storage."""

    storage: TorchStorage
    base: int  # address and length of the storage; checked before every access
    limit: int
    address: int
    size_bytes: int  # its length, more than 0

    def view(self, offset: int, size_bytes: int) -> memoryview:
        """Return that range without a copy."""
        self.check_alive()
        words = view_memory(self.address, (self.size_bytes,), (1,), BYTE, self.storage)
        return words[offset : offset + size_bytes].data

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset`` on."""
        buffer[:] = self.view(offset, buffer.nbytes)

    def check_alive(self) -> None:
        """Raise ConflictError if the memory was resized or freed."""
        check_storage(self.storage, self.base, self.limit)


@dataclass(frozen=True, slots=True, eq=False)
class HostRun:
    """Several small tensors that follow each other in a file; ``starts`` also says where the last ends."""

    parts: Sequence[HostBytes]
    starts: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Length of all together."""
        return self.starts[-1]

    def view(self, offset: int, size_bytes: int) -> None:
        """Return None: every range has to be copied."""

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset`` on."""
        size = buffer.nbytes
        if not 0 <= offset <= offset + size <= self.size_bytes:
            raise ValueError(f"offset {offset} lies outside {self.size_bytes} bytes")
        if not size:
            return
        target, end = ctypes.addressof(ctypes.c_char.from_buffer(buffer)) - offset, offset + size
        for part, start in zip(self.parts, self.starts, strict=False):
            low, high, address = start, start + part.size_bytes, part.address
            if low < offset or high > end:
                address += max(offset - low, 0)
                low, high = max(low, offset), min(high, end)
                if low >= high:
                    continue
            part.check_alive()
            ctypes.memmove(target + low, address, high - low)

"""Raw memory of live arrays: where their elements are, and how to see them there.

Every array on the host is seen as an array of unsigned words, given by address, shape and strides;
what the words mean does not matter here.

The bytes of an array are its C-contiguous little-endian bytes. If the memory holds just these,
ranges of it are handed out without a copy. If not (transposed, sliced, big-endian), only the asked
range is gathered, so that no array is ever copied as a whole and memory is bounded by the reader's
buffer. Most tensors of a training state are small and in file order: ``HostBytes`` costs next to
nothing to make for one of them, and ``HostRun`` copies many that follow each other in a file in one go.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.errors import ConflictError
from mvc.numbers.boxes import iterate_slabs
from mvc.states.elements import ElementType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.sources import ByteSource

MAX_SKEW = 16
"""Elements are at most so wide, so a storage never has to begin that many bytes later."""
BYTE = ElementType("bytes", 1, 1, "U8")
"""For memory that is seen as bytes, whatever its elements are."""
_COLUMNS = 16


@dataclass(frozen=True, slots=True)
class Region:
    """The place of an array's elements in memory."""

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
    """Return the words of an array at an address; nothing is copied.

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


def check_storage(storage: Any, address: int, size_bytes: int) -> None:
    """Raise ConflictError if a storage was resized or freed since it had that address and length."""
    if storage.data_ptr() != address or storage.nbytes() != size_bytes:
        raise ConflictError(
            "a tensor's storage was resized or freed before its bytes were read",
            hint="commit a copy of the state, or change it only once the commit is done",
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

    storage: Any  # torch's own, alive as long as it is held
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
            raise ValueError(f"offset {offset} is outside {self.size_bytes} bytes")
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


def cut_source(source: ByteSource, start: int, size_bytes: int) -> ByteSource:
    """Return a range of the bytes of an array, in the same memory."""
    if size_bytes == source.size_bytes:
        return source
    if isinstance(source, HostBytes):
        return replace(source, address=source.address + start, size_bytes=size_bytes)
    cut = getattr(source, "cut", None)  # memory outside the host
    found: ByteSource | None = None if cut is None else cut(start, size_bytes)
    return RangeSource(source, start, size_bytes) if found is None else found


@dataclass(frozen=True, slots=True, eq=False)
class RangeSource:
    """A range of the bytes of another source."""

    whole: ByteSource
    start: int
    size_bytes: int

    def view(self, offset: int, size_bytes: int) -> memoryview | None:
        """Return that range without a copy, or None if it has to be gathered."""
        return self.whole.view(self.start + offset, size_bytes)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset`` on."""
        self.whole.read_into(self.start + offset, buffer)


@dataclass(frozen=True, slots=True, eq=False)
class ImagePart:
    """A run of bytes of the image, and the live bytes they are copied from."""

    offset: int
    source: ByteSource

    @property
    def size_bytes(self) -> int:
        """Its length."""
        return self.source.size_bytes

    def view(self) -> memoryview | None:
        """Return the live bytes if they are in host memory in one piece, or None."""
        return self.source.view(0, self.source.size_bytes)

    def find_device_words(self) -> Any:
        """Return a live tensor on a device as a contiguous tensor of integers.

        None means that the bytes are elsewhere, or have to be read through ``read_into``.
        """
        tensor = getattr(self.source, "tensor", None)
        if tensor is None or tensor.device.type == "cpu" or not tensor.is_contiguous():
            return None
        is_words = not tensor.is_floating_point() and not tensor.is_complex()
        return tensor if is_words else None  # values that are conjugated or negated lazily

    def copy_into(self, image: memoryview) -> None:
        """Copy the live bytes to their place."""
        self.source.read_into(0, image[self.offset : self.offset + self.size_bytes])

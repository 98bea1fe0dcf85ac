"""Tensors whose bytes lie in host memory in file order, as sources that cost next to nothing to make.

Most tensors of a training state do, and most of them are small. ``HostRun`` copies many that follow
each other in a file in one go.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mvc.errors import ConflictError
from mvc.states.elements import ElementType
from mvc.states.memory import view_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

_BYTE = ElementType("bytes", 1, 1, "U8")


class Storage(Protocol):
    """The memory of a tensor, as torch gives it; alive as long as it is held."""

    def data_ptr(self) -> int:
        """Return its address."""
        ...

    def nbytes(self) -> int:
        """Return its length."""
        ...


@dataclass(slots=True, eq=False)  # not frozen, which would take three times as long to make
class HostBytes:
    """A range of a tensor's storage.

    Attributes:
        storage: what it lies in.
        base: address of the storage.
        limit: length of the storage; both are asked for again before every access.
        address: of the range.
        size_bytes: its length, more than 0.
    """

    storage: Storage
    base: int
    limit: int
    address: int
    size_bytes: int

    def view(self, offset: int, size_bytes: int) -> memoryview:
        """Return that range without a copy."""
        self.check_alive()
        words = view_memory(self.address, (self.size_bytes,), (1,), _BYTE, self.storage)
        return words[offset : offset + size_bytes].data

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset`` on."""
        buffer.cast("B")[:] = self.view(offset, buffer.nbytes)

    def check_alive(self) -> None:
        """Check that the memory is still there.

        Raises:
            ConflictError: it was resized or freed.
        """
        if self.storage.data_ptr() != self.base or self.storage.nbytes() != self.limit:
            raise ConflictError(
                "a tensor's storage was resized or freed before its bytes were read",
                hint="commit a copy of the state, or wait with changes until the commit is done",
            )


@dataclass(frozen=True, slots=True, eq=False)
class HostRun:
    """Several small tensors that follow each other in a file.

    Attributes:
        parts: the tensors.
        starts: where each begins, and where the last one ends.
    """

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

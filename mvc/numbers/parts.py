"""The part of a tensor that one rank has, and what it has of each chunk of the tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mvc.numbers.boxes import gather, locate_part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc.numbers.boxes import Box, Shape


@dataclass(frozen=True, slots=True)
class PartRun:
    """What a part has of one chunk; offsets and sizes are in bytes.

    Attributes:
        number: of the chunk in its tensor, where it begins at ``offset``.
        size_bytes: length of the chunk.
        part_offset: where its elements begin in the part.
        part_bytes: length of those, more than 0.
    """

    number: int
    offset: int
    size_bytes: int
    part_offset: int
    part_bytes: int

    @property
    def is_whole(self) -> bool:
        """Whether the part has all of the chunk, which then is one piece of it."""
        return self.part_bytes == self.size_bytes


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A box of a tensor whose elements have some bytes; its own bytes are its elements in C order."""

    shape: Shape
    box: Box
    item_bytes: int

    @property
    def size_bytes(self) -> int:
        """Length of its elements."""
        return self.box.elements * self.item_bytes

    def cut(self, chunk_bytes: int) -> Iterator[PartRun]:
        """Yield what it has of every chunk that it has something of, in their order.

        Chunks are whole elements long.
        """
        if not self.size_bytes:
            return
        total = math.prod(self.shape) * self.item_bytes
        last = [at + size - 1 for at, size in zip(self.box.offsets, self.box.sizes, strict=True)]
        first_chunk = self._find_offset(self.box.offsets) // chunk_bytes
        last_chunk = self._find_offset(last) // chunk_bytes
        before = 0
        for number in range(first_chunk, last_chunk + 1):
            offset = number * chunk_bytes
            end = min(offset + chunk_bytes, total)
            after = locate_part(self.shape, self.box, end // self.item_bytes) * self.item_bytes
            if after > before:
                yield PartRun(number, offset, end - offset, before, after - before)
            before = after

    def take(self, run: PartRun, chunk: memoryview, target: memoryview) -> None:
        """Copy its bytes of a chunk, given whole, to a buffer of just their length."""
        if run.is_whole:
            target[:] = chunk
            return
        source, into = np.frombuffer(chunk, np.uint8), np.frombuffer(target, np.uint8)
        first = run.offset // self.item_bytes
        gather(source, into, self.shape, self.box, first, self.item_bytes)

    def _find_offset(self, index: list[int] | Shape) -> int:
        """Return where an element begins in the tensor."""
        number = 0
        for at, dim in zip(index, self.shape, strict=True):
            number = number * dim + at
        return number * self.item_bytes

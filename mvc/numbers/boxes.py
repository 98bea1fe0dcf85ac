"""Boxes of a tensor, and how they lie in its C-contiguous bytes.

A rank of a sharded run holds a *box* of a tensor: a range of every dimension. A chunk is a *run* of the
tensor: a range of its elements in C order. The elements of a box within a run are its *part* of the
run, in C order as well. A box that is whole in all dimensions but the first is one run; the rows
of any other box are spread over the runs around it.

A run of a tensor of n dimensions is at most 2n - 1 boxes, so copying a part takes few strided copies,
however many rows it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


Shape = tuple[int, ...]
_MAX_WORK = 200_000
"""Boxes looked at, again and again, to see whether they overlap: no mesh of ranks comes near it."""


@dataclass(frozen=True, slots=True)
class Box:
    """A range of every dimension of a tensor, in elements; a scalar has one box, of no dimension."""

    offsets: Shape
    sizes: Shape

    @property
    def elements(self) -> int:
        """Number of its elements."""
        return math.prod(self.sizes)

    def narrow(self, start: int, stop: int) -> Box:
        """Return the rows ``start..stop`` of it, counted in its first dimension."""
        return Box((self.offsets[0] + start, *self.offsets[1:]), (stop - start, *self.sizes[1:]))


def whole_box(shape: Shape) -> Box:
    """Return the box that is all of a tensor."""
    return Box((0,) * len(shape), shape)


def is_inside(shape: Shape, box: Box) -> bool:
    """Return whether a box is one of a tensor of some shape."""
    return len(box.offsets) == len(box.sizes) == len(shape) and all(
        start >= 0 and size >= 0 and start + size <= dim
        for start, size, dim in zip(box.offsets, box.sizes, shape, strict=True)
    )


def flatten_box(shape: Shape, box: Box) -> tuple[Shape, Box]:
    """Return shape and box with as few dimensions as say the same, at least one.

    A dimension that the box has whole is one with the dimension before it.
    """
    dims: list[list[int]] = [[1, 0, 1]]
    for dim, start, size in zip(shape, box.offsets, box.sizes, strict=True):
        if start == 0 and size == dim:
            for place in range(3):
                dims[-1][place] *= dim
        elif dims[-1] == [1, 0, 1]:
            dims[-1] = [dim, start, size]
        elif dims[-1][2] == 1:  # one row: it is enough to know where it begins
            outer, at, _ = dims[-1]
            dims[-1] = [outer * dim, at * dim + start, size]
        else:
            dims.append([dim, start, size])
    whole, starts, sizes = zip(*dims, strict=True)
    return whole, Box(starts, sizes)


def count_part(shape: Shape, box: Box, first: int, last: int) -> int:
    """Return how many elements of the run ``first..last`` are in a box."""
    whole, flat = flatten_box(shape, box)
    return _count_before(whole, flat, last) - _count_before(whole, flat, first)


def _count_before(shape: Shape, box: Box, last: int) -> int:
    """Return how many elements of a box come before an element."""
    count, row = 0, math.prod(shape)
    inside = math.prod(box.sizes)
    for dim, start, size in zip(shape, box.offsets, box.sizes, strict=True):
        if not inside:
            return count
        row //= dim
        inside //= size
        index, last = divmod(last, row)
        if index < start:
            return count
        if index >= start + size:
            return count + size * inside
        count += (index - start) * inside
    return count


def find_fault(shape: Shape, boxes: Sequence[Box]) -> str | None:
    """Return what is wrong with boxes that are to cover a tensor once, or None."""
    filled = [box for box in boxes if box.elements]
    if not all(is_inside(shape, box) for box in filled):
        return "reach outside of it"
    fault = _find_overlap(filled)
    if fault is None and sum(box.elements for box in filled) != math.prod(shape):
        return "leave gaps"
    return fault


def _find_overlap(boxes: list[Box]) -> str | None:
    """Return whether two of some boxes share an element; what a plane parts is looked at apart."""
    groups, work = [boxes], 0
    while groups:
        group = groups.pop()
        work += len(group)
        parted = (_part_boxes(group, place) for place in range(len(group[0].sizes) if group else 0))
        parts = next((parts for parts in parted if len(parts) > 1), None)
        if parts is not None:
            groups += parts
            continue
        work += len(group) * (len(group) - 1)
        if work > _MAX_WORK:
            return "are too many, and lie too crosswise"
        if any(_do_meet(one, two) for place, one in enumerate(group) for two in group[:place]):
            return "overlap"
    return None


def _do_meet(box: Box, other: Box) -> bool:
    sides = zip(box.offsets, box.sizes, other.offsets, other.sizes, strict=True)
    return all(low < start + count and start < low + size for low, size, start, count in sides)


def _part_boxes(boxes: list[Box], place: int) -> list[list[Box]]:
    """Return the groups of boxes between planes across a dimension that cut none of them."""
    groups: list[list[Box]] = []
    end = -1
    for box in sorted(boxes, key=lambda box: box.offsets[place]):
        if box.offsets[place] >= end:
            groups.append([])
        groups[-1].append(box)
        end = max(end, box.offsets[place] + box.sizes[place])
    return groups


def scatter(
    part: NDArray[np.uint8],
    run: NDArray[np.uint8],
    shape: Shape,
    box: Box,
    first: int,
    item_bytes: int,
) -> None:
    """Copy a box's part of a run to its places.

    ``run`` are the bytes of the tensor's elements from ``first`` on.
    """
    for where, start, sizes in _iterate_part(run, shape, box, first, item_bytes):
        stop = start + math.prod(sizes)
        where[:] = _as_words(part[start * item_bytes : stop * item_bytes], item_bytes, sizes)


def gather(
    run: NDArray[np.uint8],
    part: NDArray[np.uint8],
    shape: Shape,
    box: Box,
    first: int,
    item_bytes: int,
) -> None:
    """Copy from a run what is a box's part of it: ``scatter`` the other way round."""
    for where, start, sizes in _iterate_part(run, shape, box, first, item_bytes):
        stop = start + math.prod(sizes)
        _as_words(part[start * item_bytes : stop * item_bytes], item_bytes, sizes)[:] = where


def locate_part(shape: Shape, box: Box, first: int) -> int:
    """Return where the part of a run that begins at ``first`` begins among the box's own elements."""
    whole, flat = flatten_box(shape, box)
    return _count_before(whole, flat, first)


def _iterate_part(
    run: NDArray[np.uint8], shape: Shape, box: Box, first: int, item_bytes: int
) -> Iterator[tuple[NDArray[np.generic], int, Shape]]:
    """Yield the places in a run of a box's elements, where they begin in the part, and their shape."""
    whole, flat = flatten_box(shape, box)
    last = first + len(run) // item_bytes
    done = 0
    for prefix, start, stop in iterate_slabs(whole, first, last):
        depth = len(prefix)
        begin = _ravel(whole, (*prefix, start)) - first
        rest = whole[depth + 1 :]
        slab = run[begin * item_bytes : (begin + (stop - start) * math.prod(rest)) * item_bytes]
        low = max(start, flat.offsets[depth])
        high = min(stop, flat.offsets[depth] + flat.sizes[depth])
        is_beside = any(
            not 0 <= index - at < size
            for index, at, size in zip(prefix, flat.offsets, flat.sizes, strict=False)
        )
        sizes = (high - low, *flat.sizes[depth + 1 :])
        if is_beside or low >= high or not math.prod(sizes):
            continue
        cut = tuple(
            slice(at, at + size)
            for at, size in zip(flat.offsets[depth + 1 :], flat.sizes[depth + 1 :], strict=True)
        )
        words = _as_words(slab, item_bytes, (stop - start, *rest))
        yield words[(slice(low - start, high - start), *cut)], done, sizes
        done += math.prod(sizes)


def iterate_slabs(
    shape: Shape, first: int, last: int, prefix: Shape = ()
) -> Iterator[tuple[Shape, int, int]]:
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


def _ravel(shape: Shape, index: Shape) -> int:
    """Return the number in C order of an element, whose last indexes are 0 if they are left out."""
    number = 0
    for place, dim in enumerate(shape):
        number = number * dim + (index[place] if place < len(index) else 0)
    return number


def _as_words(data: NDArray[np.uint8], item_bytes: int, shape: Shape) -> NDArray[np.generic]:
    """Return bytes as elements of a size, in a shape; nothing is copied."""
    if item_bytes in (1, 2, 4, 8):
        return data.view(f"u{item_bytes}").reshape(shape)
    return data.view(f"V{item_bytes}").reshape(shape)


@dataclass(frozen=True, slots=True)
class PartRun:
    """What a part has of one chunk; offsets and sizes are in bytes."""

    number: int  # of the chunk in its tensor, where it begins at ``offset``
    offset: int
    size_bytes: int  # length of the chunk
    part_offset: int  # where its elements begin in the part
    part_bytes: int  # length of those, more than 0

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

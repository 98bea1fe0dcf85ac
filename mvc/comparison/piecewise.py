"""One pair of tensors compared piece by piece: in pieces that end where chunks do, added up in order."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from math import lcm
from typing import TYPE_CHECKING

from mvc.dtypes import DType, count_elements, get_dtype, size_in_bytes
from mvc.formats.manifest import DEFAULT_CHUNK_BYTES
from mvc.numbers.pieces import compare_pieces
from mvc.numbers.statistics import TensorStatistics

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mvc.comparison.pairs import TensorPair
    from mvc.workspace.tensors import Reader


class PairRun:
    """The comparison of one pair: pieces that threads do in any order and that add up in theirs."""

    def __init__(self, pair: TensorPair, shape: tuple[int, ...]) -> None:
        assert pair.old is not None
        assert pair.new is not None
        self.total: TensorStatistics | None = None
        self._sides = (pair.old, pair.new)
        self._dtypes = [get_dtype(side.view.dtype) for side in self._sides]
        self.size_bytes = sum(size_in_bytes(dtype, shape) for dtype in self._dtypes)
        self._whole = lcm(*(dtype.block_elements for dtype in self._dtypes))
        row = count_elements(shape[1:]) if len(shape) > 1 else 0
        self._row = 0 if row % self._whole else row
        self.pieces = list(self._cut(count_elements(shape)))
        self._parts: list[list[PieceStatistics]] = [[]] * len(self.pieces)
        self._left = len(self.pieces)
        self._readers: tuple[Reader, Reader] | None = None
        self._lock = threading.Lock()

    def _cut(self, elements: int) -> Iterator[tuple[int, int]]:
        """Yield (first, count) of pieces that end where chunks do."""
        step = max(
            (side.chunk_bytes or DEFAULT_CHUNK_BYTES) // dtype.block_bytes * dtype.block_elements
            for side, dtype in zip(self._sides, self._dtypes, strict=True)
        )
        side = 0 if self._sides[0].chunk_bytes else 1
        dtype, chunk_bytes = self._dtypes[side], self._sides[side].chunk_bytes
        rest = self._sides[side].view.offset_bytes % chunk_bytes if chunk_bytes else 0
        lead = (chunk_bytes - rest) // dtype.block_bytes * dtype.block_elements if rest else 0
        step = max(step - step % self._whole, self._whole)
        return cut_ranges(elements, step, lead - lead % self._whole)

    @property
    def is_streamed(self) -> bool:
        """Whether both sides are read piece by piece; one with strides is read whole."""
        return all(side.view.strides is None for side in self._sides)

    def compare(self, number: int) -> list[PieceStatistics]:
        """Compare one piece."""
        first, count = self.pieces[number]
        ranges = [_range_of(dtype, first, count) for dtype in self._dtypes]
        read_old, read_new = self._open()
        old = read_old(*ranges[0])
        new = old if self._is_shared(*ranges[0]) else read_new(*ranges[1])
        return [
            PieceStatistics(self._compare(old, new, at, length, first, row), is_whole=row > 0)
            for at, length, row in _cut_rows(first, count, self._row)
        ]

    def take(self, number: int, parts: list[PieceStatistics]) -> int:
        """Add what a piece came to; return the bytes that it has on both sides."""
        self._parts[number] = parts
        with self._lock:
            self._left -= 1
            if not self._left:
                self._readers = None
                self.total = _join(chain.from_iterable(self._parts), self._row)
                self._parts = []
        return sum(_range_of(dtype, *self.pieces[number])[1] for dtype in self._dtypes)

    def _compare(
        self,
        old: NDArray[np.uint8],
        new: NDArray[np.uint8],
        at: int,
        length: int,
        first: int,
        row: int,
    ) -> TensorStatistics:
        """Compare some elements of a piece, from ``at`` on."""
        ranges = [_range_of(dtype, at, length) for dtype in self._dtypes]
        (begin, size), (other, also) = ranges
        return compare_pieces(
            old[begin : begin + size],
            self._dtypes[0],
            new[other : other + also],
            self._dtypes[1],
            first + at,
            row,
        )

    def _open(self) -> tuple[Reader, Reader]:
        with self._lock:  # a strided tensor is read when it is opened
            if self._readers is None:
                self._readers = (self._sides[0].open(), self._sides[1].open())
            return self._readers

    def _is_shared(self, offset: int, size_bytes: int) -> bool:
        """Return whether both sides have a run of bytes in the same chunks, at the same place."""
        old, new = self._sides
        if not size_bytes or self._dtypes[0] != self._dtypes[1] or old.chunks is None:
            return False
        if new.chunks is None or old.chunk_bytes != new.chunk_bytes:
            return False
        if old.view.strides is not None or new.view.strides is not None:
            return False
        (start, inside), (other, also) = (
            divmod(side.view.offset_bytes + offset, side.chunk_bytes) for side in self._sides
        )
        last = (inside + size_bytes - 1) // old.chunk_bytes + 1
        return (
            inside == also and old.chunks[start : start + last] == new.chunks[other : other + last]
        )


def _range_of(dtype: DType, first: int, count: int) -> tuple[int, int]:
    """Return offset and size in bytes of whole blocks of elements."""
    begin = first // dtype.block_elements * dtype.block_bytes
    return begin, count // dtype.block_elements * dtype.block_bytes


@dataclass(frozen=True, slots=True)
class PieceStatistics:
    """Statistics of some elements: of whole rows, in which case these are counted, or of less."""

    statistics: TensorStatistics
    is_whole: bool


def _cut_rows(first: int, count: int, row: int) -> Iterator[tuple[int, int, int]]:
    """Yield (offset, length, row length) of whole rows in a run, and 0 for parts of rows."""
    head = min(-first % row, count) if row else count
    whole = (count - head) // row * row if row else 0
    for at, length, rows in ((0, head, 0), (head, whole, row), (head + whole, count, 0)):
        if min(length, count - at) > 0:
            yield at, min(length, count - at), rows


def _join(parts: Iterable[PieceStatistics], row: int) -> TensorStatistics:
    """Add parts up in their order; rows that were cut are counted once they are complete."""
    total, cut = TensorStatistics(), TensorStatistics()
    for part in parts:
        total += part.statistics
        if part.is_whole or not row:
            continue
        cut += part.statistics
        if cut.elements == row:
            total += TensorStatistics(
                zero_rows_old=int(cut.old.zeros == row),
                zero_rows_new=int(cut.new.zeros == row),
                nan_rows_old=int(cut.old.nan > 0),
                nan_rows_new=int(cut.new.nan > 0),
            )
            cut = TensorStatistics()
    return total


def cut_ranges(end: int, step: int, lead: int = 0) -> Iterator[tuple[int, int]]:
    """Yield (begin, length) of a run cut at every ``step`` after ``lead``; once if it is empty."""
    begin = 0
    while True:
        length = min(lead if lead and not begin else step, end - begin)
        yield begin, length
        begin += length
        if begin >= end:
            return

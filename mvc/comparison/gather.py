"""What became of every tensor of two models, with statistics: piece by piece, on all threads.

First it is found out which pairs differ. Ids tell without a read; where only one side has them, the
other is hashed, and where none has, both are read up to the first difference. Then statistics of
those that differ are looked up by their two ids, or computed and kept. Memory is a few pieces a
thread, whatever the tensors' sizes; only a strided tensor is read whole.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import chain
from math import lcm
from typing import TYPE_CHECKING

from mvc.chunkstore.parallel import for_each
from mvc.comparison.changes import TensorChange, find_common_shape
from mvc.comparison.pairs import identify
from mvc.dtypes import count_elements, get_dtype, size_in_bytes
from mvc.errors import FormatError
from mvc.formats.manifest import DEFAULT_CHUNK_BYTES
from mvc.numbers.pieces import compare_pieces
from mvc.numbers.statistics import TensorStatistics
from mvc.progress import announce

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from mvc.comparison.pairs import TensorPair
    from mvc.dtypes import DType
    from mvc.ids import TensorId
    from mvc.progress import ByteProgress
    from mvc.workspace.context import Context
    from mvc.workspace.kept import Kept
    from mvc.workspace.models import ModelTensor, Reader

PAIR = b"pair"
"""The kind of kept statistics, whose key is ``pair_key``."""


def pair_key(old: TensorId, new: TensorId) -> bytes:
    """Return the key under which the statistics of two tensors are kept."""
    return bytes.fromhex(old) + bytes.fromhex(new)


def gather(
    context: Context | None,
    pairs: Sequence[TensorPair],
    *,
    threads: int,
    progress: ByteProgress = None,
) -> list[TensorChange]:
    """Return what became of each pair, in the same order; their models are open.

    Args:
        context: where statistics are kept; outside of a repository they are not.
        pairs: as ``pair_models`` returns them.
        threads: how many read and compute.
        progress: called with the bytes of both sides that were read.
    """
    ids = [_Ids.of(pair) for pair in pairs]
    different = _find_different(pairs, ids, threads, progress)
    shapes = {place: find_common_shape(pairs[place]) for place in sorted(different)}
    keys = {place: ids[place].key for place, shape in shapes.items() if shape is not None}
    kept = None if context is None else context.kept
    found = _look_up(kept, keys)
    runs = {
        place: _Run(pairs[place], shape)
        for place, shape in shapes.items()
        if shape is not None and place not in found
    }
    try:
        _compute(list(runs.values()), threads, progress)
    finally:  # what was done before Ctrl-C need not be done again
        fresh = {place: run.total for place, run in runs.items() if run.total is not None}
        named = ((keys[place], total) for place, total in fresh.items())
        if kept is not None:
            kept.put_many(PAIR, {key: total.encode() for key, total in named if key is not None})
    found |= fresh
    return [
        TensorChange(
            pair, _status(pair, is_different=place in different), found.get(place), ids[place].key
        )
        for place, pair in enumerate(pairs)
    ]


def _status(pair: TensorPair, *, is_different: bool) -> str:
    if pair.old is None:
        return "added"
    if pair.new is None:
        return "removed"
    if is_different:
        return "modified"
    return "renamed" if pair.is_renamed else "unchanged"


@dataclass(slots=True)
class _Ids:
    """The identities of a pair, as far as they are known by now."""

    old: TensorId | None
    new: TensorId | None

    @classmethod
    def of(cls, pair: TensorPair) -> _Ids:
        old, new = (None if side is None else side.id for side in (pair.old, pair.new))
        return cls(old, new)

    @property
    def key(self) -> bytes | None:
        return None if self.old is None or self.new is None else pair_key(self.old, self.new)


def _find_different(
    pairs: Sequence[TensorPair], ids: Sequence[_Ids], threads: int, progress: ByteProgress
) -> set[int]:
    """Return the places of pairs whose sides differ; fills in ids that are found on the way."""
    different: set[int] = set()
    unknown: list[int] = []
    for place, pair in enumerate(pairs):
        if pair.old is None or pair.new is None or ids[place].old == ids[place].new is not None:
            continue
        old, new = pair.old.view, pair.new.view
        is_told = ids[place].key is not None and _is_plain(pair.old) and _is_plain(pair.new)
        if (old.dtype, old.shape) != (new.dtype, new.shape) or is_told:
            different.add(place)
        else:
            unknown.append(place)

    def look(place: int, _: None) -> int:
        done, is_same = _look(pairs[place], ids[place])
        if not is_same:
            different.add(place)
        return done

    announce(progress, sum(pairs[place].shown.size_bytes for place in unknown))
    for_each(unknown, lambda: None, look, threads=threads, progress=progress)
    return different


def _is_plain(tensor: ModelTensor) -> bool:
    return tensor.segment.is_plain


def _look(pair: TensorPair, ids: _Ids) -> tuple[int, bool]:
    """Return bytes read, and whether both sides are equal, by hash or byte for byte."""
    old, new = pair.old, pair.new
    assert old is not None
    assert new is not None
    if ids.old is None and ids.new is not None and _is_plain(new):
        ids.old = identify(old, new.chunk_bytes)
    elif ids.new is None and ids.old is not None and _is_plain(old):
        ids.new = identify(new, old.chunk_bytes)
    else:
        return new.size_bytes, _is_equal(old, new)
    return new.size_bytes, ids.old == ids.new


def _is_equal(old: ModelTensor, new: ModelTensor) -> bool:
    read_old, read_new = old.open(), new.open()
    return all(
        (read_old(offset, size) == read_new(offset, size)).all()
        for offset, size in _ranges(new.size_bytes, DEFAULT_CHUNK_BYTES)
    )


def _ranges(end: int, step: int, lead: int = 0) -> Iterator[tuple[int, int]]:
    """Yield (begin, length) of a run cut at every ``step`` after ``lead``; once if it is empty."""
    begin = 0
    while True:
        length = min(lead if lead and not begin else step, end - begin)
        yield begin, length
        begin += length
        if begin >= end:
            return


def _look_up(kept: Kept | None, keys: dict[int, bytes | None]) -> dict[int, TensorStatistics]:
    """Return place → kept statistics."""
    if kept is None:
        return {}
    known = {place: key for place, key in keys.items() if key is not None}
    stored = kept.get_many(PAIR, known.values())
    found: dict[int, TensorStatistics] = {}
    for place, key in known.items():
        if key in stored:
            try:
                found[place] = TensorStatistics.decode(stored[key])
            except FormatError:
                continue  # of another version: computed again
    return found


def _compute(runs: Sequence[_Run], threads: int, progress: ByteProgress) -> None:
    pieces = [(run, number) for run in runs for number in range(len(run.pieces))]
    announce(progress, sum(run.size_bytes for run in runs))
    for_each(
        pieces,
        lambda: None,
        lambda piece, _: piece[0].compare(piece[1]),
        threads=threads,
        progress=progress,
    )


class _Run:
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
        self._parts: list[list[_Part]] = [[]] * len(self.pieces)
        self._left = len(self.pieces)
        self._readers: tuple[Reader, Reader] | None = None
        self._lock = threading.Lock()

    def _cut(self, elements: int) -> Iterator[tuple[int, int]]:
        """Yield (first, count) of pieces that end where chunks do."""
        step = max(map(self._count_in_chunk, range(2)))
        side = 0 if self._sides[0].chunk_bytes else 1
        dtype, chunk_bytes = self._dtypes[side], self._sides[side].chunk_bytes
        rest = self._sides[side].view.offset_bytes % chunk_bytes if chunk_bytes else 0
        lead = (chunk_bytes - rest) // dtype.block_bytes * dtype.block_elements if rest else 0
        step = max(step - step % self._whole, self._whole)
        return _ranges(elements, step, lead - lead % self._whole)

    def _count_in_chunk(self, side: int) -> int:
        dtype, size_bytes = self._dtypes[side], self._sides[side].chunk_bytes or DEFAULT_CHUNK_BYTES
        return size_bytes // dtype.block_bytes * dtype.block_elements

    def compare(self, number: int) -> int:
        """Compare one piece; return the bytes that it has on both sides."""
        first, count = self.pieces[number]
        ranges = [_range_of(dtype, first, count) for dtype in self._dtypes]
        read_old, read_new = self._open()
        old = read_old(*ranges[0])
        new = old if self._is_shared(*ranges[0]) else read_new(*ranges[1])
        self._parts[number] = [
            _Part(self._compare(old, new, at, length, first, row), is_whole=row > 0)
            for at, length, row in _cut_rows(first, count, self._row)
        ]
        with self._lock:
            self._left -= 1
            if not self._left:
                self._readers = None
                self.total = _join(chain.from_iterable(self._parts), self._row)
                self._parts = []
        return ranges[0][1] + ranges[1][1]

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
class _Part:
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


def _join(parts: Iterable[_Part], row: int) -> TensorStatistics:
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

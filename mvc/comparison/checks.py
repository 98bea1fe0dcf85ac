"""Pairs of tensors to the bit, or within a tolerance: which differ, where first, and by how much.

Only what has to be is read. Where the chunks of both sides are known, their ids are compared. Where one
side's are, the other is hashed. What then differs is read from both and compared element by element.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mvc.chunkstore.parallel import for_each
from mvc.dtypes import get_dtype
from mvc.errors import ReleasedError
from mvc.formats.manifest import DEFAULT_CHUNK_BYTES
from mvc.progress import report
from mvc.workspace.content import LiveChunk, cut_live, find_different

if TYPE_CHECKING:
    from mvc.comparison.pairs import TensorPair
    from mvc.numbers.deviation import Deviation, FirstDifference, Tolerance
    from mvc.workspace.tensors import ModelTensor

    Place = tuple[int, int, int, int]
    Chunks = LiveChunk[Place]

_PIECE_ELEMENTS = 1 << 20  # a multiple of every packed type's block


@dataclass(frozen=True, slots=True)
class TensorCheck:
    """One tensor that is not the same on both sides.

    Attributes:
        name: its name.
        status: ``modified``, ``missing`` (from the new side), ``extra`` (on it) or ``renamed`` (it has
            the same bits there, under ``name``).
        dtype: dtype on the new side, or on the old one if the tensor is missing.
        shape: shape on the same side.
        old_dtype: dtype on the old side, if it differs.
        old_shape: shape on the old side, if it differs.
        elements_total: elements of the tensor.
        elements_changed: elements that differ in a bit, or between two dtypes in value; None if the
            shape differs, or the dtype without a tolerance, if the dtype packs several elements into a
            block, or if content was released.
        bytes_changed: bytes that differ; None as above, but known for packed types.
        largest_difference: between two elements, as numbers; NaN if only one of them is a number;
            None if the elements are not numbers or were not compared.
        path: the file that it is in, on the same side as ``shape``.
        old_name: its name on the old side, if it differs.
        deviation: all that was measured; None if nothing was.
        is_within: whether every element is within the tolerance that was asked for.
    """

    name: str
    status: str
    dtype: str
    shape: tuple[int, ...]
    old_dtype: str | None = None
    old_shape: tuple[int, ...] | None = None
    elements_total: int = 0
    elements_changed: int | None = None
    bytes_changed: int | None = None
    largest_difference: float | None = None
    path: str = ""
    old_name: str | None = None
    deviation: Deviation | None = None
    is_within: bool = False

    @property
    def first(self) -> FirstDifference | None:
        """The first element that fails."""
        return None if self.deviation is None else self.deviation.first


@dataclass(frozen=True, slots=True, eq=False)
class _Both:
    """A tensor that both sides have in one shape."""

    old: ModelTensor
    new: ModelTensor

    @property
    def is_aligned(self) -> bool:
        """Whether both are at the same place in segments of one size, so that chunks compare."""
        old, new = self.old.view, self.new.view
        if self.old.segment.size_bytes != self.new.segment.size_bytes or old.dtype != new.dtype:
            return False
        return (old.offset_bytes, old.strides) == (new.offset_bytes, new.strides)

    @property
    def is_plain(self) -> bool:
        """Whether the numbers of chunks are places in the tensor, too."""
        return self.old.segment.is_plain and self.new.segment.is_plain

    @property
    def place(self) -> Place:
        """The two segments, which other tensors may share."""
        return id(self.old.source), self.old.start, id(self.new.source), self.new.start

    def cut(self) -> Iterator[Chunks]:
        """Yield the chunks of a side that has no ids, and what they are on the other side."""
        known, live = (self.old, self.new) if self.old.chunks is not None else (self.new, self.old)
        size_bytes, chunks = live.segment.size_bytes, known.chunks
        assert chunks is not None
        yield from cut_live(
            live.source, live.start, size_bytes, chunks, known.chunk_bytes, self.place
        )

    def compare_ids(self) -> set[int] | None:
        """Return the numbers of the chunks with different ids; None if the ids are unknown."""
        old, new = self.old, self.new
        if old.chunks is None or new.chunks is None or old.chunk_bytes != new.chunk_bytes:
            return None
        pairs = zip(old.chunks, new.chunks, strict=True)
        return {number for number, (one, other) in enumerate(pairs) if one != other}


def check_pairs(
    pairs: Sequence[TensorPair], *, tolerance: Tolerance | None = None, threads: int
) -> list[TensorCheck]:
    """Return the pairs that are not the same to the bit, in their order.

    With a tolerance dtypes may differ as well, and the values count; without, a pair of two dtypes is not
    looked into. ReleasedError: a tensor can only be compared by its content, which was released.
    """
    found: dict[int, TensorCheck] = {}
    both: dict[int, _Both] = {}
    for number, pair in enumerate(pairs):
        if pair.is_same and not pair.is_renamed:
            continue
        found[number] = _describe(pair)
        if _is_comparable(pair, tolerance):
            assert pair.old is not None
            assert pair.new is not None
            both[number] = _Both(pair.old, pair.new)
    wrong = _find_wrong_chunks(list(both.values()), threads)
    for number, one in both.items():
        chunks = wrong.get(one.place) if one.is_aligned else None
        check = _compare(one, chunks, found[number], tolerance, threads)
        del found[number]
        if check is not None:
            found[number] = check
    return [found[number] for number in range(len(pairs)) if number in found]


def _describe(pair: TensorPair) -> TensorCheck:
    shown, old, new = pair.shown, pair.old, pair.new
    check = TensorCheck(shown.name, "modified", shown.view.dtype, shown.view.shape, path=shown.path)
    if new is None:
        return replace(check, status="missing")
    if old is None:
        return replace(check, status="extra")
    if pair.is_renamed:
        return replace(check, status="renamed", old_name=old.name)
    return replace(
        check,
        old_dtype=None if old.view.dtype == new.view.dtype else old.view.dtype,
        old_shape=None if old.view.shape == new.view.shape else old.view.shape,
        elements_total=new.elements,
    )


def _is_comparable(pair: TensorPair, tolerance: Tolerance | None) -> bool:
    old, new = pair.old, pair.new
    if old is None or new is None or pair.is_renamed or old.view.shape != new.view.shape:
        return False
    if old.view.dtype == new.view.dtype:
        return True
    if tolerance is None:
        return False
    from mvc.numbers.elements import is_readable  # noqa: PLC0415  import cost

    return all(is_readable(get_dtype(side.view.dtype)) for side in (old, new))


def _find_wrong_chunks(pairs: Sequence[_Both], threads: int) -> dict[Place, set[int]]:
    """Return place → numbers of the chunks that differ, of all pairs whose chunks compare.

    Tensors may share a segment, which is then read once.
    """
    found: dict[Place, set[int]] = {}
    chunks: list[Chunks] = []
    for place, pair in {pair.place: pair for pair in pairs if pair.is_aligned}.items():
        by_ids = pair.compare_ids()
        if by_ids is not None:
            found[place] = by_ids
        elif pair.old.chunks is None and pair.new.chunks is None:
            continue  # both have to be read anyway
        else:
            found[place] = set()
            chunks += pair.cut()
    return found | find_different(chunks, threads=threads, progress=report)


def _compare(
    pair: _Both,
    wrong: set[int] | None,
    check: TensorCheck,
    tolerance: Tolerance | None,
    threads: int,
) -> TensorCheck | None:
    """Return what differs between two tensors of one shape, or None if all bits are the same."""
    if wrong is not None and not wrong:
        return None
    chunks = wrong if wrong is not None and pair.is_plain else None
    try:
        deviation = _measure(pair, chunks, tolerance, threads)
    except ReleasedError:
        if chunks is None:
            raise
        return check
    is_one_type = pair.old.view.dtype == pair.new.view.dtype
    if is_one_type and not deviation.bytes_changed:
        return None
    return replace(
        check,
        elements_changed=deviation.changed,
        bytes_changed=deviation.bytes_changed,
        largest_difference=deviation.largest,
        deviation=deviation,
        is_within=tolerance is not None and not deviation.beyond,
    )


def _measure(
    pair: _Both, chunks: set[int] | None, tolerance: Tolerance | None, threads: int
) -> Deviation:
    """Compare the elements of some chunks, or of all."""
    from mvc.numbers.deviation import Deviation, measure_deviation  # noqa: PLC0415  import cost

    kinds = (get_dtype(pair.old.view.dtype), get_dtype(pair.new.view.dtype))
    readers = (pair.old.open(), pair.new.open())
    total, lock = Deviation(), threading.Lock()

    def measure(elements: range, _: None) -> int:
        nonlocal total
        raw = [
            read(elements.start // kind.block_elements * kind.block_bytes,
                 len(elements) // kind.block_elements * kind.block_bytes)
            for read, kind in zip(readers, kinds, strict=True)
        ]  # fmt: skip
        found = measure_deviation(
            raw[0], kinds[0], raw[1], kinds[1], first_index=elements.start, tolerance=tolerance
        )
        with lock:
            total += found
        return sum(map(len, raw)) if is_counted else 0

    # What was hashed before was counted then.
    is_counted = pair.old.chunks is None and pair.new.chunks is None
    for_each(list(_cut(pair, chunks)), lambda: None, measure, threads=threads, progress=report)
    return total


def _cut(pair: _Both, chunks: set[int] | None) -> Iterator[range]:
    """Yield runs of whole elements, in order: those of some chunks, or all."""
    dtype, total = get_dtype(pair.old.view.dtype), pair.new.elements
    if chunks is None:
        step = _find_step(pair)
        yield from (range(at, min(at + step, total)) for at in range(0, total, step))
        return
    chunk_bytes = next(one.chunk_bytes for one in (pair.old, pair.new) if one.chunk_bytes)
    done = 0
    for number in sorted(chunks):
        # Blocks of packed types may lie across two chunks.
        first = number * chunk_bytes // dtype.block_bytes * dtype.block_elements
        last = math.ceil((number + 1) * chunk_bytes / dtype.block_bytes) * dtype.block_elements
        run = range(max(first, done), min(last, total))
        done = max(done, run.stop)
        if run:
            yield run


def _find_step(pair: _Both) -> int:
    """Return how many elements to read at once: whole chunks of the side that has the most."""
    steps = [
        (one.chunk_bytes or DEFAULT_CHUNK_BYTES) // kind.block_bytes * kind.block_elements
        for one in (pair.old, pair.new)
        for kind in (get_dtype(one.view.dtype),)
        if kind.block_elements == 1
    ]
    return max(steps, default=_PIECE_ELEMENTS) if len(steps) == 2 else _PIECE_ELEMENTS  # noqa: PLR2004  both sides

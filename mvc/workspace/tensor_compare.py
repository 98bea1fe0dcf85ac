"""Tensors of files against a commit's: equal to the bit, or how many elements differ by how much.

If a tensor is placed in its segment as the commit's is, its chunks are compared by hash. Only chunks
that differ, and tensors with another layout (transposed or sliced in a .pt file), are read from the
store.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mvc.chunkstore.parallel import for_each
from mvc.dtypes import count_elements, get_dtype, numpy_dtype
from mvc.errors import ReleasedError
from mvc.formats.layout import view_extent_bytes
from mvc.workspace.content import cut_live, find_different
from mvc.workspace.released import check_content
from mvc.workspace.tensors import StoredTensor, check_fits, in_order, read_tensor_into

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from mvc.dtypes import DType
    from mvc.formats.layout import Segment, TensorView
    from mvc.formats.manifest import Manifest, StoredSegment
    from mvc.ids import GitId
    from mvc.progress import ByteProgress
    from mvc.sources import ByteSource
    from mvc.workspace.content import LiveChunk
    from mvc.workspace.context import Context


_WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class TensorCheck:
    """One tensor that is not as in the commit.

    Attributes:
        name: its name.
        status: ``modified``, ``missing`` (from the file) or ``extra`` (in the file).
        dtype: dtype in the file, or in the commit if the tensor is missing.
        shape: shape on the same side.
        old_dtype: dtype in the commit, if it differs.
        old_shape: shape in the commit, if it differs.
        elements_total: elements of the tensor.
        elements_changed: elements that differ in a bit; None if dtype or shape differ, the dtype
            packs several elements into a block, or the commit's content was released.
        bytes_changed: bytes that differ; None as above, but known for packed types.
        largest_difference: between two elements, as numbers; NaN if only one of them is a number;
            None if the elements are not numbers or were not compared.
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


@dataclass(frozen=True, slots=True, eq=False)
class LiveTensor:
    """A tensor of an open file, and the segment it is in."""

    source: ByteSource
    segment: Segment
    view: TensorView


@dataclass(frozen=True, slots=True, eq=False)
class StoredVersion:
    """A checkpoint of a commit; ``blob`` is that of its manifest."""

    path: str
    blob: GitId
    commit: GitId
    manifest: Manifest


@dataclass(frozen=True, slots=True, eq=False)
class _Pair:
    """The same tensor on both sides."""

    live: LiveTensor
    view: TensorView
    stored: StoredSegment

    @property
    def is_aligned(self) -> bool:
        """Whether both are at the same place in their segments, so that chunks compare."""
        old, new = self.view, self.live.view
        if self.stored.segment.size_bytes != self.live.segment.size_bytes:
            return False
        return (old.offset_bytes, old.strides) == (new.offset_bytes, new.strides)

    @property
    def place(self) -> tuple[int, int, int]:
        """The two segments, which other tensors may share."""
        return id(self.live.source), self.live.segment.start, self.stored.segment.start

    def cut(self, chunk_bytes: int) -> Iterator[LiveChunk[tuple[int, int, int]]]:
        """Yield the chunks of the live segment, and what they should be."""
        live, stored = self.live.segment, self.stored
        return cut_live(
            self.live.source, live.start, live.size_bytes, stored.chunks, chunk_bytes, self.place
        )


def live_tensors(source: ByteSource, segments: Sequence[Segment]) -> dict[str, LiveTensor]:
    """Return name → place of the tensors of an open file."""
    return {
        view.name: LiveTensor(source, segment, view)
        for segment in segments
        for view in segment.tensors
    }


def compare_tensors(
    context: Context,
    version: StoredVersion,
    live: Mapping[str, LiveTensor],
    progress: ByteProgress = None,
) -> list[TensorCheck]:
    """Return the tensors of a checkpoint that are missing or differ in open files, in its order.

    The files may hold others too. A tensor with another layout can only be compared by its content,
    so a ReleasedError is raised if that was released.
    """
    found: dict[str, TensorCheck] = {}
    pairs: list[_Pair] = []
    for view, stored in version.manifest.tensors():
        tensor = live.get(view.name)
        if tensor is None:
            found[view.name] = TensorCheck(view.name, "missing", view.dtype, view.shape)
        elif (view.dtype, view.shape) != (tensor.view.dtype, tensor.view.shape):
            found[view.name] = _modified(view, tensor.view)
        else:
            pairs.append(_Pair(tensor, view, stored))
    # Tensors may share a segment, which is then read once.
    segments = {pair.place: pair for pair in pairs if pair.is_aligned}
    chunks = [
        chunk for pair in segments.values() for chunk in pair.cut(version.manifest.chunk_bytes)
    ]
    wrong = find_different(chunks, threads=context.store.threads, progress=progress)
    for pair in pairs:
        if not pair.is_aligned or wrong.get(pair.place):
            check = _compare_pair(context, version, pair, wrong.get(pair.place, set()))
            if check is not None:
                found[pair.view.name] = check
    return [found[view.name] for view, _ in version.manifest.tensors() if view.name in found]


def _modified(old: TensorView, new: TensorView) -> TensorCheck:
    return TensorCheck(
        new.name,
        "modified",
        new.dtype,
        new.shape,
        old_dtype=None if old.dtype == new.dtype else old.dtype,
        old_shape=None if old.shape == new.shape else old.shape,
        elements_total=count_elements(new.shape),
    )


def _compare_pair(
    context: Context, version: StoredVersion, pair: _Pair, wrong: set[int]
) -> TensorCheck | None:
    """Return what differs between two tensors of one kind, or None if all bits are the same."""
    chunk_bytes = version.manifest.chunk_bytes
    tensor = StoredTensor(version.path, pair.view, pair.stored, chunk_bytes)
    count = TensorDifference(get_dtype(pair.view.dtype))
    check = _modified(pair.view, pair.live.view)
    # A plain segment is one tensor, so the numbers of its chunks are places in the tensor.
    is_plain = pair.is_aligned and pair.stored.segment.is_plain
    try:
        check_content(context, [(version.path, version.blob)], commit=version.commit)
    except ReleasedError:
        if is_plain:
            return check
        raise
    numbers = sorted(wrong) if is_plain else range(-(-tensor.size_bytes // chunk_bytes))

    def read_stored(offset: int, part: memoryview) -> None:
        view = replace(
            tensor.view, dtype="U8", shape=(len(part),), offset_bytes=offset, strides=None
        )
        read_tensor_into(context, replace(tensor, view=view), part)

    def read_live(offset: int, part: memoryview) -> None:
        pair.live.source.read_into(pair.live.segment.start + offset, part)

    old = _reader(tensor, read_stored)
    new = _reader(replace(tensor, view=pair.live.view), read_live)

    def compare(number: int, _: None) -> int:
        start = number * chunk_bytes
        size = min(chunk_bytes, tensor.size_bytes - start)
        count.add(old(start, size), new(start, size))
        return size

    for_each(numbers, lambda: None, compare, threads=context.store.threads)
    if not count.bytes_changed:
        return None
    return replace(
        check,
        elements_changed=count.elements_changed,
        bytes_changed=count.bytes_changed,
        largest_difference=count.largest,
    )


class TensorDifference:
    """Counts how two runs of elements differ, piece by piece, from many threads."""

    def __init__(self, dtype: DType) -> None:
        self._dtype = dtype
        self._scalar = numpy_dtype(dtype)
        self._lock = threading.Lock()
        self.bytes_changed = 0
        self.elements_changed: int | None = 0 if dtype.block_elements == 1 else None
        self.largest: float | None = None if self._scalar is None else 0.0

    def add(self, old: NDArray[np.uint8], new: NDArray[np.uint8]) -> None:
        """Take the bytes of the same whole elements of both."""
        import numpy as np  # noqa: PLC0415  import cost

        size_bytes = int(np.count_nonzero(old != new))
        elements, largest = 0, 0.0
        if size_bytes and self._dtype.block_elements == 1:
            elements = _count_elements(old, new, self._dtype)
            if self._scalar is not None:
                largest = find_largest(old.view(self._scalar), new.view(self._scalar))
        with self._lock:
            self.bytes_changed += size_bytes
            if self.elements_changed is not None:
                self.elements_changed += elements
            if self.largest is not None and (math.isnan(largest) or largest > self.largest):
                self.largest = largest  # NaN wins: nothing compares greater


def _count_elements(old: NDArray[np.uint8], new: NDArray[np.uint8], dtype: DType) -> int:
    import numpy as np  # noqa: PLC0415  import cost

    word_bytes = min(dtype.block_bytes, _WORD_BYTES)
    differs = old.view(f"u{word_bytes}") != new.view(f"u{word_bytes}")
    if dtype.block_bytes > word_bytes:  # an element of two words
        differs = differs[0::2] | differs[1::2]
    return int(np.count_nonzero(differs))


def find_largest(old: NDArray[np.generic], new: NDArray[np.generic]) -> float:
    """Return the largest difference of two elements; NaN if only one of two is a number."""
    import numpy as np  # noqa: PLC0415  import cost

    if old.dtype.kind in "biu":
        words = f"u{old.dtype.itemsize}"
        high, low = (pick(old, new).view(words) for pick in (np.maximum, np.minimum))
        return float((high - low).max())  # exact: unsigned words wrap
    wide = np.complex128 if old.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        left, right = old.astype(wide), new.astype(wide)
        largest = float(np.abs(left - right).max())
        if math.isnan(largest):  # also from infinity minus itself, and NaN minus NaN
            differences = np.abs(left - right)
            differences[(left == right) | (np.isnan(left) & np.isnan(right))] = 0
            largest = float(differences.max())
    return largest


def _reader(
    tensor: StoredTensor, read_into: Callable[[int, memoryview], None]
) -> Callable[[int, int], NDArray[np.uint8]]:
    """Return a reader of a tensor's elements in C order, by offset and size in bytes.

    ``read_into`` fills a buffer from an offset of the segment. A strided tensor is read at once, and
    its elements are put in order in memory.
    """

    def read(start: int, size: int) -> NDArray[np.uint8]:
        import numpy as np  # noqa: PLC0415  import cost

        buffer = np.empty(size, np.uint8)
        read_into(tensor.view.offset_bytes + start, buffer.data)
        return buffer

    if tensor.view.strides is None:
        return read
    check_fits(tensor.path, tensor.view)
    flat = in_order(read(0, view_extent_bytes(tensor.view)), tensor.view)
    return lambda start, size: flat[start : start + size]

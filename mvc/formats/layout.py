"""Where the tensors of a file are: the vocabulary that all layers above share.

A file is a run of bytes. Some byte ranges of it are *segments* that carry tensors; all bytes
between them, in file order, form the *gap stream* (headers, zip directories, pickles, padding).
Segments and gaps together cover the file without holes, so writing both back restores the file
whatever its format. A parser only names byte ranges; it never has to rebuild them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mvc.dtypes import count_elements, get_dtype, size_in_bytes
from mvc.errors import FormatError


@dataclass(frozen=True, slots=True)
class TensorView:
    """One named array inside a segment.

    ``offset_bytes`` counts from the start of the segment; ``strides`` are in elements, None if
    C-contiguous.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int = 0
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """A byte range of the file that carries tensors; ``dtype`` is that of its words."""

    start: int
    size_bytes: int
    dtype: str
    tensors: tuple[TensorView, ...]

    @property
    def end(self) -> int:
        """First byte after the segment."""
        return self.start + self.size_bytes

    @property
    def is_plain(self) -> bool:
        """Whether the segment is exactly one C-contiguous tensor and nothing else."""
        if len(self.tensors) != 1:
            return False
        view = self.tensors[0]
        return (
            view.offset_bytes == 0
            and view.strides is None
            and view.dtype == self.dtype
            and size_in_bytes(get_dtype(view.dtype), view.shape) == self.size_bytes
        )


@dataclass(frozen=True, slots=True)
class FileLayout:
    """Where the tensors of one file are: segments that ascend and do not overlap.

    ``warning`` says why a file that looks like a checkpoint is treated as opaque, or only numbered.
    """

    format: str
    size_bytes: int
    segments: tuple[Segment, ...] = ()
    warning: str | None = None


def single_tensor(name: str, dtype: str, shape: Sequence[int], start: int) -> Segment:
    """Return the plain segment of one C-contiguous tensor."""
    shape = tuple(shape)
    size_bytes = size_in_bytes(get_dtype(dtype), shape)
    return Segment(start, size_bytes, dtype, (TensorView(name, dtype, shape),))


def find_gaps(size_bytes: int, segments: Sequence[Segment]) -> Iterator[tuple[int, int]]:
    """Yield (start, size) of every gap, ascending: what no segment covers."""
    position = 0
    for segment in segments:
        if segment.start > position:
            yield position, segment.start - position
        position = max(position, segment.end)
    if position < size_bytes:
        yield position, size_bytes - position


def check_layout(size_bytes: int, segments: Sequence[Segment]) -> None:
    """Check that segments are inside the file, ascend without overlap, and hold their views."""
    position = 0
    names: set[str] = set()
    for segment in segments:
        if not segment.tensors:
            raise FormatError(f"segment at {segment.start} carries no tensor")
        first = segment.tensors[0].name
        if segment.size_bytes < 0 or segment.start < position or segment.end > size_bytes:
            raise FormatError(
                f"tensor {first!r} at bytes {segment.start}..{segment.end} overlaps another "
                f"or is outside the file of {size_bytes} bytes"
            )
        position = segment.end
        get_dtype(segment.dtype)
        for view in segment.tensors:
            last = view.offset_bytes + view_extent_bytes(view)
            if view.offset_bytes < 0 or last > segment.size_bytes:
                raise FormatError(f"tensor {view.name!r} reaches outside its storage")
            if view.name in names:
                raise FormatError(f"tensor {view.name!r} is named twice")
            names.add(view.name)


def view_extent_bytes(view: TensorView) -> int:
    """Return the bytes from a view's first element to the end of its last one."""
    dtype = get_dtype(view.dtype)
    if view.strides is None:
        return size_in_bytes(dtype, view.shape)
    if len(view.strides) != len(view.shape) or any(stride < 0 for stride in view.strides):
        raise FormatError(f"tensor {view.name!r} has strides that do not fit its shape")
    if dtype.block_elements != 1:
        raise FormatError(f"tensor {view.name!r} of packed type {view.dtype} cannot be strided")
    if count_elements(view.shape) == 0:
        return 0
    reach = sum((dim - 1) * stride for dim, stride in zip(view.shape, view.strides, strict=True))
    return (reach + 1) * dtype.block_bytes

"""One tensor, wherever it is: in a stored file, in a plain one, in memory; and its bytes.

If a process has just a part of a tensor, only the chunks that the part meets are read, and each is
verified; all such reads go through ``read_runs``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from mvc.chunkstore.values import ReadRequest
from mvc.dtypes import count_elements, get_dtype, get_framework, numpy_dtype, size_in_bytes
from mvc.errors import CorruptionError, FormatError, StorageError, UnsupportedError
from mvc.formats.layout import Segment, TensorView, view_extent_bytes
from mvc.formats.manifest import Manifest, StoredSegment, tensor_id
from mvc.sources import ByteSource, read_bytes
from mvc.workspace.content import LiveChunk, find_different, name_run
from mvc.workspace.released import check_chunks

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mvc.ids import ChunkId, GitId, TensorId
    from mvc.numbers.boxes import PartRun, TensorPart
    from mvc.workspace.context import Context

    Reader = Callable[[int, int], NDArray[np.uint8]]


@dataclass(frozen=True, slots=True, eq=False)
class ModelTensor:
    """One tensor of a model.

    Attributes:
        path: the file it is in: of the repository, or as the user named it.
        view: its name, dtype and shape, and its place in the segment.
        segment: the run of bytes that it is in.
        source: where the segment is read.
        start: where in ``source`` the segment begins.
        chunks: ids of the segment's chunks; None in a file whose chunks are not known.
        chunk_bytes: where the segment is cut.
    """

    path: str
    view: TensorView
    segment: Segment
    source: ByteSource
    start: int
    chunks: tuple[ChunkId, ...] | None
    chunk_bytes: int

    @property
    def name(self) -> str:
        """Its key in the state dict."""
        return self.view.name

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements."""
        return size_in_bytes(get_dtype(self.view.dtype), self.view.shape)

    @property
    def elements(self) -> int:
        """Number of its elements."""
        return count_elements(self.view.shape)

    @property
    def id(self) -> TensorId | None:
        """Its identity (dtype, shape, bytes); None where it would have to be read for that."""
        if self.chunks is None:
            return None
        return tensor_id(self.view, StoredSegment(self.segment, self.chunks))

    def read(self, framework: str = "numpy") -> Any:
        """Return its values as a new array or torch tensor; packed types come as their bytes."""
        import numpy as np  # noqa: PLC0415  import cost

        make = find_maker(framework)
        check_fits(self.path, self.view)
        raw = np.empty(view_extent_bytes(self.view), np.uint8)  # a bytearray is zeroed first
        self.read_into(raw.data)
        return make(raw, self.view)

    def read_into(self, target: memoryview) -> None:
        """Fill a buffer with the bytes from its first element to its last."""
        if len(target) != view_extent_bytes(self.view):
            raise FormatError(f"tensor {self.name!r} does not have {len(target)} bytes")
        self.source.read_into(self.start + self.view.offset_bytes, target)

    def open(self) -> Reader:
        """Return a reader of its elements in C order, by offset and size in bytes.

        Many threads may use one. A strided tensor is read whole, here; all others piece by piece.
        """
        begin = self.start + self.view.offset_bytes

        def read(offset: int, size_bytes: int) -> NDArray[np.uint8]:
            import numpy as np  # noqa: PLC0415  import cost

            data = self.source.view(begin + offset, size_bytes)
            if data is not None:
                return np.frombuffer(data, np.uint8)
            buffer = np.empty(size_bytes, np.uint8)
            self.source.read_into(begin + offset, buffer.data)
            return buffer

        if self.view.strides is None:
            return read
        check_fits(self.path, self.view)
        flat = in_order(read(0, view_extent_bytes(self.view)), self.view)
        return lambda offset, size_bytes: flat[offset : offset + size_bytes]


class StoredSource(ByteSource):
    """One segment of a stored file; every byte was hashed when it is handed out."""

    def __init__(
        self,
        context: Context,
        version: tuple[str, GitId, GitId | None],
        stored: StoredSegment,
        chunk_bytes: int,
        command: str = "mvc checkout {}",
    ) -> None:
        self._context = context
        self._version = version  # path, blob of the manifest, commit
        self._stored = stored
        self._chunk_bytes = chunk_bytes
        self._command = command  # what a ReleasedError proposes

    @property
    def size_bytes(self) -> int:
        """Length of the segment."""
        return self._stored.segment.size_bytes

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer from that offset of the segment."""
        if offset < 0 or offset + len(buffer) > self.size_bytes:
            raise FormatError(f"{self._where()} ends before byte {offset + len(buffer):,}")
        try:
            self._read(offset, buffer)
        except CorruptionError:  # damaged, or released?
            path, blob, commit = self._version
            check_chunks(
                self._context,
                (path, blob),
                self._stored.chunks,
                commit=commit,
                command=self._command,
            )
            raise

    def _read(self, offset: int, buffer: memoryview) -> None:
        position, whole = offset, []
        while position < offset + len(buffer):
            number, inside = divmod(position, self._chunk_bytes)
            size = min(self._chunk_bytes, self.size_bytes - number * self._chunk_bytes)
            part = buffer[position - offset : position - offset + size - inside]
            chunk = self._stored.chunks[number]
            if len(part) == size:  # can be decoded in its place
                whole.append((chunk, part))
            else:
                plain = memoryview(bytearray(size))
                self._context.store.read_into(chunk, plain, context=self._where())
                part[:] = plain[inside : inside + len(part)]
            position += len(part)
        self._context.store.read_each(whole, context=self._where())

    def _where(self) -> str:
        return f"tensor {self._stored.segment.tensors[0].name!r} of {self._version[0]}"


def stored_tensors(
    context: Context, version: tuple[str, GitId, GitId | None], manifest: Manifest
) -> Iterator[ModelTensor]:
    """Yield the tensors of a stored file; ``version`` is its path, its blob and its commit."""
    for stored in manifest.segments:
        source = StoredSource(context, version, stored, manifest.chunk_bytes)
        yield from tensors_of(version[0], stored, source, 0, manifest.chunk_bytes)


def live_tensors(
    path: str, source: ByteSource, segments: Iterable[Segment]
) -> Iterator[ModelTensor]:
    """Yield the tensors of an open file, whatever the index knows of it."""
    for segment in segments:
        for view in segment.tensors:
            yield ModelTensor(path, view, segment, source, segment.start, None, 0)


def tensors_of(
    path: str, stored: StoredSegment, source: ByteSource, start: int, chunk_bytes: int
) -> Iterator[ModelTensor]:
    """Yield the tensors of a segment that begins at ``start`` of a source."""
    for view in stored.segment.tensors:
        yield ModelTensor(path, view, stored.segment, source, start, stored.chunks, chunk_bytes)


def check_fits(path: str, view: TensorView) -> None:
    """Check that a tensor's values fit into this machine's memory.

    A few stored bytes can stand for any number of elements (a repeated chunk, a stride of 0).
    """
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size_bytes = max(size_in_bytes(get_dtype(view.dtype), view.shape), view_extent_bytes(view))
    if size_bytes > memory_bytes:
        raise StorageError(
            f"tensor {view.name!r} of {path} has {size_bytes:,} bytes, "
            f"more than the memory of this machine",
            hint="check the file out instead: that takes no more memory than a few chunks",
        )


def in_order(raw: bytearray | NDArray[np.uint8], view: TensorView) -> NDArray[np.uint8]:
    """Return a tensor's elements in C order, as bytes, given the bytes that it spans."""
    import numpy as np  # noqa: PLC0415  import cost: commands that show no value never pay it

    flat, dtype = np.frombuffer(raw, np.uint8), get_dtype(view.dtype)
    if view.strides is None or not size_in_bytes(dtype, view.shape):
        return flat
    strides = tuple(stride * dtype.block_bytes for stride in view.strides)
    # Not as_strided: a stride that leaves the buffer must be an error.
    elements = np.ndarray(view.shape, f"V{dtype.block_bytes}", flat, 0, strides)
    return np.ascontiguousarray(elements).reshape(-1).view(np.uint8)


def find_maker(framework: str) -> Callable[[NDArray[np.uint8], TensorView], Any]:
    """Return what makes a new array or torch tensor of the bytes that a tensor spans."""
    if get_framework(framework) == "numpy":
        return _make_array
    try:
        from mvc.states.torch_arrays import make_tensor  # noqa: PLC0415  torch on demand
    except ImportError as error:
        raise UnsupportedError(
            "torch is not installed", hint='read it with framework="numpy"'
        ) from error
    return make_tensor


def _make_array(raw: NDArray[np.uint8], view: TensorView) -> NDArray[np.generic]:
    flat, scalar = in_order(raw, view), numpy_dtype(get_dtype(view.dtype))
    return flat if scalar is None else flat.view(scalar).reshape(view.shape)


Place: TypeAlias = "tuple[str, str]"
"""File and name of a tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredPiece:
    """A chunk of a stored tensor that a part meets."""

    path: str
    stored: StoredSegment
    run: PartRun


def read_runs(
    context: Context, runs: Sequence[StoredPiece], take: Callable[[int, memoryview], None]
) -> None:
    """Read chunks, each once; ``take`` is given the index of a run and its chunk.

    It is called from several threads at once, in any order, and the bytes are valid meanwhile.
    """
    requests = [
        ReadRequest(
            run.stored.chunks[run.run.number],
            run.run.size_bytes,
            index,
            name_run(run.stored.segment, run.path),
        )
        for index, run in enumerate(runs)
    ]
    context.store.read_many(requests, lambda request, plain: take(request.offset, plain))


def read_part(
    context: Context,
    tensor: ModelTensor,
    part: TensorPart,
    runs: Sequence[PartRun],
    target: memoryview,
) -> None:
    """Fill a buffer with a part of a stored tensor, given what it has of each chunk."""
    stored = StoredSegment(tensor.segment, tensor.chunks or ())

    def take(index: int, chunk: memoryview) -> None:
        run = runs[index]
        mine = target[run.part_offset : run.part_offset + run.part_bytes]
        part.take(run, chunk, mine)
        if not run.is_whole:
            context.digests.note((stored.chunks[run.number], part, run), mine)

    read_runs(context, [StoredPiece(tensor.path, stored, run) for run in runs], take)


@dataclass(frozen=True, slots=True, eq=False)
class LivePart:
    """A part of a tensor in memory, and the stored tensor it should be a part of."""

    source: ByteSource  # the bytes of the part
    part: TensorPart
    stored: StoredSegment
    chunk_bytes: int
    place: Place


def find_different_parts(
    context: Context, parts: Sequence[LivePart]
) -> tuple[dict[Place, set[int]], Counter[Place]]:
    """Return place → numbers of the chunks that differ, and how many chunks each part meets.

    A chunk that a part has whole is compared by its hash. So is what it has of others if it was read from
    there before; else what is stored is read.
    """
    import numpy as np  # noqa: PLC0415  import cost

    whole: list[LiveChunk[Place]] = []
    others: list[tuple[LivePart, StoredPiece]] = []
    totals: Counter[Place] = Counter()
    for live in parts:
        stored, place = live.stored, live.place
        for run in live.part.cut(live.chunk_bytes):
            totals[place] += 1
            digest: ChunkId | None = stored.chunks[run.number]
            if not run.is_whole:
                digest = context.digests.take((stored.chunks[run.number], live.part, run))
            if digest is None:
                others.append((live, StoredPiece(place[0], stored, run)))
                continue
            content = (live.source, run.part_offset, run.part_bytes)
            whole.append(LiveChunk(*content, digest, place, run.number))
    wrong = find_different(whole, threads=context.store.threads)

    def take(index: int, chunk: memoryview) -> None:
        live, piece = others[index]
        wanted = np.empty(piece.run.part_bytes, np.uint8)
        live.part.take(piece.run, chunk, wanted.data)
        content = read_bytes(live.source, piece.run.part_offset, piece.run.part_bytes)
        if not np.array_equal(wanted, np.frombuffer(content, np.uint8)):
            wrong.setdefault(live.place, set()).add(piece.run.number)

    read_runs(context, [piece for _, piece in others], take)
    return wrong, totals

"""One checkpoint at one version: canonical JSON Lines in a Git blob (docs/format.md, section 2).

One line per tensor, in file order, so that stock ``git diff`` shows which tensors changed. A
segment that is not exactly one C-contiguous tensor is a storage line and one line per view on it:

    {"mvc-manifest":1,"format":"safetensors","size":1096,"chunk_bytes":4194304,"gaps":["5f…"]}
    {"tensor":"w","dtype":"F32","shape":[16,16],"at":72,"chunks":["a1…"]}
    {"storage":"F32","at":1152,"size":1024,"chunks":["a1…"]}
    {"view":"w.T","dtype":"F32","shape":[16,16],"offset":0,"strides":[1,16]}

Equal manifests are equal bytes and so equal blob ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mvc.errors import FormatError
from mvc.formats.layout import Segment, TensorView, find_gaps
from mvc.ids import ChunkId, TensorId, hash_tensor

MANIFEST_PREFIX = b'{"mvc-manifest":'
VERSION = 1
DEFAULT_CHUNK_BYTES = 4 * 2**20
MIN_CHUNK_BYTES = 2**10
MAX_CHUNK_BYTES = 64 * 2**20
CHUNK_ALIGN_BYTES = 16
"""Chunk lengths are multiples of the widest element, so that no element is ever cut."""
MAX_MANIFEST_BYTES = 2**30
"""A petabyte file in 4 MiB chunks; anything longer is an attack on memory."""
MAX_FILE_BYTES = 2**62


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment of the file and the chunks that hold its bytes."""

    segment: Segment
    chunks: tuple[ChunkId, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """One file at one version.

    Each segment, and the gap stream, is cut at multiples of ``chunk_bytes`` from its own start.
    """

    format: str
    size_bytes: int
    chunk_bytes: int
    gaps: tuple[ChunkId, ...]
    segments: tuple[StoredSegment, ...] = ()

    def chunk_ids(self) -> Iterator[ChunkId]:
        """Yield every chunk id of the file, gaps first, repeated where the file repeats it."""
        yield from self.gaps
        for stored in self.segments:
            yield from stored.chunks

    def sized_chunks(self) -> Iterator[tuple[Segment | None, int, ChunkId, int]]:
        """Yield (segment, None for the gaps; offset in it; chunk; its bytes), as ``chunk_ids``."""
        for offset, chunk, size in cut_run(self.gap_bytes, self.gaps, self.chunk_bytes):
            yield None, offset, chunk, size
        for stored in self.segments:
            run = cut_run(stored.segment.size_bytes, stored.chunks, self.chunk_bytes)
            for offset, chunk, size in run:
                yield stored.segment, offset, chunk, size

    @property
    def tensors_total(self) -> int:
        """How many tensors have a name in the file."""
        return sum(len(stored.segment.tensors) for stored in self.segments)

    @property
    def gap_bytes(self) -> int:
        """Length of the gap stream."""
        return self.size_bytes - sum(stored.segment.size_bytes for stored in self.segments)

    def gap_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield (start, size) in the file of every gap."""
        return find_gaps(self.size_bytes, [stored.segment for stored in self.segments])

    def tensors(self) -> Iterator[tuple[TensorView, StoredSegment]]:
        """Yield every named tensor with the segment that carries it."""
        for stored in self.segments:
            for view in stored.segment.tensors:
                yield view, stored

    def tensors_by_name(self) -> dict[str, tuple[TensorView, StoredSegment]]:
        """Return name → the tensor and the segment that carries it."""
        return {view.name: (view, stored) for view, stored in self.tensors()}


def cut_sizes(size_bytes: int, chunk_bytes: int) -> list[int]:
    """Return the lengths of the chunks that a run of bytes is cut into."""
    whole, rest = divmod(size_bytes, chunk_bytes)
    return [chunk_bytes] * whole + ([rest] if rest else [])


def cut_run(
    size_bytes: int, chunks: Sequence[ChunkId], chunk_bytes: int
) -> Iterator[tuple[int, ChunkId, int]]:
    """Yield (offset, chunk, its bytes) of a run of bytes that is cut into chunks."""
    sizes = cut_sizes(size_bytes, chunk_bytes)
    return zip(range(0, size_bytes, chunk_bytes), chunks, sizes, strict=True)


def tensor_id(view: TensorView, stored: StoredSegment) -> TensorId:
    """Return the identity of a tensor: equal ids mean the same elements, bit for bit.

    A view that is not its whole segment also takes in where it is, so two views of one storage
    differ; it never equals a plain tensor even if the elements happen to agree.
    """
    if stored.segment.is_plain:
        return hash_tensor(view.dtype, view.shape, stored.chunks)
    strides = "c" if view.strides is None else ",".join(map(str, view.strides))
    place = f"{view.dtype}@{view.offset_bytes}:{strides}"
    return hash_tensor(place, view.shape, stored.chunks)


def is_manifest(data: bytes) -> bool:
    """Return whether a blob that begins with ``data`` is a manifest."""
    return data.startswith(MANIFEST_PREFIX)


def check_chunk_bytes(chunk_bytes: int) -> None:
    """Check that a chunk length is one that this format allows."""
    if not MIN_CHUNK_BYTES <= chunk_bytes <= MAX_CHUNK_BYTES or chunk_bytes % CHUNK_ALIGN_BYTES:
        raise FormatError(
            f"chunk length {chunk_bytes} is not a multiple of {CHUNK_ALIGN_BYTES} between "
            f"{MIN_CHUNK_BYTES} and {MAX_CHUNK_BYTES}"
        )

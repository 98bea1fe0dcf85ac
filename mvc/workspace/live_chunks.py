"""Bytes at hand against the chunks of a commit, by hash: nothing is read from the store.

The bytes are cut where the commit's were. A chunk id is the hash of the plain bytes, checked when
they were stored and whenever they leave the store, so equal ids mean equal bits.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from mvc.chunkstore.parallel import for_each
from mvc.formats.manifest import cut_sizes
from mvc.ids import hash_chunk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mvc.formats.manifest import Manifest
    from mvc.ids import ChunkId
    from mvc.progress import ByteProgress
    from mvc.sources import ByteSource

Place = TypeVar("Place", bound=Hashable)


@dataclass(frozen=True, slots=True, eq=False)
class LiveChunk(Generic[Place]):
    """A range of a source and the chunk it should equal: chunk ``number`` of a ``place``."""

    source: ByteSource
    offset: int
    size_bytes: int
    wanted: ChunkId
    place: Place
    number: int

    def differs(self, scratch: bytearray) -> bool:
        """Return whether the bytes are not those of the chunk; ``scratch`` grows as needed."""
        data = self.source.view(self.offset, self.size_bytes)
        if data is None:
            scratch.extend(bytes(max(0, self.size_bytes - len(scratch))))
            data = memoryview(scratch)[: self.size_bytes]
            self.source.read_into(self.offset, data)
        return hash_chunk(data) != self.wanted


def cut_live(
    source: ByteSource,
    start: int,
    size_bytes: int,
    chunks: Sequence[ChunkId],
    chunk_bytes: int,
    place: Place,
) -> Iterator[LiveChunk[Place]]:
    """Yield the chunks of one run of bytes that begins at ``start``."""
    offset = start
    sizes = cut_sizes(size_bytes, chunk_bytes)
    for number, (size, wanted) in enumerate(zip(sizes, chunks, strict=True)):
        yield LiveChunk(source, offset, size, wanted, place, number)
        offset += size


def cut_file(source: ByteSource, gaps: ByteSource, manifest: Manifest) -> Iterator[LiveChunk[int]]:
    """Yield all chunks of a file: those between tensors (place -1), then segment by segment."""
    size = manifest.chunk_bytes
    yield from cut_live(gaps, 0, manifest.gap_bytes, manifest.gaps, size, -1)
    for number, one in enumerate(manifest.segments):
        start, size_bytes = one.segment.start, one.segment.size_bytes
        yield from cut_live(source, start, size_bytes, one.chunks, size, number)


def all_same(chunks: Iterable[LiveChunk[Place]]) -> bool:
    """Return whether no chunk differs; stops at the first that does."""
    scratch = bytearray()
    return not any(chunk.differs(scratch) for chunk in chunks)


def find_different(
    chunks: Sequence[LiveChunk[Place]], *, threads: int, progress: ByteProgress = None
) -> dict[Place, set[int]]:
    """Return place → numbers of the chunks that differ; all are read, on many threads."""
    wrong: dict[Place, set[int]] = {}

    def compare(chunk: LiveChunk[Place], scratch: bytearray) -> int:
        if chunk.differs(scratch):
            wrong.setdefault(chunk.place, set()).add(chunk.number)
        return chunk.size_bytes

    for_each(chunks, bytearray, compare, threads=threads, progress=progress)
    return wrong

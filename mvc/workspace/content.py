"""The content of a stored file, read back: written to a file or compared with one.

Whole files are never held: what is in memory is chunks in flight. Bytes are compared by hash, cut
where the commit's were, and nothing is read from the store. A chunk id is the hash of the plain
bytes, checked when they were stored and whenever they leave the store, so equal ids mean equal bits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, TypeVar

from mvc.chunkstore.values import ReadRequest
from mvc.errors import (
    ConflictError,
    FormatError,
    StorageError,
    UnsupportedError,
    translate_os_errors,
)
from mvc.formats.manifest import Manifest, cut_run
from mvc.fs import DurableFile, FileStat, write_symlink
from mvc.history.values import MODE_EXECUTABLE, MODE_SYMLINK
from mvc.ids import ChunkId, GitId, hash_chunk
from mvc.progress import report
from mvc.sources import ByteSource, FileSource, read_bytes, split_buffer
from mvc.workspace.manifests import find_manifest
from mvc.workspace.worktree import git_mode, read_link

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.formats.layout import Segment
    from mvc.progress import ByteProgress
    from mvc.workspace.context import Context

_TICK_NS = 10_000_000  # file systems use the kernel's tick as their clock: 1 to 10 ms
Place = TypeVar("Place", bound=Hashable)


class GapStream(ByteSource):
    """The gaps of a file, (start, size) of each, one after another as one run of bytes.

    Without a source it only says where they are, for writing.
    """

    def __init__(self, gaps: Iterable[tuple[int, int]], source: ByteSource | None = None) -> None:
        self._gaps = list(gaps)
        self._source = source
        self._starts = [0, *accumulate(size for _, size in self._gaps)]

    @property
    def size_bytes(self) -> int:
        """Length of all gaps."""
        return self._starts[-1]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from that offset of the stream."""
        assert self._source is not None
        for start, part in self.split(offset, buffer):
            self._source.read_into(start, part)

    def split(self, offset: int, buffer: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Yield (offset in the file, part of the buffer) for a range of the stream."""
        for index, inside, part in split_buffer(self._starts, offset, buffer):
            yield self._gaps[index][0] + inside, part


def read_requests(manifest: Manifest, path: str) -> Iterator[ReadRequest]:
    """Yield what to read to restore a file.

    Tensor chunks have their place in the file as offset; chunks of the gap stream have
    -1 - their place in that stream.
    """
    for segment, offset, chunk, size in manifest.sized_chunks():
        place = -1 - offset if segment is None else segment.start + offset
        yield ReadRequest(chunk, size, place, name_run(segment, path))


def name_run(segment: Segment | None, path: str) -> str:
    """Return what messages call a segment of a file; None is for what is between them."""
    if segment is None:
        return f"{path} (bytes between tensors)"
    return f"tensor {segment.tensors[0].name!r} of {path}"


def write_content(
    context: Context, manifest: Manifest, path: str, write_at: Callable[[memoryview, int], None]
) -> None:
    """Write every byte of a stored file through ``write_at(bytes, offset)``, verified, any order."""
    gaps = GapStream(manifest.gap_ranges())

    def sink(request: ReadRequest, plain: memoryview) -> None:
        if request.offset >= 0:
            write_at(plain, request.offset)
            return
        for start, part in gaps.split(-1 - request.offset, plain):
            write_at(part, start)

    context.store.read_many(list(read_requests(manifest, path)), sink, report)


def stage_file(
    context: Context, path: str, mode: int, blob: GitId, folder: Path, *, synced: bool = True
) -> Path:
    """Write one version of a file to a durable temporary file in ``folder``; return its path.

    With ``synced=False`` the caller syncs the file, unless it is a link.
    """
    if mode == MODE_SYMLINK:
        return _stage_symlink(context, blob, folder)
    permissions = 0o755 if mode == MODE_EXECUTABLE else 0o644
    manifest = find_manifest(context, blob)
    with DurableFile(folder, mode=permissions) as file:
        if manifest is not None:
            with translate_os_errors(f"write {path}"):
                os.truncate(file.descriptor, manifest.size_bytes)
            write_content(context, manifest, path, file.write_at)
        else:
            data = context.history.read_blob(blob)
            file.write([data])
            report(len(data))
        return file.keep(synced=synced)


def _stage_symlink(context: Context, blob: GitId, folder: Path) -> Path:
    text = context.history.read_blob(blob)
    if not text or b"\0" in text:
        raise FormatError(f"link {blob} has an impossible text")
    with DurableFile(folder) as placeholder:
        staged = placeholder.keep()
    write_symlink(staged, text)
    return staged


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
    run = cut_run(size_bytes, chunks, chunk_bytes)
    for number, (offset, wanted, size) in enumerate(run):
        yield LiveChunk(source, start + offset, size, wanted, place, number)


def cut_file(source: ByteSource, gaps: ByteSource, manifest: Manifest) -> Iterator[LiveChunk[int]]:
    """Yield all chunks of a file: those between tensors (place -1), then segment by segment."""
    size = manifest.chunk_bytes
    yield from cut_live(gaps, 0, manifest.gap_bytes, manifest.gaps, size, -1)
    for number, stored in enumerate(manifest.segments):
        start, size_bytes = stored.segment.start, stored.segment.size_bytes
        yield from cut_live(source, start, size_bytes, stored.chunks, size, number)


def all_same(chunks: Iterable[LiveChunk[Place]]) -> bool:
    """Return whether no chunk differs; stops at the first that does."""
    scratch = bytearray()
    return not any(chunk.differs(scratch) for chunk in chunks)


def find_different(
    chunks: Sequence[LiveChunk[Place]], *, threads: int, progress: ByteProgress = None
) -> dict[Place, set[int]]:
    """Return place → numbers of the chunks that differ; all are read, on many threads."""
    from mvc.chunkstore.parallel import for_each  # noqa: PLC0415  a status needs no threads

    wrong: dict[Place, set[int]] = {}

    def compare(chunk: LiveChunk[Place], scratch: bytearray) -> int:
        if chunk.differs(scratch):
            wrong.setdefault(chunk.place, set()).add(chunk.number)
        return chunk.size_bytes

    for_each(chunks, bytearray, compare, threads=threads, progress=progress)
    return wrong


def let_tick_pass(stat: FileStat) -> None:
    """Wait until the clock tick in which a file was last changed is over.

    A second change within that tick might leave no trace in the stat data; from now on every
    change does, so comparing stat data after the reading is enough.
    """
    age_ns = time.time_ns() - stat.mtime_ns
    if 0 <= age_ns < _TICK_NS:
        time.sleep((_TICK_NS - age_ns) / 1e9)


@contextmanager
def open_source(absolute: Path, path: str) -> Iterator[FileSource]:
    """Open a file that was seen to be a regular one a moment ago."""
    with ExitStack() as stack:
        try:
            source = stack.enter_context(FileSource.open(absolute))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ConflictError(f"{path!r} was removed while it was read") from error
        except UnsupportedError as error:
            raise ConflictError(f"{path!r} was replaced while it was read") from error
        yield source


def content_matches(context: Context, path: str, stat: FileStat, mode: int, blob: GitId) -> bool:
    """Return whether a file of the worktree holds exactly the bytes of a blob, by reading it.

    False for a file that cannot be read or changes meanwhile: what it holds is not known.
    """
    if git_mode(stat) != mode:
        return False
    let_tick_pass(stat)
    try:
        return _holds_blob(context, path, mode, blob)
    except (ConflictError, StorageError, FileNotFoundError):
        return False


def _holds_blob(context: Context, path: str, mode: int, blob: GitId) -> bool:
    if mode == MODE_SYMLINK:
        return read_link(context.worktree, path) == context.history.read_blob(blob)
    with open_source(context.worktree / path, path) as source:
        manifest = find_manifest(context, blob)
        if manifest is None:
            if source.size_bytes != context.history.find_blob_size(blob):
                return False
            return read_bytes(source, 0, source.size_bytes) == context.history.read_blob(blob)
        if source.size_bytes != manifest.size_bytes:
            return False
        return all_same(cut_file(source, GapStream(manifest.gap_ranges(), source), manifest))

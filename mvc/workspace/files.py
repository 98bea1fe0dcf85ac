"""A user's file ⇄ what the history keeps of it: a plain blob, a link, or a manifest with chunks.

Both directions stream: ``store_file`` cuts the file into chunks and hands them to a chunk writer,
``restore_file`` writes verified chunks to their place in a temporary file. Neither ever holds more
than the chunks in flight.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import TYPE_CHECKING, TypeAlias

from mvc.checkpoints.detect import is_checkpoint_name, read_layout
from mvc.chunkstore.values import ChunkSpan, ReadRequest
from mvc.dtypes import get_dtype
from mvc.errors import (
    ConflictError,
    FormatError,
    NotFoundError,
    StorageError,
    UnsupportedError,
    translate_os_errors,
)
from mvc.formats.layout import FileLayout, find_gaps
from mvc.formats.manifest import (
    MANIFEST_PREFIX,
    MAX_MANIFEST_BYTES,
    Manifest,
    StoredSegment,
    cut_sizes,
    encode_manifest,
    is_manifest,
)
from mvc.fs import DurableFile, FileStat, write_symlink
from mvc.ids import hash_chunk, hash_git_blob
from mvc.sources import ByteSource, FileSource, MemorySource, read_bytes, split_buffer
from mvc.workspace.worktree import MODE_EXECUTABLE, MODE_SYMLINK, find_file_stat, git_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from mvc.chunkstore.store import ChunkWriter
    from mvc.formats.layout import Segment
    from mvc.ids import ChunkId, GitId
    from mvc.workspace.bases import Hint, Relatives
    from mvc.workspace.context import Context

PLAIN_FILE_MAX_BYTES = 2**20
"""Files up to this length that are no checkpoint are ordinary Git blobs."""
SeenLayout: TypeAlias = tuple[FileLayout, FileStat]
"""Where the tensors of a file lie, and its stat data before that was looked at."""
_TICK_NS = 10_000_000  # the clock of file systems is the kernel's tick, 1 to 10 ms


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file as the history keeps it.

    Attributes:
        path: repository path.
        mode: Git mode.
        blob: the plain blob, the link text, or the manifest.
        stat: stat data of the file while it was read.
        size_bytes: length of the file.
        manifest: how it is stored in chunks, or None for plain blobs and links.
        warning: why a file that looks like a checkpoint is stored as opaque bytes, or None.
    """

    path: str
    mode: int
    blob: GitId
    stat: FileStat
    size_bytes: int
    manifest: Manifest | None = None
    warning: str | None = None


class GapStream(ByteSource):
    """The gaps of a file, one after another, as one run of bytes."""

    def __init__(self, source: ByteSource, gaps: Sequence[tuple[int, int]]) -> None:
        self._source = source
        self._gaps = gaps
        self._starts = [0, *accumulate(size for _, size in gaps)]

    @property
    def size_bytes(self) -> int:
        """Length of all gaps."""
        return self._starts[-1]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from that offset of the stream."""
        for start, part in self.split(offset, buffer):
            self._source.read_into(start, part)

    def split(self, offset: int, buffer: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Yield (offset in the file, part of the buffer) for a range of the stream."""
        for index, inside, part in split_buffer(self._starts, offset, buffer):
            yield self._gaps[index][0] + inside, part


def store_file(
    context: Context,
    writer: ChunkWriter,
    path: str,
    progress: Callable[[int], None] | None = None,
    relatives: Relatives | None = None,
    seen: SeenLayout | None = None,
) -> StoredFile:
    """Store one file of the worktree; the blob is written, nothing refers to it yet.

    Args:
        context: the repository.
        writer: the session that stores its chunks.
        path: which file.
        progress: called with bytes read.
        relatives: knows what its tensors may resemble, or None.
        seen: what ``find_layout`` returned, where it was asked before.

    Raises:
        NotFoundError: nothing there.
        ConflictError: not a file or link, or it changed while it was read.
    """
    put_blob = context.history.write_blob
    return _take_file(context, path, writer, put_blob, progress, relatives, seen)


def hash_file(
    context: Context, path: str, progress: Callable[[int], None] | None = None
) -> StoredFile:
    """Return what ``store_file`` would, without storing anything.

    Raises:
        NotFoundError: nothing there.
        ConflictError: not a file or link, or it changed while it was read.
    """
    return _take_file(context, path, ChunkHasher(), hash_git_blob, progress)


class ChunkHasher:
    """Cuts and hashes like a chunk writer and keeps nothing."""

    def add(
        self,
        source: ByteSource,
        spans: Sequence[ChunkSpan],
        progress: Callable[[int], None] | None = None,
    ) -> list[ChunkId]:
        """Return the chunk ids of the spans."""
        ids: list[ChunkId] = []
        buffer = memoryview(bytearray(max((span.size_bytes for span in spans), default=0)))
        for span in spans:
            part = buffer[: span.size_bytes]
            source.read_into(span.offset, part)
            ids.append(hash_chunk(part))
            if progress is not None:
                progress(span.size_bytes)
        return ids


def _take_file(
    context: Context,
    path: str,
    writer: ChunkWriter | ChunkHasher,
    put_blob: Callable[[bytes], GitId],
    progress: Callable[[int], None] | None,
    relatives: Relatives | None = None,
    seen: SeenLayout | None = None,
) -> StoredFile:
    absolute = context.worktree / path
    stat = find_file_stat(context.worktree, path)
    if seen is not None:
        _check_unchanged(seen[1], stat, path)
    if stat is None:
        raise NotFoundError(f"path {path!r} does not exist")
    if stat.is_symlink:
        with translate_os_errors(f"read link {path}"):
            text = os.readlink(os.fsencode(absolute))
        if is_manifest(text):  # in a blob, it would be taken for one
            raise UnsupportedError(f"the text of link {path!r} cannot be stored")
        return StoredFile(path, MODE_SYMLINK, put_blob(text), stat, len(text))
    if not stat.is_regular:
        raise ConflictError(f"{path!r} is neither a file nor a link")
    _let_tick_pass(stat)
    with _open_source(absolute, path) as source:
        _check_unchanged(stat, source.stat, path)
        layout = read_layout(source, path.rpartition("/")[2]) if seen is None else seen[0]
        stored = _take_source(
            source,
            layout,
            path,
            context.chunk_bytes,
            writer,
            put_blob,
            progress=progress,
            relatives=relatives,
        )
    _check_unchanged(stat, find_file_stat(context.worktree, path), path)
    return stored


def _let_tick_pass(stat: FileStat) -> None:
    """Wait until the tick of the clock in which a file was last changed is over.

    A second change within that tick could leave no trace in the stat data; from now on every
    change does, so that comparing them after the reading is enough.
    """
    age_ns = time.time_ns() - stat.mtime_ns
    if 0 <= age_ns < _TICK_NS:
        time.sleep((_TICK_NS - age_ns) / 1e9)


@contextmanager
def _open_source(absolute: Path, path: str) -> Iterator[FileSource]:
    with ExitStack() as stack:
        try:
            source = stack.enter_context(FileSource.open(absolute))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ConflictError(f"{path!r} was removed while it was read") from error
        except UnsupportedError as error:  # it was a regular file a moment ago
            raise ConflictError(f"{path!r} was replaced while it was read") from error
        yield source


def _check_unchanged(before: FileStat, after: FileStat | None, path: str) -> None:
    if after != before:
        raise ConflictError(
            f"{path!r} changed while it was read", hint="add it again once nothing writes to it"
        )


def _take_source(
    source: FileSource,
    layout: FileLayout,
    path: str,
    chunk_bytes: int,
    writer: ChunkWriter | ChunkHasher,
    put_blob: Callable[[bytes], GitId],
    *,
    progress: Callable[[int], None] | None,
    relatives: Relatives | None,
) -> StoredFile:
    mode, stat, size_bytes = git_mode(source.stat), source.stat, source.size_bytes
    if _is_plain(source, layout, path):
        data = read_bytes(source, 0, size_bytes)
        if progress is not None:
            progress(size_bytes)
        return StoredFile(path, mode, put_blob(data), stat, size_bytes, None, layout.warning)
    manifest = store_chunks(
        writer, source, layout, chunk_bytes, progress, path=path, relatives=relatives
    )
    try:
        text = encode_manifest(manifest)
    except FormatError as error:
        warning = f"stored as opaque bytes: {error}"
        layout = FileLayout("opaque", size_bytes, (), warning)
        manifest = store_chunks(writer, source, layout, chunk_bytes)
        text = encode_manifest(manifest)
    return StoredFile(path, mode, put_blob(text), stat, size_bytes, manifest, layout.warning)


def _is_plain(source: ByteSource, layout: FileLayout, path: str) -> bool:
    """Tell whether a file is small and no checkpoint, and so an ordinary Git blob."""
    if layout.segments or source.size_bytes > PLAIN_FILE_MAX_BYTES:
        return False
    if is_checkpoint_name(path) and source.size_bytes:
        return False
    head = read_bytes(source, 0, min(len(MANIFEST_PREFIX), source.size_bytes))
    return not is_manifest(head)


def store_chunks(
    writer: ChunkWriter | ChunkHasher,
    source: ByteSource,
    layout: FileLayout,
    chunk_bytes: int,
    progress: Callable[[int], None] | None = None,
    *,
    path: str = "",
    relatives: Relatives | None = None,
) -> Manifest:
    """Cut a source into chunks, store what is new, and return its manifest.

    Args:
        writer: stores or only hashes them.
        source: the bytes.
        layout: where its tensors lie.
        chunk_bytes: where they are cut.
        progress: called with bytes done.
        path: of the file, for ``relatives``.
        relatives: knows what its tensors may resemble, or None.
    """
    gaps = GapStream(source, list(find_gaps(layout.size_bytes, layout.segments)))
    gap_sizes = cut_sizes(gaps.size_bytes, chunk_bytes)
    gap_spans = [ChunkSpan(index * chunk_bytes, size, None) for index, size in enumerate(gap_sizes)]
    gap_ids = tuple(writer.add(gaps, gap_spans, progress))
    stored: dict[Segment, tuple[ChunkId, ...]] = {}
    hints = {} if relatives is None else relatives.find_hints(path, layout)
    late: list[Segment] = []
    if relatives is not None:
        from mvc.workspace.bases import is_castable  # noqa: PLC0415  brings NumPy

        late = [segment for segment in layout.segments if is_castable(segment)]
    waiting = set(late)
    early = [segment for segment in layout.segments if segment not in waiting]
    stored |= _store_segments(writer, source, early, chunk_bytes, hints, progress)
    if relatives is not None:
        relatives.note_masters(path, stored)
        hints |= {one: relatives.find_master(one, source, hints[one]) for one in late}
        stored |= _store_segments(writer, source, late, chunk_bytes, hints, progress)
    segments = tuple(StoredSegment(segment, stored[segment]) for segment in layout.segments)
    return Manifest(layout.format, layout.size_bytes, chunk_bytes, gap_ids, segments)


def _store_segments(
    writer: ChunkWriter | ChunkHasher,
    source: ByteSource,
    segments: Sequence[Segment],
    chunk_bytes: int,
    hints: Mapping[Segment, Hint],
    progress: Callable[[int], None] | None,
) -> dict[Segment, tuple[ChunkId, ...]]:
    """Store the chunks of some segments and return their ids."""
    spans = [
        span
        for segment in segments
        for span in _cut_segment(segment, chunk_bytes, hints.get(segment))
    ]
    ids = iter(writer.add(source, spans, progress))
    return {
        segment: tuple(islice(ids, -(-segment.size_bytes // chunk_bytes))) for segment in segments
    }


def _cut_segment(segment: Segment, chunk_bytes: int, hint: Hint | None) -> Iterator[ChunkSpan]:
    dtype = get_dtype(segment.dtype)
    position = segment.start
    for number, size in enumerate(cut_sizes(segment.size_bytes, chunk_bytes)):
        if hint is None:
            yield ChunkSpan(position, size, dtype)
        else:
            base = hint.bases[number] if number < len(hint.bases) else None
            masters = hint.masters_of(number)
            yield ChunkSpan(position, size, dtype, base, masters, hint.cast, hint.group)
        position += size


def read_requests(manifest: Manifest, path: str) -> Iterator[ReadRequest]:
    """Yield what to read to restore a file.

    Tensor chunks have their place in the file as offset; chunks of the gap stream have
    -1 - their place in that stream.
    """
    position = 0
    for chunk, size in zip(
        manifest.gaps, cut_sizes(manifest.gap_bytes, manifest.chunk_bytes), strict=True
    ):
        yield ReadRequest(chunk, size, -1 - position, f"{path} (bytes between tensors)")
        position += size
    for stored in manifest.segments:
        position = stored.segment.start
        where = f"tensor {stored.segment.tensors[0].name!r} of {path}"
        sizes = cut_sizes(stored.segment.size_bytes, manifest.chunk_bytes)
        for chunk, size in zip(stored.chunks, sizes, strict=True):
            yield ReadRequest(chunk, size, position, where)
            position += size


def write_content(
    context: Context,
    manifest: Manifest,
    path: str,
    write_at: Callable[[memoryview, int], None],
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write every byte of a stored file through ``write_at(bytes, offset)``, verified, any order.

    Raises:
        CorruptionError: a chunk is missing or damaged; says which tensor and where.
    """
    gaps = GapStream(MemorySource(b""), list(manifest.gap_ranges()))

    def sink(request: ReadRequest, plain: memoryview) -> None:
        if request.offset >= 0:
            write_at(plain, request.offset)
            return
        for start, part in gaps.split(-1 - request.offset, plain):
            write_at(part, start)

    context.store.read_many(list(read_requests(manifest, path)), sink, progress)


def stage_file(
    context: Context,
    path: str,
    mode: int,
    blob: GitId,
    folder: Path,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Write one version of a file to a durable temporary file in ``folder``; return its path."""
    if mode == MODE_SYMLINK:
        return _stage_symlink(context, blob, folder)
    permissions = 0o755 if mode == MODE_EXECUTABLE else 0o644
    head = context.history.blob_prefix(blob, len(MANIFEST_PREFIX))
    with DurableFile(folder, mode=permissions) as file:
        if is_manifest(head):
            manifest = context.read_manifest(blob)
            with translate_os_errors(f"write {path}"):
                os.truncate(file.descriptor, manifest.size_bytes)
            write_content(context, manifest, path, file.write_at, progress)
        else:
            data = context.history.read_blob(blob)
            file.write([data])
            if progress is not None:
                progress(len(data))
        return file.keep()


def _stage_symlink(context: Context, blob: GitId, folder: Path) -> Path:
    text = context.history.read_blob(blob)
    if not text or b"\0" in text:
        raise FormatError(f"link {blob} has an impossible text")
    with DurableFile(folder) as placeholder:
        staged = placeholder.keep()
    write_symlink(staged, text)
    return staged


def content_matches(context: Context, path: str, stat: FileStat, mode: int, blob: GitId) -> bool:
    """Tell whether a file of the worktree holds exactly the bytes of a blob, by reading it.

    A file that cannot be read, or that changes meanwhile, does not: what is in it is not known.
    """
    if git_mode(stat) != mode:
        return False
    _let_tick_pass(stat)
    try:
        return _holds_blob(context, path, mode, blob)
    except (ConflictError, StorageError, FileNotFoundError):
        return False


def _holds_blob(context: Context, path: str, mode: int, blob: GitId) -> bool:
    absolute = context.worktree / path
    if mode == MODE_SYMLINK:
        with translate_os_errors(f"read link {path}"):
            text = os.readlink(os.fsencode(absolute))
        return text == context.history.read_blob(blob)
    with _open_source(absolute, path) as source:
        if not is_manifest(context.history.blob_prefix(blob, len(MANIFEST_PREFIX))):
            if source.size_bytes != context.history.find_blob_size(blob):
                return False
            return read_bytes(source, 0, source.size_bytes) == context.history.read_blob(blob)
        manifest = context.read_manifest(blob)
        return source.size_bytes == manifest.size_bytes and _chunks_match(source, manifest)


def _chunks_match(source: ByteSource, manifest: Manifest) -> bool:
    buffer = memoryview(bytearray(manifest.chunk_bytes))
    gaps = GapStream(source, list(manifest.gap_ranges()))
    for request in read_requests(manifest, ""):
        part = buffer[: request.plain_size_bytes]
        if request.offset < 0:
            gaps.read_into(-1 - request.offset, part)
        else:
            source.read_into(request.offset, part)
        if hash_chunk(part) != request.chunk_id:
            return False
    return True


def stored_size(context: Context, blob: GitId) -> int:
    """Return the length of the file that a blob stands for, in bytes."""
    head = context.history.blob_prefix(blob, 256)
    if is_manifest(head):
        return context.read_manifest(blob).size_bytes
    return context.history.find_blob_size(blob) or 0


def find_manifest(context: Context, blob: GitId) -> Manifest | None:
    """Return the manifest in a blob, or None where the blob is a plain file or link."""
    if not is_manifest(context.history.blob_prefix(blob, len(MANIFEST_PREFIX))):
        return None
    if (context.history.find_blob_size(blob) or 0) > MAX_MANIFEST_BYTES:
        raise FormatError(f"manifest {blob} is over the limit")
    return context.read_manifest(blob)


def find_layout(context: Context, path: str) -> SeenLayout | None:
    """Return where the tensors of a file of the worktree lie; None for what is no checkpoint."""
    stat = find_file_stat(context.worktree, path)
    if stat is None or not stat.is_regular or not is_checkpoint_name(path):
        return None
    _let_tick_pass(stat)
    try:
        with FileSource.open(context.worktree / path) as source:
            return read_layout(source, path.rpartition("/")[2]), stat
    except (StorageError, FileNotFoundError, UnsupportedError):
        return None  # who stores it will say so

"""A file of the worktree → what the history keeps of it: a plain blob, a link, or a manifest.

Files are streamed: one is cut into chunks that go to a chunk writer, and no more than the chunks in
flight is in memory. ``content`` is the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from mvc.checkpoints.detect import read_layout
from mvc.checkpoints.names import is_checkpoint_name
from mvc.chunkstore.values import ChunkSpan
from mvc.dtypes import get_dtype
from mvc.errors import ConflictError, FormatError, NotFoundError, StorageError, UnsupportedError
from mvc.formats.layout import FileLayout, Segment, find_gaps
from mvc.formats.manifest import MANIFEST_PREFIX, Manifest, StoredSegment, cut_sizes, is_manifest
from mvc.fs import FileStat, RealFolders
from mvc.history.values import MODE_SYMLINK
from mvc.ids import ChunkId, GitId, hash_chunk, hash_git_object
from mvc.progress import report, reporting
from mvc.sources import ByteSource, FileSource, MemorySource, read_bytes
from mvc.workspace.content import GapStream, let_tick_pass, open_source
from mvc.workspace.worktree import find_file_stat, git_mode, read_link

if TYPE_CHECKING:
    from mvc.chunkstore.writer import ChunkWriter
    from mvc.workspace.bases import Hint, Relatives
    from mvc.workspace.context import Context
    from mvc.workspace.measuring import SessionHealth

PLAIN_FILE_MAX_BYTES = 2**20
"""Files up to this length that are not checkpoints are ordinary Git blobs."""
SeenLayout: TypeAlias = tuple[FileLayout, FileStat]
"""Where the tensors of a file are, and its stat data before that was looked at."""


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


def store_file(
    context: Context,
    path: str,
    open_cutter: Callable[[], Cutter],
    seen: SeenLayout | None = None,
    folders: RealFolders | None = None,
) -> StoredFile:
    """Store one file of the worktree; its blob is written, but nothing refers to it yet.

    ``open_cutter`` is asked if the file goes into chunks. ``seen`` is what ``find_layout`` returned
    earlier; the file must not have changed since.
    """
    put_blob = context.history.write_blob
    return _take_file(context, path, open_cutter, put_blob, seen, folders)


def hash_file(context: Context, path: str) -> StoredFile:
    """Return what ``store_file`` would, without storing anything."""
    cutter = Cutter(ChunkHasher(), context.chunk_bytes)
    return _take_file(context, path, lambda: cutter, partial(hash_git_object, "blob"))


class ChunkHasher:
    """Cuts and hashes like a chunk writer and keeps nothing."""

    def add(self, source: ByteSource, spans: Sequence[ChunkSpan]) -> list[ChunkId]:
        """Return the chunk ids of the spans."""
        ids: list[ChunkId] = []
        buffer = memoryview(bytearray(max((span.size_bytes for span in spans), default=0)))
        for span in spans:
            part = buffer[: span.size_bytes]
            source.read_into(span.offset, part)
            ids.append(hash_chunk(part))
            report(span.size_bytes)
        return ids


def _take_file(
    context: Context,
    path: str,
    open_cutter: Callable[[], Cutter],
    put_blob: Callable[[bytes], GitId],
    seen: SeenLayout | None = None,
    folders: RealFolders | None = None,
) -> StoredFile:
    stat = find_file_stat(context.worktree, path, folders)
    if seen is not None:
        _check_unchanged(seen[1], stat, path)
    if stat is None:
        raise NotFoundError(f"path {path!r} does not exist")
    if stat.is_symlink:
        text = read_link(context.worktree, path)
        if is_manifest(text):  # its blob would be taken for one
            raise UnsupportedError(f"the text of link {path!r} cannot be stored")
        return StoredFile(path, MODE_SYMLINK, put_blob(text), stat, len(text))
    if not stat.is_regular:
        raise ConflictError(f"{path!r} is neither a file nor a link")
    let_tick_pass(stat)
    with open_source(context.worktree / path, path) as file:
        _check_unchanged(stat, file.stat, path)
        source: ByteSource = file
        if file.size_bytes <= PLAIN_FILE_MAX_BYTES and not is_checkpoint_name(path):
            # It will be an ordinary blob: it is read once, not in parts.
            source = MemorySource(read_bytes(file, 0, file.size_bytes))
        layout = read_layout(source, path.rpartition("/")[2]) if seen is None else seen[0]
        data, manifest, warning = _take_content(source, layout, path, open_cutter)
        blob = put_blob(data)
        if manifest is not None:
            open_cutter().finish(blob)
        stored = StoredFile(path, git_mode(stat), blob, stat, source.size_bytes, manifest, warning)
    # A pass over many files looks at them all once more at its end, see check_reached; for a large
    # one, it is worth another look to say so at once.
    if folders is None or manifest is not None:
        _check_unchanged(stat, find_file_stat(context.worktree, path, folders), path)
    return stored


def check_reached(context: Context, stored: Iterable[StoredFile]) -> None:
    """Check that files are what was read, and beyond no folder that became a link; or ConflictError."""
    folders = RealFolders(context.worktree)
    for file in stored:
        _check_unchanged(file.stat, find_file_stat(context.worktree, file.path, folders), file.path)


def _check_unchanged(before: FileStat, after: FileStat | None, path: str) -> None:
    if after != before:
        raise ConflictError(
            f"{path!r} changed while it was read", hint="add it again once nothing writes to it"
        )


def _take_content(
    source: ByteSource, layout: FileLayout, path: str, open_cutter: Callable[[], Cutter]
) -> tuple[bytes, Manifest | None, str | None]:
    """Return the bytes of the blob to write, the manifest if they are one, and a warning."""
    if is_plain(source, layout, path):
        data = read_bytes(source, 0, source.size_bytes)
        report(len(data))
        return data, None, layout.warning
    from mvc.formats.manifest_lines import encode_manifest  # noqa: PLC0415  plain files need none

    cutter = open_cutter()
    manifest = cutter.store(source, layout, path)
    try:
        return encode_manifest(manifest), manifest, layout.warning
    except FormatError as error:
        warning = f"stored as opaque bytes: {error.message}"
        layout = FileLayout("opaque", source.size_bytes, (), warning)
        cutter = Cutter(cutter.writer, cutter.chunk_bytes, health=cutter.health)
        with reporting(None):  # its bytes were counted
            manifest = cutter.store(source, layout, path)
        return encode_manifest(manifest), manifest, warning


def is_plain(source: ByteSource, layout: FileLayout, path: str) -> bool:
    """Return whether a file is small and not a checkpoint, and so an ordinary Git blob."""
    if layout.segments or source.size_bytes > PLAIN_FILE_MAX_BYTES:
        return False
    if is_checkpoint_name(path) and source.size_bytes:
        return False
    head = read_bytes(source, 0, min(len(MANIFEST_PREFIX), source.size_bytes))
    return not is_manifest(head)


@dataclass(frozen=True, slots=True)
class Cutter:
    """Cuts sources into chunks and hands them to a writer, which stores or only hashes them."""

    writer: ChunkWriter | ChunkHasher
    chunk_bytes: int
    relatives: Relatives | None = None
    health: SessionHealth | None = None

    def store(self, source: ByteSource, layout: FileLayout, path: str) -> Manifest:
        """Store what is new of a file; fp32 tensors come before those that may be rounded."""
        gap_ids = self.store_gaps(source, layout)
        if self.health is not None:
            self.health.begin()
        relatives = self.relatives
        if relatives is None:
            stored = self._store_segments(source, layout.segments, {})
        else:
            hints = relatives.find_hints(path, layout)
            early, late = relatives.split(layout.segments)
            stored = self._store_segments(source, early, hints)
            relatives.note_masters(path, stored)
            hints |= {
                segment: relatives.find_master(segment, source, hints[segment]) for segment in late
            }
            stored |= self._store_segments(source, late, hints)
        segments = tuple(StoredSegment(segment, stored[segment]) for segment in layout.segments)
        return Manifest(layout.format, layout.size_bytes, self.chunk_bytes, gap_ids, segments)

    def store_gaps(self, source: ByteSource, layout: FileLayout) -> tuple[ChunkId, ...]:
        """Store what is around the tensors of a file; return its chunks."""
        gaps = GapStream(find_gaps(layout.size_bytes, layout.segments), source)
        sizes = cut_sizes(gaps.size_bytes, self.chunk_bytes)
        spans = [
            ChunkSpan(place * self.chunk_bytes, size, None) for place, size in enumerate(sizes)
        ]
        return tuple(self.writer.add(gaps, spans))

    def _store_segments(
        self, source: ByteSource, segments: Sequence[Segment], hints: Mapping[Segment, Hint]
    ) -> dict[Segment, tuple[ChunkId, ...]]:
        """Store the chunks of some segments and return their ids."""
        spans = [
            span
            for segment in segments
            for span in cut_segment(segment, self.chunk_bytes, hints.get(segment))
        ]
        found = self.writer.add(source, spans)
        if self.health is not None:
            self.health.note(source, spans, found)
        counts = {segment: -(-segment.size_bytes // self.chunk_bytes) for segment in segments}
        ids = iter(found)
        return {one: tuple(islice(ids, count)) for one, count in counts.items()}

    def finish(self, blob: GitId) -> None:
        """End with a file whose manifest is now in a blob."""
        if self.health is not None:
            self.health.finish(blob)


def cut_segment(
    segment: Segment, chunk_bytes: int, hint: Hint | None = None
) -> Iterator[ChunkSpan]:
    """Yield the chunks that a segment is cut into, with what each may resemble."""
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


def find_layout(
    context: Context, path: str, folders: RealFolders | None = None
) -> SeenLayout | None:
    """Return where the tensors of a file of the worktree are.

    None if it is not a checkpoint, or cannot be read: storing it will report why.
    """
    is_named = is_checkpoint_name(path)
    stat = find_file_stat(context.worktree, path, folders) if is_named else None
    if stat is None or not stat.is_regular:
        return None
    let_tick_pass(stat)
    try:
        with FileSource.open(context.worktree / path) as source:
            return read_layout(source, path.rpartition("/")[2]), stat
    except (StorageError, FileNotFoundError, UnsupportedError):
        return None

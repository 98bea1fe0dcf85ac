"""Measuring the health of files: while they are stored, or later where it is not known.

Large chunks are kept by id and type, so that none is measured twice; small ones are measured every
time, see ``mvc.chunkstore.measuring``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mvc.checkpoints.detect import read_layout
from mvc.chunkstore.measuring import SMALL_BYTES, is_measured, measure_plain
from mvc.dtypes import get_dtype
from mvc.errors import MvcError
from mvc.formats.manifest import Manifest, StoredSegment, cut_sizes
from mvc.numbers.figures import Health
from mvc.sources import ByteSource, FileSource
from mvc.workspace.manifests import find_manifest

if TYPE_CHECKING:
    from mvc.chunkstore.values import ChunkSpan
    from mvc.chunkstore.writer import ChunkWriter
    from mvc.ids import ChunkId, GitId
    from mvc.workspace.context import Context
    from mvc.workspace.kept import ChunkKey


class SessionHealth:
    """The health of the files that one write session stores."""

    def __init__(self, context: Context, writer: ChunkWriter) -> None:
        self._context = context
        self._writer = writer
        self._total = Health()
        self._measured: dict[ChunkKey, Health] = {}
        self._files: dict[GitId, Health] = {}

    @property
    def total(self) -> Health:
        """The health of the chunks of the file so far."""
        return self._total

    def begin(self) -> None:
        """Begin with a file."""
        self._writer.take_small_health()
        self._total = Health()

    def note(self, source: ByteSource, spans: Sequence[ChunkSpan], ids: Sequence[ChunkId]) -> None:
        """Count chunks of the file that the session has just taken from a source."""
        missing: dict[ChunkKey, ChunkSpan] = {}
        known: list[ChunkKey] = []
        for span, chunk in zip(spans, ids, strict=True):
            if span.size_bytes >= SMALL_BYTES and is_measured(span.dtype, span.size_bytes):
                assert span.dtype is not None
                known.append((chunk, span.dtype.name))
                if known[-1] not in self._writer.health:
                    missing[known[-1]] = span
        chunk_health = self._context.kept.find_chunk_health(missing)
        for key, span in missing.items():
            if (
                key not in chunk_health
            ):  # stored by an mvc that did not measure, or the cache was lost
                assert span.dtype is not None
                plain = memoryview(bytearray(span.size_bytes))
                source.read_into(span.offset, plain)
                self._measured[key] = chunk_health[key] = measure_plain(plain, span.dtype)
        chunk_health |= {
            key: self._writer.health[key] for key in known if key in self._writer.health
        }
        self._total += sum((chunk_health[key] for key in known), self._writer.take_small_health())

    def finish(self, blob: GitId) -> None:
        """End with a file, now that its blob is written."""
        self._files[blob] = self._total

    def keep(self) -> None:
        """Keep what the session found."""
        self._context.kept.keep_chunk_health(self._writer.health | self._measured)
        self._context.kept.keep_file_health(self._files)


def measure_file(context: Context, blob: GitId, limit_bytes: int | None) -> Health | None:
    """Return the health of a stored file; None if that takes reading more than ``limit_bytes``.

    A file that holds no tensor has no elements; one that is damaged or released is not known.
    """
    try:
        manifest = find_manifest(context, blob)
        if manifest is None:
            return Health()
        segments = measure_segments(context, manifest, limit_bytes)
    except MvcError:
        return None
    if segments is None:
        return None
    total = sum((health for _, health in segments), Health())
    context.kept.keep_file_health({blob: total})
    return total


def measure_segments(
    context: Context, manifest: Manifest, limit_bytes: int | None = None
) -> list[tuple[StoredSegment, Health]] | None:
    """Return the health of every segment, or None if it takes reading more than ``limit_bytes``."""
    chunks: list[list[tuple[ChunkKey, int]]] = []
    for stored in manifest.segments:
        dtype, cuts = (
            stored.segment.dtype,
            cut_sizes(stored.segment.size_bytes, manifest.chunk_bytes),
        )
        pairs = zip(stored.chunks, cuts, strict=True)
        measured = [(chunk, size) for chunk, size in pairs if is_measured(get_dtype(dtype), size)]
        chunks.append([((chunk, dtype), size) for chunk, size in measured])
    sizes = {key: size for row in chunks for key, size in row}
    large = (key for key, size in sizes.items() if size >= SMALL_BYTES)
    chunk_health = context.kept.find_chunk_health(large)
    missing = {key: size for key, size in sizes.items() if key not in chunk_health}
    if limit_bytes is not None and sum(missing.values()) > limit_bytes:
        return None
    new: dict[ChunkKey, Health] = {}
    for (chunk, name), size in missing.items():
        plain = memoryview(bytearray(size))
        context.store.read_into(chunk, plain)
        new[chunk, name] = measure_plain(plain, get_dtype(name))
    context.kept.keep_chunk_health({key: new[key] for key in new if sizes[key] >= SMALL_BYTES})
    chunk_health |= new
    return [
        (stored, sum((chunk_health[key] for key, _ in row), Health()))
        for stored, row in zip(manifest.segments, chunks, strict=True)
    ]


def measure_tensors(context: Context, blob: GitId) -> list[tuple[str, Health]]:
    """Return name → health of the segments of a stored file."""
    manifest = find_manifest(context, blob)
    rows = None if manifest is None else measure_segments(context, manifest)
    return [(stored.segment.tensors[0].name, health) for stored, health in rows or ()]


def measure_worktree(context: Context, path: str) -> list[tuple[str, Health]]:
    """Return the same of a file of the worktree, by reading it."""
    rows: list[tuple[str, Health]] = []
    with FileSource.open(context.worktree / path) as source:
        for segment in read_layout(source, path).segments:
            dtype, position, total = get_dtype(segment.dtype), segment.start, Health()
            for size in cut_sizes(segment.size_bytes, context.chunk_bytes):
                if is_measured(dtype, size):
                    plain = memoryview(bytearray(size))
                    source.read_into(position, plain)
                    total += measure_plain(plain, dtype)
                position += size
            rows.append((segment.tensors[0].name, total))
    return rows

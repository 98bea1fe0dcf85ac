"""Spans grouped into tasks: one large chunk, or a run of small ones.

A model may have 40,000 tensors of a kilobyte. Handing each to a thread, reading each with its own
call and looking each up alone would cost many times what hashing it costs, so consecutive small
spans travel together, and those that are neighbours in the source are read in one go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import UsageError
from mvc.formats.pack import MAX_PLAIN_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mvc.chunkstore.chains import Buffers
    from mvc.chunkstore.values import ChunkSpan
    from mvc.sources import ByteSource

BATCH_BYTES = 2**20
BATCH_SPANS = 4096


@dataclass(frozen=True, slots=True)
class SpanBatch:
    """Consecutive spans; ``first`` is the number of the first one in its write session."""

    first: int
    spans: Sequence[ChunkSpan]
    size_bytes: int


def plan_batches(spans: Sequence[ChunkSpan], first: int) -> Iterator[SpanBatch]:
    """Yield spans in their order, small ones together; ``first`` is the number of the first span."""
    start = 0
    size_bytes = 0
    for i, span in enumerate(spans):
        if not 0 <= span.size_bytes <= MAX_PLAIN_BYTES or span.offset < 0:
            raise UsageError(
                f"chunk of {span.size_bytes:,} bytes at {span.offset:,} cannot be stored",
                hint=f"a chunk has at most {MAX_PLAIN_BYTES:,} bytes",
            )
        if i > start and (size_bytes + span.size_bytes > BATCH_BYTES or i - start == BATCH_SPANS):
            yield SpanBatch(first + start, spans[start:i], size_bytes)
            start, size_bytes = i, 0
        size_bytes += span.size_bytes
    if start < len(spans):
        yield SpanBatch(first + start, spans[start:], size_bytes)


def read_batch(source: ByteSource, batch: SpanBatch, buffers: Buffers) -> list[memoryview]:
    """Return the plain bytes of every span, as views of a buffer or of the source itself."""
    seen = _view_all(source, batch.spans)
    if seen is not None:
        return seen
    buffer = buffers.buffer("plain", batch.size_bytes)
    plains: list[memoryview] = []
    position = 0
    for span in batch.spans:
        plains.append(buffer[position : position + span.size_bytes])
        position += span.size_bytes
    position = 0
    for offset, size_bytes in _find_runs(batch.spans):
        source.read_into(offset, buffer[position : position + size_bytes])
        position += size_bytes
    return plains


def _view_all(source: ByteSource, spans: Sequence[ChunkSpan]) -> list[memoryview] | None:
    views: list[memoryview] = []
    for span in spans:
        seen = source.view(span.offset, span.size_bytes)
        if seen is None:
            return None
        views.append(seen.cast("B"))
    return views


def _find_runs(spans: Sequence[ChunkSpan]) -> Iterator[tuple[int, int]]:
    """Yield (offset, size) of the source ranges that spans cover, neighbours merged."""
    start = end = spans[0].offset
    for span in spans:
        if span.offset != end:
            if end > start:
                yield start, end - start
            start = span.offset
        end = span.offset + span.size_bytes
    if end > start:
        yield start, end - start

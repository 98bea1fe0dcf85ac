"""Plain bytes → chunks in packs: the pipeline that add and commit live on.

The caller's thread deals out batches of spans and writes what comes back; worker threads do the
rest: read, hash, ask "have it?", encode. Everything in a worker that takes time runs without
the interpreter lock. Results are written strictly in the order of the spans, so the same input
makes byte-identical packs whatever the threads do, and a pack is filled by one thread only.

Two identical chunks may be on the way at once. Each worker claims an id with the sequence number
of its span; the smallest number wins, so that the first occurrence is the one that is stored. A
worker that finds a smaller claim does not encode; a result whose claim was taken over is dropped
when its turn to be written comes, at which point no smaller claim can appear any more.

Encoded chunks are views of the worker's scratch memory. So the unit of memory is a *slot* (plain
buffer and scratch), handed out with a batch and free again when the batch is written; there
are two more than workers, for results that wait for their turn.

A model may have 40,000 tensors of a kilobyte. Handing each to a thread, reading each with its own
call and looking each up alone would cost many times what hashing it costs, so consecutive small
spans travel together, and those that are neighbours in the source are read in one go.

A session that failed once accepts nothing more: claims of chunks that were never written would
make it drop data.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mvc.chunkstore.listing import PACKS
from mvc.chunkstore.measuring import BatchHealth, measure_batch
from mvc.chunkstore.pack_writer import EncodedRecord, NewPack, PackPublisher
from mvc.chunkstore.parallel import NiceThreads, interrupts_held
from mvc.chunkstore.relatives import DeltaMode, EncodeSlot, RelativeEncoder
from mvc.chunkstore.values import ChunkSpan, WriteCounts
from mvc.errors import MvcError, StorageError, UsageError
from mvc.formats.pack import MAX_PLAIN_BYTES
from mvc.ids import ChunkId, PackId, hash_chunk
from mvc.numbers.figures import Health
from mvc.progress import report

if TYPE_CHECKING:
    from typing import Self

    from mvc.chunkstore.chains import Buffers
    from mvc.chunkstore.reader import ChunkReader
    from mvc.sources import ByteSource

_SPARE_SLOTS = 2
BATCH_BYTES = 2**20
BATCH_SPANS = 4096


@dataclass(frozen=True, slots=True)
class SpanBatch:
    """One span of any size, or consecutive ones of at most ``BATCH_BYTES``, from ``first`` on."""

    first: int
    spans: Sequence[ChunkSpan]
    size_bytes: int


@dataclass(slots=True)
class _Encoded:
    """A batch after a worker: all ids, and records of those chunks that seemed new."""

    batch: SpanBatch
    slot: EncodeSlot
    ids: list[ChunkId]
    records: list[tuple[int, EncodedRecord]] = field(default_factory=list)
    health: BatchHealth | None = None


class ChunkWriter:
    """One write session, for one thread; use it as a context manager.

    A ``rewrite`` session stores also what the store has: this is how gc and repack move chunks.

    When the block ends normally, everything added is durable and visible. When it ends with an
    exception, what is not yet published is forgotten; packs that were full earlier stay, as garbage
    that gc removes. After Ctrl-C all that was written stays, so that adding the same again goes on
    from there. ``counts`` and ``packs`` are complete after ``close``.

    ``at_hand`` are chunks that spans may be based on and whose plain bytes can be read from a
    source as well, with their offset there; to be filled before ``add``.

    A session that is to ``measure`` notes the ``health`` of float chunks while their bytes are hot: of
    large ones that it stores each by itself, of all small ones, stored or not, the sum since
    ``take_small_health``, for to keep it would cost more than to measure it again.
    """

    def __init__(
        self,
        reader: ChunkReader,
        *,
        threads: int,
        target_pack_bytes: int,
        deltas: DeltaMode = DeltaMode.NEVER,
        rewrite: bool = False,
        measure: bool = False,
        niceness: Callable[[], int] | None = None,
    ) -> None:
        self.health: dict[tuple[ChunkId, str], Health] = {}
        self._small_health = Health()
        self._measure = measure
        self.at_hand: dict[ChunkId, tuple[ByteSource, int]] = {}
        self._relatives = RelativeEncoder(
            reader, deltas, self.at_hand, self._is_written, exact=rewrite
        )
        self.counts = WriteCounts()
        self.packs: list[PackId] = []
        self._storage = reader.storage
        self._catalog = reader.catalog
        self._target_pack_bytes = target_pack_bytes
        self._threads = threads
        self._rewrite = rewrite
        self._crew = NiceThreads(threads, "mvc-encode", niceness)
        self._publisher = PackPublisher(reader.catalog)
        self._pack: NewPack | None = None
        self._claims: dict[ChunkId, int] = {}
        self._claims_lock = threading.Lock()
        self._slots: list[EncodeSlot] = []
        self._first = self._next = 0
        self._failed = False
        self._is_torn = False
        self._closed = False

    def add(self, source: ByteSource, spans: Sequence[ChunkSpan]) -> list[ChunkId]:
        """Store the chunks that the store does not have yet, and return the id of every span.

        The pack holds the chunks in the order of ``spans``. No thread uses ``source`` after the call.
        The plain bytes of every batch that is done are reported.
        """
        self._check_usable()
        batches = list(plan_batches(spans, self._next))
        self._first = self._next
        self._next += len(spans)
        ids: list[ChunkId] = []
        try:
            self._relatives.look(source, spans, self._crew)
            with closing(self._encode_all(source, batches)) as results:
                for encoded in results:
                    with interrupts_held():
                        self._write(encoded)
                    ids += encoded.ids
                    report(encoded.batch.size_bytes)
        except BaseException:
            self._failed = True
            raise
        return ids

    def take_small_health(self) -> Health:
        """Return the health of the small chunks that were added since the last call, all in one."""
        taken, self._small_health = self._small_health, Health()
        return taken

    def close(self) -> None:
        """Make everything durable and visible; after a failure, publish nothing more."""
        if self._closed:
            return
        try:
            self._check_usable()
            self._publish()
            if self.counts.chunks > self.counts.new_chunks and not self.counts.stored_bytes:
                self._storage.sync(PACKS)  # chunks of packs whose writer may have died too early
        except KeyboardInterrupt as error:
            self._keep_after(error)
            raise
        finally:
            self.abort()

    def abort(self) -> None:
        """Forget what is not yet published; harmless after ``close``."""
        self._closed = True
        self._crew.close()
        self._publisher.abort()
        if self._pack is not None:
            self._pack.pending.abort()
        self._slots.clear()
        self._claims.clear()
        self._relatives.forget()  # they know this session, so nothing else frees it soon

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, *rest: object
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self._keep_after(error)
        finally:
            self.abort()

    def _publish(self) -> None:
        if self._pack is not None:
            with interrupts_held():
                self._submit_pack()
        self._publisher.finish()

    def _keep_after(self, error: BaseException) -> None:
        """After Ctrl-C, publish what was written; the error says so."""
        size_mib = self.counts.plain_bytes / 2**20
        is_whole = isinstance(error, KeyboardInterrupt) and not self._is_torn
        if is_whole and size_mib and not self._rewrite:
            with suppress(MvcError):  # that it was interrupted is what counts
                self._publish()
                error.add_note(
                    f"{size_mib:,.1f} MiB of it are stored; adding it again goes on from there"
                )

    def _check_usable(self) -> None:
        if self._closed or self._failed:
            raise StorageError("write session is closed or failed before")

    def _encode_all(
        self, source: ByteSource, batches: Sequence[SpanBatch]
    ) -> Generator[_Encoded, None, None]:
        """Yield the batches encoded, in their order, while workers are ahead with later ones."""
        if len(batches) == 1:  # the usual small commit: no threads to start
            yield self._encode(source, batches[0], self._take_slot())
            return
        in_flight: deque[Future[_Encoded]] = deque()
        try:
            for batch in batches:
                if len(in_flight) == self._threads + _SPARE_SLOTS:
                    yield in_flight.popleft().result()
                slot = self._take_slot()
                in_flight.append(self._crew.submit(self._encode, source, batch, slot))
            while in_flight:
                yield in_flight.popleft().result()
        finally:
            self._failed |= bool(in_flight)
            for future in in_flight:
                future.cancel()
            wait(in_flight)

    def _take_slot(self) -> EncodeSlot:
        return self._slots.pop() if self._slots else EncodeSlot()

    def _encode(self, source: ByteSource, batch: SpanBatch, slot: EncodeSlot) -> _Encoded:
        """Read, hash and encode one batch; runs in a worker."""
        plains = read_batch(source, batch, slot)
        encoded = _Encoded(batch, slot, [hash_chunk(plain) for plain in plains])
        for i in self._claim_new(batch.first, encoded.ids):
            if self._failed:
                break
            body = self._relatives.encode(batch.spans[i], plains[i], slot)
            if len(plains) > 1:  # the next chunk of the batch overwrites the scratch memory
                body = replace(body, parts=(b"".join(body.parts),))
            record = EncodedRecord(encoded.ids[i], len(plains[i]), body)
            encoded.records.append((batch.first + i, record))
        if self._measure:
            fresh = {number - batch.first for number, _ in encoded.records}
            encoded.health = measure_batch(batch.spans, plains, fresh)
        return encoded

    def _is_written(self, chunk_id: ChunkId) -> bool | None:
        """Return True if an earlier ``add`` wrote a chunk, False if this one does, else None."""
        with self._claims_lock:
            number = self._claims.get(chunk_id)
        return None if number is None else number < self._first

    def _claim_new(self, first: int, ids: Sequence[ChunkId]) -> list[int]:
        """Return which of the ids this batch has to encode: not stored, not claimed before it."""
        if self._rewrite:
            return self._drop_claimed(first, ids, range(len(ids)), claim=True)
        # Claims are cheap to look up, the catalog is not; and what another worker claims during
        # that lookup shows only when claims are checked again.
        candidates = self._drop_claimed(first, ids, range(len(ids)))
        stored = self._catalog.contains_each(ids[i] for i in candidates)
        unknown = [i for i, known in zip(candidates, stored.tolist(), strict=True) if not known]
        return self._drop_claimed(first, ids, unknown, claim=True)

    def _drop_claimed(
        self, first: int, ids: Sequence[ChunkId], numbers: Iterable[int], *, claim: bool = False
    ) -> list[int]:
        kept: list[int] = []
        with self._claims_lock:
            for i in numbers:
                if self._claims.get(ids[i], first + i) >= first + i:
                    kept.append(i)
                    if claim:
                        self._claims[ids[i]] = first + i
        return kept

    def _write(self, encoded: _Encoded) -> None:
        self._is_torn = True
        fresh = [r for number, r in encoded.records if self._claims[r.chunk_id] == number]
        self._append(fresh)
        for record in fresh:
            self._relatives.note(record.chunk_id, record.body)
        self._slots.append(encoded.slot)
        if encoded.health is not None:
            self._small_health += encoded.health.small
            for i, (dtype, health) in encoded.health.large.items():
                self.health[encoded.ids[i], dtype] = health
        self.counts = replace(
            self.counts,
            chunks=self.counts.chunks + len(encoded.ids),
            new_chunks=self.counts.new_chunks + len(fresh),
            plain_bytes=self.counts.plain_bytes + encoded.batch.size_bytes,
            new_plain_bytes=self.counts.new_plain_bytes + sum(r.plain_size_bytes for r in fresh),
        )
        self._is_torn = False

    def carry(self, records: Sequence[EncodedRecord]) -> None:
        """Take over records as they are, whatever the store has."""
        self._check_usable()
        try:
            self._append(records)
        except BaseException:
            self._failed = True
            raise

    def _append(self, records: Sequence[EncodedRecord]) -> None:
        if not records:
            return
        if self._pack is None:
            self._pack = NewPack(self._storage)
        self._pack.append(records)
        if self._pack.is_full(self._target_pack_bytes):
            self._submit_pack()

    def _submit_pack(self) -> None:
        assert self._pack is not None
        pack, written = self._publisher.submit(self._pack)
        self._pack = None
        self.packs.append(pack)
        self.counts = replace(
            self.counts,
            stored_bytes=self.counts.stored_bytes + written,
            packs=self.counts.packs + 1,
        )


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
    views: list[memoryview] = []
    for span in batch.spans:
        view = source.view(span.offset, span.size_bytes)
        if view is None:
            break
        views.append(view.cast("B"))
    else:
        return views
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

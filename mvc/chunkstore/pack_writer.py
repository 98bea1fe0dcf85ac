"""Packs on their way out: one that is being filled, others that are being made durable.

``NewPack`` is filled by one thread. ``PackPublisher`` takes full packs and, in one thread of its
own, syncs and publishes each and then its index, while the next pack is being filled. A pack is
always durable and visible before its index is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blake3 import blake3

from mvc.chunkstore.catalog import PackCatalog, publish_index
from mvc.chunkstore.listing import PACKS, pack_key
from mvc.formats.encoding import EncodedChunk
from mvc.formats.pack import (
    FOOTER_BYTES,
    MAX_PACK_RECORDS,
    RECORD_BYTES,
    PackRecord,
    encode_pack_footer,
    encode_pack_header,
    encode_record_header,
)
from mvc.formats.pack_index import PackIndex, encode_pack_index, index_records
from mvc.ids import ChunkId, PackId

if TYPE_CHECKING:
    from mvc.storage.protocol import Buffer, PendingObject, Storage

_PENDING_PACKS = 4
"""Full packs that may wait to be synced before the writer waits for the disk."""


@dataclass(frozen=True, slots=True)
class EncodedRecord:
    """A chunk ready to be appended to a pack."""

    chunk_id: ChunkId
    plain_size_bytes: int
    body: EncodedChunk


def carry_record(record: PackRecord, data: memoryview) -> EncodedRecord:
    """Return a stored record as it is; ``data`` is its header and body."""
    body = EncodedChunk(record.encoding, (data[RECORD_BYTES:],), record.bases)
    return EncodedRecord(record.chunk_id, record.plain_size_bytes, body)


class NewPack:
    """A pack that is being filled; hashed as it is written."""

    def __init__(self, storage: Storage) -> None:
        self.pending: PendingObject = storage.create(PACKS)
        self._hasher = blake3()
        self._records: list[PackRecord] = []
        try:
            self._append([encode_pack_header()])
        except BaseException:
            self.pending.abort()
            raise

    def _append(self, buffers: Sequence[Buffer]) -> None:
        self.pending.write(buffers)
        for buffer in buffers:
            self._hasher.update(buffer)

    def is_full(self, target_bytes: int) -> bool:
        """Return whether the pack should be closed."""
        return (
            self.pending.size_bytes >= target_bytes or len(self._records) >= MAX_PACK_RECORDS // 2
        )

    def append(self, records: Sequence[EncodedRecord]) -> None:
        """Append records; their buffers may be reused once the call returns."""
        offset = self.pending.size_bytes
        buffers: list[Buffer] = []
        for record in records:
            chunk_id, plain_bytes, body = record.chunk_id, record.plain_size_bytes, record.body
            size_bytes = body.size_bytes
            buffers.append(encode_record_header(chunk_id, body.encoding, plain_bytes, size_bytes))
            buffers += body.parts
            placed = PackRecord(
                chunk_id, body.encoding, plain_bytes, size_bytes, offset, body.bases
            )
            self._records.append(placed)
            offset = placed.end
        # Many small buffers cost more to hand over one by one than to join.
        self._append(buffers if len(records) == 1 else [b"".join(buffers)])
        assert self.pending.size_bytes == offset, "a storage did not take all that was written"

    def seal(self) -> PackIndex:
        """Write the footer and return the index; the pack is complete but not yet durable."""
        size_bytes = self.pending.size_bytes + FOOTER_BYTES
        self._append([encode_pack_footer(len(self._records), size_bytes)])
        return index_records(PackId(self._hasher.hexdigest()), size_bytes, self._records)


class PackPublisher:
    """Makes full packs durable and visible, in their order."""

    def __init__(self, catalog: PackCatalog) -> None:
        self._storage = catalog.storage
        self._catalog = catalog
        self._executor: ThreadPoolExecutor | None = None
        self._waiting: deque[tuple[Future[None], PendingObject]] = deque()

    def submit(self, pack: NewPack) -> tuple[PackId, int]:
        """Take over a full pack; return its id, and the bytes of the pack and its index.

        Raises what made publishing an earlier pack fail.
        """
        index = pack.seal()
        index_bytes = encode_pack_index(index)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="mvc-publish")

        pending = pack.pending

        def publish() -> None:
            with pending:
                pending.publish(pack_key(index.pack))
            publish_index(self._storage, index.pack, index_bytes)
            self._catalog.add(index)

        future = self._executor.submit(publish)
        self._waiting.append((future, pending))
        while self._waiting and (self._waiting[0][0].done() or len(self._waiting) > _PENDING_PACKS):
            self._wait_for_oldest()
        return index.pack, index.pack_size_bytes + len(index_bytes)

    def finish(self) -> None:
        """Wait until everything is durable and visible; may be called again after Ctrl-C.

        Raises what made publishing a pack fail; later ones were aborted.
        """
        try:
            while self._waiting:
                self._wait_for_oldest()
        except Exception:
            self.abort()
            raise

    def abort(self) -> None:
        """Forget every pack whose publication has not begun; wait for the one that has."""
        for future, _ in self._waiting:
            future.cancel()
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None
        for _, pending in self._waiting:
            pending.abort()
        self._waiting.clear()

    def _wait_for_oldest(self) -> None:
        self._waiting[0][0].result()
        self._waiting.popleft()

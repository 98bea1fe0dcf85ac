"""Carries out one batch of a sweep plan: new packs, durable, and separately the removal of old ones.

Records that keep their encoding are carried over as they are. Before that the whole old pack is
read and hashed against its name, so that damage is never carried into a pack that looks sound.
Chunks that are encoded again are read like any others, hashed against their ids.

Removal is a step of its own (``ChunkStore.remove_packs``) because the caller has to be alone for it
and to check again what is needed; a kill between the two leaves every chunk twice, never less than
once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3

from mvc.chunkstore.chains import ReadSlot
from mvc.chunkstore.copies import NONE, StoredCopies
from mvc.chunkstore.listing import pack_key
from mvc.chunkstore.pack_writer import carry_record
from mvc.chunkstore.values import FSCK_HINT, ChunkSpan, corruption
from mvc.errors import CorruptionError, FormatError
from mvc.ids import ChunkId, PackId, split_ids
from mvc.progress import report
from mvc.sources import ByteSource, split_buffer

if TYPE_CHECKING:
    from mvc.chunkstore.copies import Ids
    from mvc.chunkstore.reader import ChunkReader
    from mvc.chunkstore.sweep_plan import Reencode, SweepBatch
    from mvc.chunkstore.writer import ChunkWriter
    from mvc.dtypes import DType
    from mvc.formats.pack import PackRecord
    from mvc.formats.pack_index import PackIndex
    from mvc.progress import ByteProgress
    from mvc.storage.protocol import Storage

_READ_BYTES = 4 * 2**20


class StoredChunks(ByteSource):
    """Chunks of the store end to end, as a source for a write session."""

    def __init__(self, reader: ChunkReader, ids: Sequence[ChunkId], sizes: Sequence[int]) -> None:
        self._reader = reader
        self._ids = ids
        self.starts = [0, *accumulate(sizes)]

    @property
    def size_bytes(self) -> int:
        """Length of all chunks."""
        return self.starts[-1]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer with whole chunks from ``offset`` on, each hashed."""
        slot = ReadSlot()
        for number, _, plain in split_buffer(self.starts, offset, buffer):
            self._reader.read_chunk(self._ids[number], plain, slot, "")


def write_batch(
    writer: ChunkWriter,
    reader: ChunkReader,
    batch: SweepBatch,
    dtypes: Mapping[ChunkId, DType | None],
) -> None:
    """Write what a batch keeps into new packs, durable once the session is closed.

    After a CorruptionError the session must not be closed.
    """
    _encode(writer, reader, batch.encode, dtypes)
    indexes = {index.pack: index for index in reader.catalog.sound_indexes()}
    for pack, rows in batch.carry.items():
        try:
            check_pack(reader.storage, indexes[pack], ReadSlot(), report)
            carry_rows(writer, reader.storage, indexes[pack], rows)
        except (KeyError, FileNotFoundError):
            raise CorruptionError(f"pack {pack} is gone or damaged", hint=FSCK_HINT) from None


def _encode(
    writer: ChunkWriter,
    reader: ChunkReader,
    items: Sequence[Reencode],
    dtypes: Mapping[ChunkId, DType | None],
) -> None:
    ids = [item.chunk_id for item in items]
    sizes: list[int] = []
    for chunk_id in ids:
        location = reader.catalog.find(chunk_id)
        if location is None:
            raise corruption(chunk_id, None, "", "it is in no pack")
        sizes.append(location.plain_size_bytes)
    chunks = StoredChunks(reader, ids, sizes)
    slot = ReadSlot()
    spans = []
    for item, (start, end) in zip(items, pairwise(chunks.starts), strict=True):
        dtype = dtypes.get(item.chunk_id)
        if item.chunk_id not in dtypes:
            # An error: another copy may be sound; if not, reading the chunk fails.
            with contextlib.suppress(FormatError, FileNotFoundError):
                dtype = reader.chains.find_dtype(item.chunk_id, slot)
        spans.append(ChunkSpan(start, end - start, dtype, base=item.base))
    writer.add(chunks, spans)


def carry_packs(
    writer: ChunkWriter, reader: ChunkReader, packs: Collection[PackId]
) -> list[PackId]:
    """Carry over the chunks that live in some packs; return those that may go once that is durable.

    A pack that is damaged, or holds what cannot be decoded, stays as it is, for fsck to report.
    """
    indexes = reader.catalog.sound_indexes()
    inside: list[PackIndex] = []
    for index in indexes:
        if index.pack in packs:
            with contextlib.suppress(CorruptionError, FileNotFoundError):
                check_pack(reader.storage, index, ReadSlot(), None)
                inside.append(index)
    outside = [index for index in indexes if index.pack not in packs]
    gone: list[PackId] = []
    for index, rows in choose_rows(outside, inside):
        carry_rows(writer, reader.storage, index, rows)
        gone.append(index.pack)
    return gone


def choose_rows(
    outside: Sequence[PackIndex], inside: Sequence[PackIndex]
) -> Iterator[tuple[PackIndex, list[int]]]:
    """Yield the packs ``inside``, all sound, that can be joined, with the rows that none ``outside`` has.

    A pack that holds what cannot be decoded is left out.
    """
    # Of equal copies one in a pack that stays is chosen: a kill may have left chunks twice.
    copies = StoredCopies([*outside, *inside])
    for number, index in enumerate(inside, len(outside)):
        places = np.arange(copies.starts[number], copies.starts[number + 1])
        chosen = copies.chosen[copies.chunks[places]]
        if NONE not in chosen:
            yield index, np.flatnonzero(chosen == places).tolist()


def carry_rows(
    writer: ChunkWriter, storage: Storage, index: PackIndex, rows: Collection[int]
) -> None:
    """Copy some records of a pack, as they are, after ``check_pack``."""
    slot = ReadSlot()
    records = sorted(map(index.record, rows), key=lambda record: record.offset)
    for group in group_records(records, _READ_BYTES, _READ_BYTES):
        start, end = group[0].offset, group[-1].end
        data = slot.read(storage, pack_key(index.pack), start, end - start)
        parts = [data[record.offset - start : record.end - start] for record in group]
        writer.carry(list(map(carry_record, group, parts)))


def check_pack(storage: Storage, index: PackIndex, slot: ReadSlot, progress: ByteProgress) -> None:
    """Check that the bytes of a pack match its name."""
    hasher = blake3()
    for offset in range(0, index.pack_size_bytes, _READ_BYTES):
        size_bytes = min(_READ_BYTES, index.pack_size_bytes - offset)
        data = slot.read(storage, pack_key(index.pack), offset, size_bytes)
        hasher.update(data)
        if progress is not None:
            progress(len(data))
    if hasher.hexdigest() != index.pack:
        raise CorruptionError(
            f"pack {index.pack} is damaged: its content does not match its name", hint=FSCK_HINT
        )


def group_records(
    records: Iterable[PackRecord], limit_bytes: int, gap_bytes: int
) -> Iterator[list[PackRecord]]:
    """Yield records of a pack, given in its order, as they are read together.

    That takes ``limit_bytes`` at most, unless one record is longer, and reads no gap over ``gap_bytes``.
    """
    group: list[PackRecord] = []
    for record in records:
        if group and (
            record.offset - group[-1].end > gap_bytes or record.end - group[0].offset > limit_bytes
        ):
            yield group
            group = []
        group.append(record)
    if group:
        yield group


def find_unsafe(
    indexes: Sequence[PackIndex], leaving: Collection[PackId], needed: Ids
) -> list[ChunkId]:
    """Return needed chunks that can be decoded now and could not be without some packs."""
    before = StoredCopies(indexes)
    after = StoredCopies([index for index in indexes if index.pack not in leaving])
    ids = before.ids[before.mask(needed) & (before.chosen != NONE)]
    return split_ids(ids[~after.decodes(ids)].tobytes())

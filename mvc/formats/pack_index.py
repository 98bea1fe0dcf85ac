"""The pack index: which chunks a pack holds and where, read in one go.

docs/format.md, section 5, shows the layout. An index holds nothing that is not in the pack; a lost
one is made again from it. The records of a pack leave no holes, so one check on the offsets
in ascending order covers holes, overlaps and records outside the pack at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from blake3 import blake3

from mvc.errors import FormatError
from mvc.formats.pack import (
    FIRST_REFERRING,
    FOOTER_BYTES,
    HEADER_BYTES,
    MAX_BASES,
    MAX_PACK_BYTES,
    MAX_PACK_RECORDS,
    MAX_PLAIN_BYTES,
    MAX_STORED_SLACK_BYTES,
    RECORD_BYTES,
    PackRecord,
)
from mvc.formats.pack_lookup import FRONT, MAGIC, PLAIN_VERSION, REFERRING_VERSION
from mvc.ids import ID_BYTES, ChunkId, PackId

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COLUMNS = ("S32", "<u8", "<u4", "<u4", "u1")
"""Ids, offsets, stored sizes, plain sizes, encodings."""
_ROW_BYTES = sum(np.dtype(column).itemsize for column in _COLUMNS)
_MIN_BYTES = FRONT.size + ID_BYTES
MAX_INDEX_BYTES = _MIN_BYTES + MAX_PACK_RECORDS * (_ROW_BYTES + 1 + MAX_BASES * ID_BYTES)


@dataclass(frozen=True, slots=True, eq=False)
class PackIndex:
    """The chunks of one pack, ascending by id; row i of every array is the same chunk.

    Ids are ``S32``. Take their bytes with ``chunk_id``: NumPy drops trailing zero bytes of a single
    element. Row i refers to ``base_ids[base_starts[i]:base_starts[i + 1]]``; both are None if no
    row refers to anything.
    """

    pack: PackId
    pack_size_bytes: int
    ids: NDArray[np.bytes_]
    offsets: NDArray[np.uint64]
    stored_sizes: NDArray[np.uint32]
    plain_sizes: NDArray[np.uint32]
    encodings: NDArray[np.uint8]
    base_starts: NDArray[np.int64] | None = None
    base_ids: NDArray[np.bytes_] = field(default_factory=lambda: np.empty(0, "S32"))

    def __len__(self) -> int:
        return len(self.ids)

    def chunk_id(self, row: int) -> ChunkId:
        """Return the id of one row."""
        return ChunkId(self.ids[row : row + 1].tobytes())

    def bases(self, row: int) -> tuple[ChunkId, ...]:
        """Return the chunks that one row refers to."""
        if self.base_starts is None:
            return ()
        places = range(int(self.base_starts[row]), int(self.base_starts[row + 1]))
        return tuple(ChunkId(self.base_ids[i : i + 1].tobytes()) for i in places)

    def fields(self, row: int) -> tuple[ChunkId, int, int, int, int, tuple[ChunkId, ...]]:
        """Return the fields of one row's ``PackRecord``, in order."""
        return (
            self.chunk_id(row),
            int(self.encodings[row]),
            int(self.plain_sizes[row]),
            int(self.stored_sizes[row]),
            int(self.offsets[row]),
            self.bases(row),
        )

    def record(self, row: int) -> PackRecord:
        """Return one row as the record header in the pack says it."""
        return PackRecord(*self.fields(row))

    def records(self) -> Iterator[PackRecord]:
        """Yield all rows in their order in the pack."""
        return (self.record(row) for row in np.argsort(self.offsets).tolist())


def index_records(pack: PackId, pack_size_bytes: int, records: Iterable[PackRecord]) -> PackIndex:
    """Return the index of records, given in any order."""
    rows = sorted(records, key=lambda record: record.chunk_id)
    index = PackIndex(
        pack,
        pack_size_bytes,
        np.frombuffer(b"".join(row.chunk_id for row in rows), dtype="S32"),
        np.array([row.offset for row in rows], dtype="<u8"),
        np.array([row.stored_size_bytes for row in rows], dtype="<u4"),
        np.array([row.plain_size_bytes for row in rows], dtype="<u4"),
        np.array([row.encoding for row in rows], dtype="u1"),
        *_index_bases(np.array([len(row.bases) for row in rows]), [row.bases for row in rows]),
    )
    _check_ids(index)
    return index


def _index_bases(
    counts: NDArray[np.integer[Any]], bases: Iterable[tuple[ChunkId, ...]]
) -> tuple[NDArray[np.int64] | None, NDArray[np.bytes_]]:
    if not counts.any():
        return None, np.empty(0, "S32")
    joined = b"".join(base for some in bases for base in some)
    return np.concatenate(([0], counts.cumsum(dtype=np.int64))), np.frombuffer(joined, "S32")


def encode_pack_index(index: PackIndex) -> bytes:
    """Return the bytes of an index file."""
    version = PLAIN_VERSION if index.base_starts is None else REFERRING_VERSION
    front = FRONT.pack(
        MAGIC, version, 0, bytes.fromhex(index.pack), index.pack_size_bytes, len(index)
    )
    arrays: list[NDArray[Any]] = [index.ids, index.offsets, index.stored_sizes]
    arrays += [index.plain_sizes, index.encodings]
    if index.base_starts is not None:
        arrays += [np.diff(index.base_starts).astype("u1"), index.base_ids]
    data = front + b"".join(array.tobytes() for array in arrays)
    return data + blake3(data).digest()


def parse_pack_index(data: bytes) -> PackIndex:
    """Return the index that the bytes of an index file describe; its arrays are views of ``data``."""
    if not _MIN_BYTES <= len(data) <= MAX_INDEX_BYTES or data[:8] != MAGIC:
        raise FormatError("not a pack index")
    _, version, zero, pack, pack_size_bytes, count = FRONT.unpack_from(data)
    if version not in (PLAIN_VERSION, REFERRING_VERSION):
        raise FormatError(f"pack index has format version {version}", hint="use a newer mvc")
    if zero or not 0 < count <= MAX_PACK_RECORDS or pack_size_bytes > MAX_PACK_BYTES:
        raise FormatError("pack index has an impossible header")
    base_counts = _parse_base_counts(data, version, count)
    if len(data) != _bases_at(version, count) + int(base_counts.sum()) * ID_BYTES + ID_BYTES:
        raise FormatError(f"pack index of {count:,} chunks has {len(data):,} bytes")
    if blake3(memoryview(data)[:-ID_BYTES]).digest() != data[-ID_BYTES:]:
        raise FormatError("pack index is damaged: it does not match its own hash")
    columns, start = [], FRONT.size
    for dtype in _COLUMNS:
        columns.append(np.frombuffer(data, dtype, count, start))
        start += columns[-1].nbytes
    index = PackIndex(PackId(pack.hex()), pack_size_bytes, *columns)
    if not np.array_equal(base_counts > 0, index.encodings >= FIRST_REFERRING):
        raise FormatError("pack index has bases where no record can have any, or lacks some")
    if version == REFERRING_VERSION:
        ids = np.frombuffer(data, "S32", int(base_counts.sum()), _bases_at(version, count))
        starts = np.concatenate(([0], base_counts.cumsum(dtype=np.int64)))
        index = replace(index, base_starts=starts, base_ids=ids)
    _check_ids(index)
    _check_places(index)
    return index


def _bases_at(version: int, count: int) -> int:
    return FRONT.size + count * (_ROW_BYTES + (version == REFERRING_VERSION))


def _parse_base_counts(data: bytes, version: int, count: int) -> NDArray[np.uint8]:
    if version == PLAIN_VERSION:
        return np.zeros(count, "u1")
    start = FRONT.size + count * _ROW_BYTES
    if start + count > len(data):
        raise FormatError(f"pack index of {count:,} chunks has {len(data):,} bytes")
    counts = np.frombuffer(data, "u1", count, start)
    if counts.max() > MAX_BASES:
        raise FormatError("pack index has a chunk with too many bases")
    return counts


def _check_ids(index: PackIndex) -> None:
    if not (index.ids[:-1] < index.ids[1:]).all():
        raise FormatError("pack index has chunk ids out of order or twice")


def _check_places(index: PackIndex) -> None:
    plain, stored = index.plain_sizes, index.stored_sizes
    if plain.max() > MAX_PLAIN_BYTES or (stored > plain + MAX_STORED_SLACK_BYTES).any():
        raise FormatError("pack index has a chunk that is too long")
    order = np.argsort(index.offsets, kind="stable")
    ends = np.cumsum(stored[order].astype(np.uint64) + RECORD_BYTES) + HEADER_BYTES
    starts = index.offsets[order]
    if starts[0] != HEADER_BYTES or not np.array_equal(starts[1:], ends[:-1]):
        raise FormatError("pack index has records that overlap or leave holes")
    if int(ends[-1]) != index.pack_size_bytes - FOOTER_BYTES:
        raise FormatError("pack index does not reach the end of its pack")

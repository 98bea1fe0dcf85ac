"""Which packs there are and what they hold: the in-memory side of the pack indexes.

Loading reads one small index per pack. A pack whose index is missing or damaged is read header by
header instead, so that a lost index never loses data; this is kept as a *repair*, to be reported.
A pack that is not as long as its index says, or is gone, is *damaged*: its chunks do not count as
present, so that the next add stores them again, but a read still finds where they were and either
succeeds or says exactly what is wrong.

A chunk whose body needs another chunk that no sound pack holds, or itself, or more in a row than
readers follow, is *broken*: it does not count as present either, so that it can be stored again,
and is whole again once its base is.

Packs that are far away, on a remote, have a table of their own, the last.

Lookups take no lock: they see one tuple of immutable tables, which is replaced as a whole. New
packs go into a small second table until it is worth merging, so that a long session that
publishes pack after pack does not sort all ids each time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from mvc.chunkstore.copies import ChunkTable, StoredCopies
from mvc.chunkstore.listing import PACKS, PackListing, index_key, pack_key
from mvc.chunkstore.values import ChunkLocation, StoreProblem
from mvc.errors import FormatError
from mvc.formats.pack import PackRecord, scan_pack
from mvc.formats.pack_index import MAX_INDEX_BYTES, PackIndex, index_records, parse_pack_index

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.ids import ChunkId, PackId
    from mvc.storage.protocol import Storage

_MERGE_RATIO = 4
_WINDOW_BYTES = 2**16


def delete_packs(storage: Storage, packs: Collection[PackId]) -> None:
    """Remove packs, indexes first: a crash in between leaves packs that can be indexed again."""
    storage.delete(*map(index_key, packs))
    storage.delete(*map(pack_key, packs))


def publish_index(storage: Storage, pack: PackId, data: bytes) -> None:
    """Make the index of a pack durable and visible; an old one of the same length stays."""
    with storage.create(PACKS) as file:
        file.write([data])
        file.publish(index_key(pack))


class PackCatalog:
    """The packs of a storage and where each chunk is; safe to use from many threads."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._lock = threading.Lock()
        self._indexes: dict[PackId, PackIndex] = {}
        self._sizes: dict[PackId, int] = {}
        self._far: frozenset[PackId] = frozenset()
        self._tables: tuple[ChunkTable, ...] | None = None
        self._damaged = ChunkTable(())
        self._broken: frozenset[ChunkId] | None = None
        self._generation = 0
        self.repairs: dict[PackId, StoreProblem] = {}

    def find(self, chunk_id: ChunkId) -> ChunkLocation | None:
        """Return a place of the chunk, preferably one that needs nothing else, or None."""
        first: ChunkLocation | None = None
        for location in self.find_all(chunk_id):
            if first is not None and location.pack in self._far:
                break
            if not location.bases:
                return location
            first = first or location
        return first

    def is_far(self, pack: PackId) -> bool:
        """Return whether reading a pack takes requests."""
        return pack in self._far

    @property
    def generation(self) -> int:
        """A number that changes whenever what is known of the packs does."""
        self._sound_tables()
        return self._generation

    def sound_indexes(self) -> list[PackIndex]:
        """Return the indexes of all sound packs."""
        return [index for table in self._sound_tables() for index in table.packs]

    def find_all(self, chunk_id: ChunkId) -> Iterator[ChunkLocation]:
        """Yield every place of the chunk, those in damaged packs last."""
        for table in self._sound_tables():
            yield from table.find_all(chunk_id)
        yield from self._damaged.find_all(chunk_id)

    def pack_size(self, pack: PackId) -> int:
        """Return the length of a pack in bytes, 0 if it is gone."""
        return self._sizes.get(pack, 0)

    def contains_each(self, ids: Iterable[ChunkId]) -> NDArray[np.bool_]:
        """Return for each id whether sound packs hold it and all that it is based on."""
        joined = b"".join(ids)
        wanted = np.frombuffer(joined, "S32") if joined else np.empty(0, "S32")
        tables = self._sound_tables()
        contains = np.zeros(len(wanted), np.bool_)
        for table in tables:
            contains |= table.contains_each(wanted)
        broken = self._broken
        if broken is None:
            indexes = [index for table in tables for index in table.packs]
            refers = any(index.base_starts is not None for index in indexes)
            broken = StoredCopies(indexes).find_lost() if refers else frozenset()
            with self._lock:
                if self._tables is tables:  # else what was found is out of date
                    self._broken = broken
        if broken:
            contains &= ~np.isin(wanted, np.frombuffer(b"".join(broken), "S32"))
        return contains

    def refresh(self) -> bool:
        """Look at the storage again; return whether the set of packs changed."""
        with self._lock:
            return self._refresh()

    def add(self, index: PackIndex) -> None:
        """Take in a pack that this process has just published."""
        self._sound_tables()
        with self._lock:
            self.repairs.pop(index.pack, None)  # a refresh may have seen the pack before its index
            known = index.pack in self._indexes
            if known and self._is_sound(self._indexes[index.pack]):
                return
            self._indexes[index.pack] = index
            self._sizes[index.pack] = index.pack_size_bytes
            self._arrange([] if known else [index], from_scratch=known)

    def _sound_tables(self) -> tuple[ChunkTable, ...]:
        if self._tables is None:
            with self._lock:
                if self._tables is None:
                    self._refresh()
        assert self._tables is not None
        return self._tables

    def _refresh(self) -> bool:
        listing = PackListing(self.storage)
        # A pack that is lost but has an index counts as damaged: errors can name what was in it.
        sizes = dict.fromkeys(listing.lost_packs, 0) | listing.packs
        if self._tables is not None and sizes == self._sizes:
            return False
        gone = [pack for pack, size in self._sizes.items() if sizes.get(pack) != size]
        for pack in gone:
            self._indexes.pop(pack, None)
            self.repairs.pop(pack, None)
        fresh = [
            index
            for pack in sorted(sizes.keys() - self._indexes.keys())
            if (index := self._load(pack, listing)) is not None
        ]
        self._indexes.update((index.pack, index) for index in fresh)
        self._sizes = sizes
        self._far = frozenset(listing.far)
        self._arrange(fresh, from_scratch=bool(gone) or self._tables is None)
        return True

    def _is_sound(self, index: PackIndex) -> bool:
        return self._sizes[index.pack] == index.pack_size_bytes

    def _arrange(self, fresh: list[PackIndex], *, from_scratch: bool) -> None:
        """Put fresh indexes into the second table, or all into one when that has grown."""
        known = list(self._indexes.values())
        # A pack that comes later breaks nothing: its writer had all bases.
        if from_scratch or self._broken:
            self._broken = None
        self._damaged = ChunkTable([index for index in known if not self._is_sound(index)])
        if self._far:
            sound = list(filter(self._is_sound, known))
            near = ChunkTable([index for index in sound if index.pack not in self._far])
            self._tables = near, ChunkTable([index for index in sound if index.pack in self._far])
            self._generation += 1
            return
        first, *rest = (not from_scratch and self._tables) or (ChunkTable(()),)
        late = [index for table in rest for index in table.packs]
        late += filter(self._is_sound, known if from_scratch else fresh)
        if _MERGE_RATIO * sum(map(len, late)) >= len(first):
            self._tables = (ChunkTable([*first.packs, *late]),)
        else:
            self._tables = (first, ChunkTable(late))
        # Last: a reader that sees the new number must not see the old tables after it.
        self._generation += 1

    def _load(self, pack: PackId, listing: PackListing) -> PackIndex | None:
        try:
            return read_index(self.storage, pack, listing.indexes.get(pack, 0))
        except FileNotFoundError:
            problem = StoreProblem("missing-index", pack, None, None, "pack has no index")
        except FormatError as error:
            problem = StoreProblem("bad-index", pack, None, None, error.message)
        self.repairs[pack] = problem
        return salvage_index(self.storage, pack, listing.packs.get(pack, 0))


def read_index(storage: Storage, pack: PackId, size_bytes: int) -> PackIndex:
    """Return the stored index of a pack; ``size_bytes`` is its length as listed."""
    if size_bytes > MAX_INDEX_BYTES:
        raise FormatError(f"pack index has {size_bytes:,} bytes")
    index = parse_pack_index(storage.read(index_key(pack)))
    if index.pack != pack:
        raise FormatError(f"pack index belongs to pack {index.pack}")
    return index


def salvage_index(storage: Storage, pack: PackId, size_bytes: int) -> PackIndex | None:
    """Return the index of what can be read of a pack, or None if that is nothing."""
    records: dict[ChunkId, PackRecord] = {}
    with contextlib.suppress(FormatError, FileNotFoundError):
        for record in scan_stored_pack(storage, pack, size_bytes):
            records.setdefault(record.chunk_id, record)
    return index_records(pack, size_bytes, records.values()) if records else None


def scan_stored_pack(
    storage: Storage, pack: PackId, size_bytes: int, *, key: str | None = None
) -> Iterator[PackRecord]:
    """Yield the records of a stored pack from their headers alone."""
    key = key or pack_key(pack)
    window = memoryview(b"")
    start = 0

    def read_at(offset: int, wanted: int) -> memoryview:
        nonlocal window, start
        if not start <= offset <= offset + wanted <= start + len(window):
            buffer = bytearray(min(_WINDOW_BYTES, max(size_bytes - offset, wanted)))
            storage.read_into(key, offset, memoryview(buffer))
            window, start = memoryview(buffer), offset
        return window[offset - start : offset - start + wanted]

    return scan_pack(read_at, size_bytes)

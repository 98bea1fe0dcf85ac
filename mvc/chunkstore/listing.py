"""The folder of packs, and how much room some chunks take there, without NumPy.

A commit of what is staged says how much it stored; importing NumPy for that would take longer than
the commit itself. ``catalog`` knows all about where chunks are.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from mvc.errors import FormatError
from mvc.formats.pack_lookup import IndexColumns
from mvc.ids import ID_BYTES, ChunkId, PackId, is_hex_id

if TYPE_CHECKING:
    from mvc.storage.protocol import Storage

GATHER_PACKS = 50
"""Packs of a class are joined once there are that many,"""
GATHER_BYTES = 2**26
"""or that many bytes, which fill one pack."""
CLASSES_BYTES = ((0, 2**18), (2**18, 2**24))
"""Packs from the first length on, and shorter than the second, are of one class."""
PACKS = "packs/"
_PACK_SUFFIX = ".pack"
_INDEX_SUFFIX = ".idx"


def pack_key(pack: PackId) -> str:
    """Return the storage key of a pack."""
    return f"{PACKS}{pack}{_PACK_SUFFIX}"


def index_key(pack: PackId) -> str:
    """Return the storage key of a pack's index."""
    return f"{PACKS}{pack}{_INDEX_SUFFIX}"


class PackListing:
    """One look at the folder of packs: sizes in bytes of packs and indexes, and other keys."""

    def __init__(self, storage: Storage) -> None:
        self.packs: dict[PackId, int] = {}
        self.indexes: dict[PackId, int] = {}
        self.made_s: dict[PackId, float] = {}
        self.far: set[PackId] = set()
        self.strays: list[str] = []
        for info in storage.list(PACKS):
            stem, dot, suffix = info.key.removeprefix(PACKS).partition(".")
            is_named = is_hex_id(stem, 2 * ID_BYTES)
            if is_named and dot + suffix == _PACK_SUFFIX:
                self.packs[PackId(stem)] = info.size_bytes
                self.made_s[PackId(stem)] = info.made_s
                if info.is_far:
                    self.far.add(PackId(stem))
            elif is_named and dot + suffix == _INDEX_SUFFIX:
                self.indexes[PackId(stem)] = info.size_bytes
            else:
                self.strays.append(info.key)

    @property
    def lost_packs(self) -> set[PackId]:
        """Packs that are gone, with only their index left."""
        return self.indexes.keys() - self.packs.keys()


def find_crowd(listing: PackListing) -> list[PackId]:
    """Return packs to join now, oldest first: not much more than fill one, if many are of a class."""
    for low, high in CLASSES_BYTES:
        packs = {pack: size for pack, size in listing.packs.items() if low <= size < high}
        if len(packs) < GATHER_PACKS and sum(packs.values()) < GATHER_BYTES:
            continue
        due: list[PackId] = []
        left = GATHER_BYTES
        for pack in sorted(packs, key=lambda pack: (listing.made_s[pack], pack)):
            if left > 0 and len(due) < 2 * GATHER_PACKS:
                due.append(pack)
                left -= packs[pack]
        return due
    return []


def find_stored_sizes(storage: Storage, wanted: Collection[ChunkId]) -> dict[ChunkId, int] | None:
    """Return chunk → bytes in its pack, without those that no pack has.

    The youngest packs come first, and the others are not read once all is found: what was just
    stored is in them. None if only the catalog can tell: a pack or index is missing or damaged.
    """
    listing = PackListing(storage)
    missing, known = set(wanted), dict[ChunkId, int]()
    for pack in sorted(listing.packs, key=lambda pack: -listing.made_s[pack]):
        if not missing:
            return known
        try:
            index = IndexColumns(storage.read(index_key(pack)), pack, listing.packs[pack])
        except (FormatError, FileNotFoundError):
            return None
        sizes = ((chunk, index.find_stored_size(chunk)) for chunk in missing)
        known |= {chunk: size_bytes for chunk, size_bytes in sizes if size_bytes is not None}
        missing -= known.keys()
    return None if missing and listing.lost_packs else known

"""Which chunks cannot be read, and why: missing, damaged, or based on one that is.

Only doubtful chunks are read: those that the check of the store names, or whose pack it names; those
with a lost base; those from which no chain of copies leads to whole bytes. Reading decides, since
another copy may be sound. What is lost because of a base names the chunk at the root of the loss:
that is the one to bring back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import MvcError
from mvc.formats.pack import MAX_DEPTH

if TYPE_CHECKING:
    from mvc.chunkstore.store import ChunkStore
    from mvc.chunkstore.values import ChunkLocation, StoreProblem
    from mvc.ids import ChunkId

MISSING, DAMAGED, LOST_BASE = "missing-chunk", "damaged-chunk", "lost-base"
LOST_INDEX = frozenset({"missing-index", "bad-index"})
_SHORT_HEX = 12


@dataclass(frozen=True, slots=True)
class LostChunk:
    """Why a chunk cannot be read."""

    kind: str
    fact: str  # in words, to follow the chunk's name
    location: ChunkLocation | None = None  # where the damage is; None if a chunk is missing
    root: ChunkId | None = None  # the chunk whose loss caused this one
    links: int = 0  # how many bases are on the way there, the root included

    @property
    def is_damage(self) -> bool:
        """Whether a pack is damaged, and has to be set aside before anything helps."""
        return self.location is not None


class ChunkHealth:
    """Looks at chunks one by one, each once, given what a check of the store has found.

    ``lost`` has those that cannot be read, ``packs`` the packs of all that were looked at.
    """

    def __init__(self, store: ChunkStore, problems: Iterable[StoreProblem]) -> None:
        self._store = store
        problems = list(problems)
        self._unindexed = {item.pack for item in problems if item.kind == "missing-index"}
        doubtful = [item for item in problems if item.kind not in LOST_INDEX]
        self._bad_chunks = {item.chunk for item in doubtful if item.chunk is not None}
        self._bad_packs = {item.pack for item in doubtful if item.kind != LOST_BASE}
        self._bad_chunks |= store.copies().find_lost()
        self._sizes: dict[ChunkId, int] = {}
        self.lost: dict[ChunkId, LostChunk] = {}
        self.packs: set[str] = set()

    @property
    def lacks_indexes(self) -> bool:
        """Whether there are packs without an index, as a gc that died leaves them."""
        return bool(self._unindexed)

    def look_at(self, chunk: ChunkId) -> int:
        """Return the plain bytes of a chunk, 0 if it is missing; see ``lost`` afterwards."""
        if chunk not in self._sizes:
            self._sizes[chunk] = self._examine(chunk, 0)
        return self._sizes[chunk]

    def _examine(self, chunk: ChunkId, depth: int) -> int:
        location = self._find(chunk)
        if location is None and self._store.refresh():  # of a commit younger than the first look
            location = self._find(chunk)
        if location is None:
            self.lost[chunk] = LostChunk(MISSING, "is missing")
            return 0
        self.packs.add(location.pack)
        base = self._find_lost_base(location, depth)
        if base is not None or chunk in self._bad_chunks or location.pack in self._bad_packs:
            try:
                self._store.read_into(chunk, memoryview(bytearray(location.plain_size_bytes)))
            except MvcError as error:
                self.lost[chunk] = self._explain(location, base, error)
        return location.plain_size_bytes

    def _find(self, chunk: ChunkId) -> ChunkLocation | None:
        """Return where a chunk is; in a pack without an index only if it is nowhere else.

        A gc that died leaves such packs; their chunks are all in others too.
        """
        location = self._store.find(chunk)
        if location is None or location.pack not in self._unindexed:
            return location
        places = self._store.find_all(chunk)
        return next((place for place in places if place.pack not in self._unindexed), location)

    def _find_lost_base(self, location: ChunkLocation, depth: int) -> ChunkId | None:
        """Return a lost base, if any; a chain that is too long has no chosen copy anyway."""
        for base in location.bases if depth < MAX_DEPTH else ():
            if base not in self._sizes:
                self._sizes[base] = self._examine(base, depth + 1)
            if base in self.lost:
                return base
        return None

    def _explain(self, location: ChunkLocation, base: ChunkId | None, error: MvcError) -> LostChunk:
        if base is None:
            is_own = not location.bases or location.pack in self._bad_packs
            kind = DAMAGED if is_own else LOST_BASE
            return LostChunk(kind, f"is lost: {error.message}", location)
        below = self.lost[base]
        root, links = below.root or base, below.links + 1
        cause = self.lost.get(root, below)
        way = "" if links == 1 else f" ({links - 1:,} more between them)"
        where = "missing"
        if cause.location is not None:
            where = f"damaged in pack {cause.location.pack[:_SHORT_HEX]} "
            where += f"at offset {cause.location.offset:,}"
        fact = f"is lost: it is based on chunk {root.hex()[:_SHORT_HEX]}{way}, which is {where}"
        return LostChunk(LOST_BASE, fact, cause.location, root, links)

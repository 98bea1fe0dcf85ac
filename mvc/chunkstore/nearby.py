"""Chunks that other processes have in memory: asked for before the packs, believed only when hashed.

So memory is a tier like any other. Whoever offers a chunk may die meanwhile, hold other bytes than it
thinks, or lie: then the chunk comes from the store, and the tier is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mvc.ids import hash_chunk

if TYPE_CHECKING:
    from mvc.ids import ChunkId


class Nearby(Protocol):
    """Chunks in the memory of other processes. All methods are called from many threads."""

    def fill(self, chunk: ChunkId, plain: memoryview) -> bool:
        """Fill a buffer, which is as long as the chunk, if the chunk is there; return whether it was."""
        ...

    def refuse(self, chunk: ChunkId, context: str) -> None:
        """Hear that ``fill`` gave other bytes than the chunk's; ``context`` names what it is part of."""
        ...


def fill_nearby(nearby: Nearby | None, chunk: ChunkId, plain: memoryview, context: str) -> bool:
    """Fill a buffer with a chunk, verified; False: another place has to give it."""
    if nearby is None or not nearby.fill(chunk, plain):
        return False
    if hash_chunk(plain) == chunk:
        return True
    nearby.refuse(chunk, context)
    return False

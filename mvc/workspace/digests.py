"""Hashes of what parts of tensors have of chunks that were read, and verified, for them.

So whether a part still is what was read takes no second look into its chunks.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeAlias

from mvc.ids import hash_chunk

if TYPE_CHECKING:
    from mvc.ids import ChunkId
    from mvc.numbers.parts import PartRun, TensorPart

    Piece: TypeAlias = tuple[ChunkId, TensorPart, PartRun]

_KEPT = 100_000


class Digests:
    """Piece → hash; each is asked for once, and of very many the oldest are forgotten."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._most = kept
        self._kept: dict[Piece, ChunkId] = {}
        self._lock = threading.Lock()

    def note(self, piece: Piece, content: memoryview) -> None:
        """Keep the hash of what a part has of a chunk."""
        digest = hash_chunk(content)
        with self._lock:
            while len(self._kept) >= self._most:
                del self._kept[next(iter(self._kept))]
            self._kept[piece] = digest

    def take(self, piece: Piece) -> ChunkId | None:
        """Return the hash, and forget it; None if it is not known."""
        with self._lock:
            return self._kept.pop(piece, None)

"""The last few snapshots, in memory or in a local folder: rollbacks to between two commits."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc import UsageError
from mvc_hooks.snapshot.image import MemoryPool, Snapshot, take_snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


@dataclass(frozen=True, slots=True)
class Ring:
    """How many snapshots are kept, and how often they are taken.

    Attributes:
        every: steps between two snapshots.
        keep: how many to keep at most.
        max_bytes: their size together at most; None means no limit.
        folder: keep them in unlinked files there; None means in memory.
    """

    every: int = 100
    keep: int = 4
    max_bytes: int | None = None
    folder: str | None = None

    def __post_init__(self) -> None:
        for name in ("every", "keep", "max_bytes"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise UsageError(f"{name} of a ring is {value!r}, not a number from 1 on")


class SnapshotRing:
    """The ring itself."""

    def __init__(self, settings: Ring) -> None:
        self._settings = settings
        self._pool = MemoryPool(settings.folder)
        self._kept: deque[Snapshot] = deque()

    def is_due(self, step: int) -> bool:
        """Return whether a snapshot is due after this step."""
        return step % self._settings.every == 0

    def take(
        self, state: Mapping[str, object], step: int, fenced: Mapping[int, torch.Tensor] | None
    ) -> Snapshot:
        """Freeze a state; a full ring drops its oldest one first."""
        self._make_room()
        snapshot = take_snapshot(state, step, self._pool, fenced)
        self._kept.append(snapshot)
        # How large a snapshot is, is known only now: a state may have grown since the last one.
        limit = self._settings.max_bytes
        if limit is not None and snapshot.memory.size_bytes > limit:
            self.close()
            raise UsageError(
                f"a snapshot takes {snapshot.memory.size_bytes:,} bytes, and max_bytes of the ring "
                f"is {limit:,}",
                hint="give the ring a larger max_bytes, or set ring=None",
            )
        while limit is not None and len(self._kept) > 1 and self.size_bytes > limit:
            self._kept.popleft().release()
            self._pool.trim()
        return snapshot

    def _make_room(self) -> None:
        kept, limit = self._kept, self._settings.max_bytes
        full = len(kept) >= self._settings.keep
        if limit is not None and kept:
            full = full or self.size_bytes + kept[-1].memory.size_bytes > limit
        if full:
            kept.popleft().release()

    @property
    def size_bytes(self) -> int:
        """Memory of the kept snapshots."""
        return sum(snapshot.memory.size_bytes for snapshot in self._kept)

    def find(self, at_most_step: int) -> Snapshot | None:
        """Return the newest sound snapshot of at most that step, or None."""
        for snapshot in reversed(self._kept):
            if snapshot.step <= at_most_step and not snapshot.fence.is_torn:
                return snapshot
        return None

    def forget_after(self, step: int) -> None:
        """Drop the snapshots of later steps, which a rollback abandoned."""
        while self._kept and self._kept[-1].step > step:
            self._kept.pop().release()

    def close(self) -> None:
        """Free the memory."""
        while self._kept:
            self._kept.pop().release()
        self._pool.close()

"""The last few snapshots, kept in memory or in a local folder, for rollbacks shorter than a commit."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc import UsageError
from mvc_hooks.snapshot.image import MemoryPool, Snapshot, take_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch


@dataclass(frozen=True, slots=True)
class Ring:
    """How many snapshots are kept, and how often they are taken.

    Attributes:
        every: steps between two.
        keep: at most so many.
        max_bytes: at most so many bytes together; as many as fit where None.
        folder: lie in unlinked files there; in memory where None.
    """

    every: int = 100
    keep: int = 4
    max_bytes: int | None = None
    folder: str | None = None

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            UsageError: one is not positive.
        """
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

    def __iter__(self) -> Iterator[Snapshot]:
        """Yield the snapshots, oldest first."""
        return iter(self._kept)

    def is_due(self, step: int) -> bool:
        """Tell whether one belongs to this step."""
        return step % self._settings.every == 0

    def take(
        self, state: Mapping[str, object], step: int, fenced: Mapping[int, torch.Tensor] | None
    ) -> Snapshot:
        """Freeze a state, in place of the oldest one where the ring is full.

        Raises:
            StorageError: no memory.
            UsageError: a single snapshot is larger than the ring may be.
        """
        self._make_room()
        snapshot = take_snapshot(state, step, self._pool, fenced)
        self._kept.append(snapshot)
        limit = self._settings.max_bytes
        if limit is not None and snapshot.memory.size_bytes > limit:
            self.close()
            raise UsageError(
                f"a snapshot takes {snapshot.memory.size_bytes:,} bytes, and max_bytes of the ring "
                f"is {limit:,}",
                hint="give the ring a larger max_bytes, or set ring=None",
            )
        while limit is not None and len(self._kept) > 1 and self.size_bytes > limit:
            self._drop(self._kept.popleft())
            self._pool.close()
        return snapshot

    def _make_room(self) -> None:
        kept, limit = self._kept, self._settings.max_bytes
        full = len(kept) >= self._settings.keep
        if limit is not None and kept:
            full = full or self.size_bytes + kept[-1].memory.size_bytes > limit
        if full:
            self._drop(kept.popleft())

    def _drop(self, snapshot: Snapshot) -> None:
        snapshot.fence.wait()
        if snapshot.readers:
            snapshot.is_dropped = True
        else:
            self._pool.give_back(snapshot.memory)

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
        """Drop the snapshots of later steps: after a rollback they are of a run that is gone."""
        while self._kept and self._kept[-1].step > step:
            self._drop(self._kept.pop())

    def close(self) -> None:
        """Free the memory."""
        while self._kept:
            self._drop(self._kept.pop())
        self._pool.close()

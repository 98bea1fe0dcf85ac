"""The samples of a loader with a plan: all ranks know its cursor, each what it fetched itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from mvc import sampling

if TYPE_CHECKING:
    from collections.abc import Callable

    from mvc.sampling import PlanEntry, SampleDigest

_AT_ONCE = 1 << 16
ROLLBACK = "rollback"
"""Why samples were skipped that a rollback passes over."""


@runtime_checkable
class Planned(Protocol):
    """A loader whose order is a plan.

    ``cursor`` is the position after the last global batch that was handed out, ``watch`` has a function
    called with the positions and samples of this rank's part of each, once the cursor has moved.
    """

    plan: Any
    cursor: Any
    skips: Any

    def watch(self, callback: Callable[[Any, Any], object]) -> object:
        """Call a function with what is handed out."""


class PlanTally:
    """What this rank fetched since the ranks met, and the entry, of which they know all but that.

    Attributes:
        entry: what was seen and passed over, without this rank's own samples since they met.
        own: the digest of those.
    """

    def __init__(self, loader: Planned, is_dropping: Callable[[], bool]) -> None:
        self.loader, self._is_dropping = loader, is_dropping
        self._waiting: list[Any] = []
        self._held = 0
        self.own = sampling.SampleDigest()
        self.entry = self._begin()
        loader.watch(self._note)

    def _begin(self) -> PlanEntry:
        self._before, self._skips = int(self.loader.cursor), self.loader.skips
        return sampling.PlanEntry(self.loader.plan, self._before, self._before)

    def _note(self, _: object, located: Any) -> None:
        """Take a batch that was handed out; what is skipped may have changed before it."""
        cursor = int(self.loader.cursor)
        if self.loader.skips is not self._skips:
            self._advance(self._before)
            self._skips = self.loader.skips
        if self._is_dropping():
            self._advance(self._before)
            self.entry = self.entry.pass_over(cursor, ROLLBACK)
        else:
            self._waiting.append(located)
            self._held += len(located)
            if self._held >= _AT_ONCE:
                self._hash()
        self._before = cursor

    def _advance(self, cursor: int) -> None:
        self.entry = self.entry.move(cursor, sampling.SampleDigest(), self._skips)

    def _hash(self) -> None:
        waiting, self._waiting, self._held = self._waiting, [], 0
        if not waiting:
            return
        sources = np.concatenate([one.source for one in waiting])
        indices = np.concatenate([one.index for one in waiting])
        for number in np.unique(sources).tolist():
            name = self.entry.plan.sources[number].name
            self.own += sampling.SampleDigest.of(name, indices[sources == number])

    def settle(self) -> SampleDigest:
        """Bring the entry to the cursor; return the digest of this rank's own samples."""
        self._hash()
        self._advance(self._before)
        return self.own

    def join(self, digest: SampleDigest) -> None:
        """Take what all ranks fetched into the entry."""
        self.entry = self.entry.move(self.entry.cursor, digest, self._skips)
        self.own = sampling.SampleDigest()

    def take_over(self, entry: PlanEntry, own: SampleDigest) -> None:
        """Go on where another loader of the same plan was; its position is taken up at the next batch."""
        if entry.plan.id == self.entry.plan.id:
            self.entry, self.own, self._before = entry, own, entry.cursor

    def restore(self, entry: PlanEntry | None, own: SampleDigest, reason: str) -> None:
        """Go on from a stored entry, if it is of this plan; what the loader is ahead of it is passed over."""
        self._waiting, self._held, self.own = [], 0, own
        fresh = self._begin()
        if entry is None or entry.plan.id != fresh.plan.id or entry.cursor > fresh.cursor:
            self.entry, self.own = fresh, sampling.SampleDigest()
        else:
            self.entry = entry.pass_over(fresh.cursor, reason)

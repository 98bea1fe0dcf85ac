"""Global batches: how a run walks on over the positions that no skip passes over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mvc.sampling.permutation import MAX_SIZE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.sampling.plan import Located, SamplePlan
    from mvc.sampling.skips import Skips

    Positions = NDArray[np.int64]

_AHEAD = 1 << 12
_MOST_AT_ONCE = 1 << 16
"""Positions that are looked at together where much is skipped."""


@dataclass(frozen=True, slots=True, eq=False)
class GlobalBatch:
    """A global batch: its samples' positions, what is there, and the position after it."""

    positions: Positions
    located: Located
    stop: int

    def __len__(self) -> int:
        return len(self.positions)


class Ahead:
    """Locates positions that come one after another many at a time, which is cheaper."""

    def __init__(self, plan: SamplePlan) -> None:
        self._plan, self._start = plan, 0
        self._located = plan.locate(np.zeros(0, np.int64))

    def locate(self, start: int, count: int) -> Located:
        """Return the samples at ``count`` positions."""
        if not self._start <= start <= start + count <= self._start + len(self._located):
            most = max(count, min(_AHEAD, MAX_SIZE - start))
            self._start = start
            self._located = self._plan.locate(np.arange(start, start + most, dtype=np.int64))
        return self._located.take(slice(start - self._start, start - self._start + count))


def draw_batch(
    plan: SamplePlan, skips: Skips, cursor: int, ahead: Ahead | None = None
) -> GlobalBatch | None:
    """Return the next global batch from a position on; None: the epoch of that position has no more.

    ``ahead`` is for those who draw one batch after another.

    After the last batch of an epoch, ``stop`` is where the next epoch begins, or beyond (``wrap``).
    """
    length = plan.epoch_length
    end = (cursor // length + 1) * length
    if ahead is not None and not skips and cursor + plan.batch <= end:  # the usual case, quickly
        stop = cursor + plan.batch
        located = ahead.locate(cursor, plan.batch)
        return GlobalBatch(
            np.arange(cursor, stop, dtype=np.int64), located, _round_up(plan, stop, end)
        )
    parts: list[tuple[Positions, Located]] = []
    missing, at, at_once, latest = plan.batch, cursor, plan.batch, cursor
    while missing:
        at = skips.leave_window(at)
        # A batch begins in its epoch. Where all is skipped, the search ends after one epoch.
        limit = latest + length if parts and plan.tail == "wrap" else end
        if at >= limit:
            break
        positions, located = _look(plan, skips, at, min(at_once, limit - at), missing, ahead)
        at = at + min(at_once, limit - at)
        if len(positions) == missing:
            at = int(positions[-1]) + 1
        if len(positions):
            parts.append((positions, located))
            missing -= len(positions)
            latest = at
        at_once = min(2 * at_once, max(plan.batch, _MOST_AT_ONCE))
    if not parts or (missing and plan.tail != "short"):
        return None
    located = parts[0][1]
    if len(parts) > 1:
        located = type(located)(
            *(
                np.concatenate([getattr(part, name) for _, part in parts])
                for name in ("source", "epoch", "index")
            )
        )
    positions = np.concatenate([part for part, _ in parts])
    return GlobalBatch(positions, located, _round_up(plan, at, end))


def _look(
    plan: SamplePlan, skips: Skips, start: int, count: int, most: int, ahead: Ahead | None
) -> tuple[Positions, Located]:
    """Return the first positions, ``most`` or fewer, that are not skipped among the next ones."""
    positions = np.arange(start, start + count, dtype=np.int64)
    located = plan.locate(positions) if ahead is None else ahead.locate(start, count)
    if skips:
        kept = np.flatnonzero(~skips.find(plan, positions, located))[:most]
        return positions[kept], located.take(kept)
    return positions[:most], located.take(slice(most))


def _round_up(plan: SamplePlan, at: int, end: int) -> int:
    """Return where the next epoch begins, if what is left of this one is too little for a batch."""
    is_over = plan.tail == "drop" and end - at < plan.batch
    return end if is_over else at

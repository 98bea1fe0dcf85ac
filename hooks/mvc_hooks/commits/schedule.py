"""When a commit is due: by steps, by time, or both, whichever comes first."""

from __future__ import annotations


class Schedule:
    """Counts from the last commit, whatever it was made for."""

    def __init__(self, every: int | None, every_seconds: float | None) -> None:
        """Count by steps, by seconds, by both or by neither, as in ``Checkpointer``."""
        self._every = every
        self._every_seconds = every_seconds
        self._last_s: float | None = None

    def is_due(self, step: int, now_s: float | None) -> bool:
        """Return whether a commit is due after this step; without a clock, by steps alone."""
        if self._every is not None and step % self._every == 0:
            return True
        return now_s is not None and self.is_late(now_s)

    def is_late(self, now_s: float) -> bool:
        """Return whether a commit is due by the clock alone."""
        if self._every_seconds is None:
            return False
        if self._last_s is None:
            self._last_s = now_s
        return now_s - self._last_s >= self._every_seconds

    def note(self, now_s: float) -> None:
        """Record that a commit was made, or that the run starts."""
        self._last_s = now_s

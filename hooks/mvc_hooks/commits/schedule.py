"""When a commit is due: by steps, by time, or both, whichever comes first."""

from __future__ import annotations


class Schedule:
    """Counts from the last commit, whyever that was made."""

    def __init__(self, every: int | None, every_seconds: float | None) -> None:
        """Start counting with the first ``note``.

        Args:
            every: steps between two commits; commits fall on its multiples. None: not by steps.
            every_seconds: seconds between two commits; None: not by time.
        """
        self._every = every
        self._every_seconds = every_seconds
        self._last_s: float | None = None

    def is_due(self, step: int, now_s: float | None) -> bool:
        """Tell whether the state of this step is to be committed.

        Args:
            step: completed steps.
            now_s: of a monotonic clock; None: by steps alone.
        """
        if self._every is not None and step % self._every == 0:
            return True
        return now_s is not None and self.is_late(now_s)

    def is_late(self, now_s: float) -> bool:
        """Tell whether it is time for a commit, by the clock alone."""
        if self._every_seconds is None:
            return False
        if self._last_s is None:
            self._last_s = now_s
        return now_s - self._last_s >= self._every_seconds

    def note(self, now_s: float) -> None:
        """Say that a commit was made, or that the run begins."""
        self._last_s = now_s

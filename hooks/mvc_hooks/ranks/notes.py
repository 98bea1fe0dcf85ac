"""What one rank knows and all of them need: it is counted in the message of each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mvc_hooks.ranks.messages import StepSums

_SIGNALS = ("SIGTERM", "SIGINT")
"""The more urgent one first."""


@dataclass(frozen=True, slots=True)
class Note:
    """What one rank notes, or all of them together.

    Attributes:
        signal: the signal that was caught, if one was.
        is_due: rank 0 says that a commit is due by its clock.
        has_failed: rank 0 says that a commit failed.
        is_behind: the writer has no room for another commit.
    """

    signal: str | None = None
    is_due: bool = False
    has_failed: bool = False
    is_behind: bool = False

    def as_counts(self) -> dict[str, float]:
        """Return it as numbers to be summed over the ranks."""
        known = {"due": self.is_due, "failed": self.has_failed, "behind": self.is_behind}
        known |= {name: self.signal == name for name in _SIGNALS}
        return {name: float(value) for name, value in known.items()}

    @classmethod
    def from_counts(cls, counts: Mapping[str, float]) -> Note:
        """Return the notes of all ranks as one."""
        signal = next((name for name in _SIGNALS if counts[name]), None)
        return cls(signal, bool(counts["due"]), bool(counts["failed"]), bool(counts["behind"]))


class Talk:
    """Notes as they go out and come in; ``heard`` is the latest of all ranks."""

    def __init__(self) -> None:
        self._has_asked = False
        self._room_step: int | None = None
        self.heard = Note()

    def write(self, mine: Note) -> dict[str, float]:
        """Return the note of this rank for a step.

        Signals and failures are repeated until they are heard, because a rollback throws away
        notes on their way. A commit is asked for once: until the note arrives the clock stays due.
        """
        asks = mine.is_due and not self._has_asked
        self._has_asked = self._has_asked or asks
        return Note(mine.signal, asks, mine.has_failed, mine.is_behind).as_counts()

    def read(self, arrived: Iterable[StepSums]) -> None:
        """Take the messages that arrived since the last time."""
        notes = [(sums.step, Note.from_counts(sums.counts)) for sums in arrived]
        signals = {note.signal for _, note in notes}
        self.heard = Note(
            next((name for name in _SIGNALS if name in signals), None),
            any(note.is_due for _, note in notes),
            any(note.has_failed for _, note in notes),
            bool(notes) and notes[-1][1].is_behind,
        )
        if notes:
            self._room_step = None if self.heard.is_behind else notes[-1][0]

    def take_due(self) -> bool:
        """Return whether a commit was asked for since the last call."""
        due = self.heard.is_due
        if due:
            self._has_asked = False
        return due

    def has_room(self, since_step: int | None) -> bool:
        """Return whether the writers of all ranks are known to have room.

        A note from before the last commit, that of ``since_step``, says nothing. None: no commit yet.
        """
        if since_step is None:
            return True
        return self._room_step is not None and self._room_step > since_step

    def forget(self) -> None:
        """Forget notes on their way; a rollback throws them away."""
        self._has_asked, self._room_step, self.heard = False, None, Note()

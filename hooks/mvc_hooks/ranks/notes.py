"""What one rank knows and all of them need: a number that travels with the readings of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_BASE = 1 << 16
_DUE, _FAILED, _FLAGS = 1, 2, 4


@dataclass(frozen=True, slots=True)
class Note:
    """What one rank notes, or all of them together.

    A note is one number that is summed over the ranks along with the readings. Its digits are two
    flags of rank 0 (a commit is due by its clock; a commit failed), and above them, in base 65536,
    how many ranks have a writer that is behind, how many caught SIGINT, and how many SIGTERM. A
    double holds that exactly.
    """

    signal: str | None = None
    is_due: bool = False
    has_failed: bool = False
    is_behind: bool = False

    def encode(self) -> float:
        """Return it as a number that can be summed."""
        counts = self.is_behind + _BASE * (self.signal == "SIGINT")
        counts += _BASE * _BASE * (self.signal == "SIGTERM")
        return float(_DUE * self.is_due + _FAILED * self.has_failed + _FLAGS * counts)


def decode_notes(total: float) -> Note:
    """Return the notes of all ranks as one; of two signals, the more urgent SIGTERM."""
    counts, flags = divmod(int(total), _FLAGS)
    rest, behind = divmod(counts, _BASE)
    terminated, interrupted = divmod(rest, _BASE)
    signal = "SIGTERM" if terminated else "SIGINT" if interrupted else None
    return Note(signal, bool(flags & _DUE), bool(flags & _FAILED), bool(behind))


class Talk:
    """Notes as they go out and come in; ``heard`` is the latest of all ranks."""

    def __init__(self) -> None:
        self._has_asked = False
        self._room_step: int | None = None
        self.heard = Note()

    def write(self, mine: Note) -> float:
        """Return the note of this rank for a step.

        Signals and failures are repeated until they are heard, because a rollback throws away
        notes on their way. A commit is asked for once: until the note arrives the clock stays due.
        """
        asks = mine.is_due and not self._has_asked
        self._has_asked = self._has_asked or asks
        return Note(mine.signal, asks, mine.has_failed, mine.is_behind).encode()

    def read(self, notes: Iterable[tuple[int, float]]) -> None:
        """Take what arrived since the last time: the steps of notes, and their sums over all ranks."""
        self.heard = Note()
        for step, total in notes:
            one = decode_notes(total)
            signals = {self.heard.signal, one.signal}
            self.heard = Note(
                next((name for name in ("SIGTERM", "SIGINT") if name in signals), None),
                self.heard.is_due or one.is_due,
                self.heard.has_failed or one.has_failed,
                one.is_behind,
            )
            self._room_step = None if one.is_behind else step

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

"""What one rank knows and all need to know: a signal, the clock, a failed commit.

A note is one number that is summed over the ranks together with the readings, so that it arrives
everywhere at the same step and costs no message. In base 65536 its digits are: how many ranks caught
SIGTERM, how many SIGINT, and the flags of rank 0. A double holds three such digits exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

_BASE = 1 << 16
_DUE, _FAILED = 1, 1 << 8


@dataclass(frozen=True, slots=True)
class Note:
    """What one rank notes, or all of them together.

    Attributes:
        signal: name of a caught signal, or None.
        is_due: it is time for a commit.
        has_failed: a commit failed, and that is to stop the run.
    """

    signal: str | None = None
    is_due: bool = False
    has_failed: bool = False

    def encode(self) -> float:
        """Return it as a number that can be summed."""
        number = _DUE * self.is_due + _FAILED * self.has_failed
        number += _BASE * (self.signal == "SIGINT")
        return float(number + _BASE * _BASE * (self.signal == "SIGTERM"))


def decode_notes(total: float) -> Note:
    """Return the notes of all ranks as one; of two signals, the more urgent SIGTERM."""
    rest, said = divmod(int(total), _BASE)
    terminated, interrupted = divmod(rest, _BASE)
    signal = "SIGTERM" if terminated else "SIGINT" if interrupted else None
    failed, due = divmod(said, _FAILED)
    return Note(signal, bool(due), bool(failed))


class Talk:
    """Notes as they go out and come in.

    Attributes:
        heard: the latest of all ranks.
    """

    def __init__(self) -> None:
        self._has_asked = False
        self.heard = Note()

    def write(self, signal: str | None, *, is_due: bool, has_failed: bool) -> float:
        """Return the note of this rank for a step.

        Signals and failures are repeated until they are heard, because a rollback throws away
        notes on their way. A commit is asked for once: until the note arrives the clock stays due.
        """
        asks = is_due and not self._has_asked
        self._has_asked = self._has_asked or asks
        return Note(signal, asks, has_failed).encode()

    def read(self, total: float) -> None:
        """Take the notes of all ranks."""
        self.heard = decode_notes(total)

    def take_due(self) -> bool:
        """Return whether a commit was asked for since the last call."""
        due = self.heard.is_due
        if due:
            self._has_asked = False
        return due

    def forget(self) -> None:
        """Forget notes on their way; a rollback throws them away."""
        self._has_asked, self.heard = False, Note()

"""What one rank knows and all have to: a signal, the clock, a commit that failed.

A note is one number that is summed over the ranks together with the readings, so it costs no message
of its own and arrives at the same step everywhere. It is a number in base 65536: how many ranks
caught SIGTERM, how many SIGINT, and what rank 0 says. A double holds three such digits exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

_BASE = 1 << 16
_DUE, _FAILED = 1, 1 << 8


@dataclass(frozen=True, slots=True)
class Note:
    """What a rank says, or what all ranks said.

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
    """Return what the ranks said together; of two signals the one that has to be obeyed first."""
    rest, said = divmod(int(total), _BASE)
    terminated, interrupted = divmod(rest, _BASE)
    signal = "SIGTERM" if terminated else "SIGINT" if interrupted else None
    failed, due = divmod(said, _FAILED)
    return Note(signal, bool(due), bool(failed))


class Talk:
    """What this rank has to say, and what all of them said last.

    Attributes:
        heard: the latest notes.
    """

    def __init__(self) -> None:
        self._has_asked = False
        self.heard = Note()

    def write(self, signal: str | None, *, is_due: bool, has_failed: bool) -> float:
        """Return the note of this rank for a step.

        Signals and failures are said until they are heard, because a rollback throws away what is
        on its way. For a commit is asked once; while the note is under way the time stays due.
        """
        asks = is_due and not self._has_asked
        self._has_asked = self._has_asked or asks
        return Note(signal, asks, has_failed).encode()

    def read(self, total: float) -> None:
        """Take what all ranks said."""
        self.heard = decode_notes(total)

    def take_due(self) -> bool:
        """Tell whether a commit was asked for since the last call."""
        due = self.heard.is_due
        if due:
            self._has_asked = False
        return due

    def forget(self) -> None:
        """Forget what was under way, as a rollback does."""
        self._has_asked, self.heard = False, Note()

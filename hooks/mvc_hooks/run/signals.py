"""SIGTERM and SIGINT: remembered when they arrive, obeyed when the state is consistent.

A scheduler that wants its machine back sends SIGTERM and kills a little later; people press
Ctrl-C. Either may arrive in the middle of a step. The handler only remembers it; the next
``step()`` commits and then lets the signal do what it would have done. A second signal of the same
kind is not held back. Nor is one for long if another rank is gone: the step would never end (``PeerWatch``).
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

from mvc_hooks.run.peerwatch import PeerWatch

if TYPE_CHECKING:
    from types import FrameType

    from mvc_hooks.writer.messages import RankCrew

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class SignalWatch:
    """Holds signals back until they can be obeyed.

    Python lets only the main thread change handlers, and runs them only there.
    """

    def __init__(self) -> None:
        self._previous: dict[int, Any] = {}
        self._caught: int | None = None
        self._is_over = True
        self._is_delivering = False
        self._is_obeyed = False
        self._crew: RankCrew | None = None
        self._peers: PeerWatch | None = None
        self._pid = os.getpid()

    def start(self, crew: RankCrew | None = None) -> None:
        """Replace the handlers, and look after the ranks of a crew; only the main thread can."""
        if not _is_main():
            return
        self._crew = crew = crew or self._crew
        if crew is not None:
            self._peers = PeerWatch(crew, lambda: self._is_obeyed)
        self._is_over = False
        for number in _SIGNALS:
            previous = signal.getsignal(number)
            if previous in (signal.SIG_IGN, None, self._remember):  # what is ignored stays so
                continue
            self._previous[number] = previous
            signal.signal(number, self._remember)

    def stop(self) -> None:
        """Restore the handlers, unless other code has replaced them since."""
        self._is_over = True
        if self._peers is not None:
            self._peers.stop()
        if not _is_main():
            return  # the next signal finds that the watch is over, and restores them in its thread
        for number in list(self._previous):
            # Code that saved this watch as the old handler may restore it later; it passes on then.
            if signal.getsignal(number) == self._remember:
                signal.signal(number, self._previous[number])

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        if self._is_delivering:  # a handler installed over this one called it: the signal is theirs
            return
        is_second = self._caught == number
        self._caught = number
        if is_second or self._is_over or os.getpid() != self._pid:  # a forked process has no steps
            self.deliver()

    @property
    def caught(self) -> str | None:
        """The name of the signal that is held back, or None."""
        return None if self._caught is None else signal.Signals(self._caught).name

    def take(self, name: str) -> None:
        """Begin to obey a signal, which perhaps only another rank caught."""
        self._is_obeyed = True
        if self._caught is None:
            self._caught = int(signal.Signals[name])

    def deliver(self) -> None:
        """Let the held signal do what it would have done; may not return."""
        number, self._caught, self._is_obeyed = self._caught, None, False
        if number is None:
            return
        if not _is_main():
            self._caught = number  # so that over there it counts as the second one
            signal.pthread_kill(threading.main_thread().ident or 0, number)
            return
        is_over = self._is_over
        self.stop()
        self._is_delivering = True
        try:
            signal.raise_signal(number)
        finally:
            self._is_delivering = False
        if not is_over:  # the user's own handler returned: the run goes on
            self.start()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()

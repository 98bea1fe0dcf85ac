"""SIGTERM and SIGINT: remembered when they arrive, obeyed when the state is consistent.

A scheduler that wants its machine back sends SIGTERM and kills a little later; people press
Ctrl-C. Either may arrive in the middle of a step. The handler only remembers it; the next
``step()`` commits and then lets the signal do what it would have done. A second signal of the same
kind is not held back.

Nor is one for long if another rank is dead, since a step that waits for it never ends. Who starts the ranks
ends what is left of them by SIGTERM once one has died, and 30 s later by SIGKILL; but NCCL waits for a dead
rank for minutes, in C, where no handler of Python runs. So a thread hears of the signal by itself, through
the interpreter's wakeup descriptor. It connects to some of the other ranks, to sockets that live as
long as their training; if one is gone, the process dies by the signal, and its writer finishes what
it has. While all are there, as when a scheduler wants its machines back, it only looks on.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import select
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from mvc_hooks.snapshot.memory import keep_from_children

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from mvc_hooks.writer.messages import RankCrew

log = logging.getLogger("mvc_hooks")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_MOST_PEERS = 32
_LOOK_S = 0.25
_GRACE_S = 1.0
"""What a collective that notices a dead rank has to end the step by an error, which says more."""
_SILENT_S = 10.0
_DYING_S = 5.0


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


class PeerWatch:
    """Ends this process by a signal that it holds back, if another rank is gone."""

    def __init__(self, crew: RankCrew, is_obeyed: Callable[[], bool]) -> None:
        """Take the interpreter's wakeup descriptor; in the main thread only."""
        self._crew, self._is_obeyed = crew, is_obeyed
        self._is_over = threading.Event()
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        # Whoever had it (a loop of asyncio) gets what comes.
        self._previous = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        keep_from_children(self)
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """Give the descriptor back, unless others have taken it since."""
        self._is_over.set()
        if self._write < 0 or threading.current_thread() is not threading.main_thread():
            return
        if (current := signal.set_wakeup_fd(self._previous)) != self._write:
            signal.set_wakeup_fd(current)
        os.close(self._write)  # ends the thread
        self._write = -1

    def drop_in_child(self) -> None:
        """Leave signals of a forked child to it: its pipe is its parent's."""
        self._is_over.set()
        with contextlib.suppress(ValueError):
            if (current := signal.set_wakeup_fd(-1)) != self._write:
                signal.set_wakeup_fd(current)
        os.close(self._write)
        os.close(self._read)
        self._write = -1

    def _run(self) -> None:
        while numbers := os.read(self._read, 64):
            if self._previous >= 0:
                with contextlib.suppress(OSError):
                    os.write(self._previous, numbers)
            for number in set(numbers).intersection(_SIGNALS):
                self._look_on(number)
        os.close(self._read)

    def _look_on(self, number: int) -> None:
        """Look after the other ranks until the signal is obeyed."""
        began_s = time.monotonic()
        with contextlib.closing(WatchedRanks(self._crew)) as peers:
            while not (self._is_over.wait(_LOOK_S) or self._is_obeyed()):
                gone = peers.find_gone()
                if gone is not None and time.monotonic() - began_s > _GRACE_S:
                    name = signal.Signals(number).name
                    log.error("rank %d is gone, so this step cannot end: %s ends it", gone, name)
                    _die(number)


class WatchedRanks:
    """Connections to the training of some other ranks, the next ones, which end with it."""

    def __init__(self, crew: RankCrew) -> None:
        self._began_s = time.monotonic()
        self._poll, self._channels = select.poll(), dict[int, tuple[int, socket.socket]]()
        self._gone: int | None = None
        for distance in range(1, min(crew.ranks, _MOST_PEERS + 1)):
            rank = (crew.rank + distance) % crew.ranks
            for host in crew.addresses[rank].hosts:
                with contextlib.suppress(OSError):  # another of its names may do
                    self._connect(rank, host, crew.addresses[rank].presence)

    def _connect(self, rank: int, host: str, port: int) -> None:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        channel = socket.socket(family, kind)
        channel.setblocking(False)  # noqa: FBT003
        self._channels[channel.fileno()] = rank, channel
        self._poll.register(channel, select.POLLIN)
        error = channel.connect_ex(address)
        if error == errno.ECONNREFUSED:
            self._gone = rank
        elif error not in (0, errno.EINPROGRESS):
            self._drop(channel.fileno())

    def find_gone(self) -> int | None:
        """Return a rank whose training is gone, or cannot be reached for long; None: all are there."""
        if self._gone is not None:
            return self._gone
        for descriptor, _ in self._poll.poll(0):
            rank, channel = self._channels[descriptor]
            error = channel.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error in (0, errno.ECONNREFUSED, errno.ECONNRESET):
                self._gone = rank
            self._drop(descriptor)
        if self._gone is None and time.monotonic() - self._began_s > _SILENT_S:
            there = {rank for rank, channel in self._channels.values() if _is_connected(channel)}
            silent = {rank for rank, _ in self._channels.values()} - there
            self._gone = min(silent, default=None)
        return self._gone

    def _drop(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        self._channels.pop(descriptor)[1].close()

    def close(self) -> None:
        """End the connections."""
        for descriptor in list(self._channels):
            self._drop(descriptor)


def _is_connected(channel: socket.socket) -> bool:
    try:
        # Loopback can connect a socket to itself, at a port that is free again.
        return bool(channel.getpeername() != channel.getsockname())
    except OSError:
        return False


def _die(number: int) -> None:
    """End this process by a signal, whatever its handlers are and its main thread does."""
    with contextlib.suppress(OSError, AttributeError):  # only the main thread may ask Python for it
        ctypes.CDLL(None).signal(number, None)  # None is 0, SIG_DFL
        os.kill(os.getpid(), number)
        time.sleep(_DYING_S)
    os._exit(128 + number)

"""A step that waits for a rank that is dead never ends: then a signal does what it says at once.

Who starts the ranks ends what is left of them by SIGTERM once one has died, and 30 s later by SIGKILL.
``SignalWatch`` holds SIGTERM back until the step is over, to commit it; but NCCL waits for a dead rank
for minutes, in C, where no handler of Python runs. So a thread hears of the signal by itself, through
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
from typing import TYPE_CHECKING

from mvc_hooks.snapshot.memory import keep_from_children

if TYPE_CHECKING:
    from collections.abc import Callable

    from mvc_hooks.writer.messages import RankCrew

log = logging.getLogger("mvc_hooks")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_MOST_PEERS = 32
_LOOK_S = 0.25
_GRACE_S = 1.0
"""What a collective that notices a dead rank has to end the step by an error, which says more."""
_SILENT_S = 10.0
_DYING_S = 5.0


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
        with contextlib.closing(Peers(self._crew)) as peers:
            while not (self._is_over.wait(_LOOK_S) or self._is_obeyed()):
                gone = peers.find_gone()
                if gone is not None and time.monotonic() - began_s > _GRACE_S:
                    name = signal.Signals(number).name
                    log.error("rank %d is gone, so this step cannot end: %s ends it", gone, name)
                    _die(number)


class Peers:
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

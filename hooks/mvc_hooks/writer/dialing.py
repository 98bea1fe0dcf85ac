"""Connections to the writers of other ranks: the Unix socket on the same machine, else TCP."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from typing import TYPE_CHECKING

from mvc_hooks.writer.wire import Counts, Failed, Settled, open_link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mvc_hooks.writer.crew import Crew
    from mvc_hooks.writer.messages import Answer
    from mvc_hooks.writer.wire import Link

_CONNECT_S = 5.0
_LOOK_S = 0.25


class UnreachableError(OSError):
    """No connection to a rank: ``is_gone`` says that neither training nor writer listen any more."""

    def __init__(self, why: OSError, *, is_gone: bool) -> None:
        super().__init__(why.strerror or str(why))
        self.is_gone = is_gone


class Dialer:
    """Opens connections to the other ranks of a crew."""

    def __init__(self, crew: Crew, counts: Counts) -> None:
        self.crew = crew
        self._counts = counts
        self._hosts: dict[int, str] = {}

    def dial(self, rank: int, check: Callable[[], None], *, near: bool = False) -> Link:
        """Return a link to the writer of a rank, over the Unix socket if ``near``.

        If it has no writer now, the next one is waited for; ``check`` is called meanwhile, and may
        end that by an OSError.

        Raises:
            UnreachableError: there is no way to that rank.
            OSError: the connection was lost again, or ``check`` said so.
        """
        channel = self._connect_near(rank) if near else self._connect(rank)
        link = open_link(channel, rank, self._counts, self.crew.grace_s)
        try:
            link.listen(_LOOK_S, check)
            link.introduce(self.crew)
        except BaseException:
            link.close()
            raise
        return link

    def knock(self, rank: int) -> UnreachableError | None:
        """Return why a rank cannot be reached, or None: somebody listens there."""
        try:
            self._connect(rank).close()
        except UnreachableError as error:
            return error
        return None

    def _connect_near(self, rank: int) -> socket.socket:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            channel.connect(self.crew.addresses[rank].path)
        except OSError as error:
            channel.close()
            raise UnreachableError(error, is_gone=False) from error
        return channel

    def _connect(self, rank: int) -> socket.socket:
        address = self.crew.addresses[rank]
        first = self._hosts.get(rank)
        hosts = [*([first] if first else []), *(one for one in address.hosts if one != first)]
        errors: list[OSError] = []
        for host in hosts:
            try:
                channel = _connect_to_other(host, address.port)
            except OSError as error:
                errors.append(error)
                continue
            self._hosts[rank] = host
            return channel
        is_gone = any(isinstance(one, ConnectionRefusedError) for one in errors)
        raise UnreachableError(errors[0], is_gone=is_gone)


def _connect_to_other(host: str, port: int) -> socket.socket:
    """Connect; refuse a connection to itself, which loopback can make to a free port."""
    channel = socket.create_connection((host, port), _CONNECT_S)
    try:
        if channel.getsockname() == channel.getpeername():  # fails if the other end is gone again
            raise ConnectionRefusedError(errno.ECONNREFUSED, "it called itself")
    except OSError:
        channel.close()
        raise
    return channel


def tell(crew: Crew, ranks: Iterable[int], answer: Answer) -> None:
    """Say to the writers of some ranks that a turn came to nothing here, where there is no writer."""
    dialer = Dialer(crew, Counts())
    end_s = time.monotonic() + crew.grace_s

    def check() -> None:
        if time.monotonic() > end_s:
            raise TimeoutError

    for rank in ranks:
        with contextlib.suppress(OSError), contextlib.closing(dialer.dial(rank, check)) as link:
            link.send(Failed(answer))
            while not isinstance(link.receive().message, Settled):
                pass  # a sign of life; closing before the answer could undo what was sent

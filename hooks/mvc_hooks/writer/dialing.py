"""Connections to the writers of other ranks: the Unix socket on the same machine, else TCP.

Over them a writer asks the others in a turn: for their memory on the same machine, else for parts of it.
Many threads may ask. A connection carries one question at a time; there are a few to each rank at most,
which are kept for the next question.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import queue
import socket
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from mvc import StorageError
from mvc_hooks.writer.turns import TurnError
from mvc_hooks.writer.wire import Beat, Counts, Failed, GetImage, GetPart, Here, Settled, open_link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mvc_hooks.writer.messages import Answer, RankCrew
    from mvc_hooks.writer.turns import Turns
    from mvc_hooks.writer.wire import Frame, GetForm, GetHeld, Join, RankLink

    Question = GetImage | GetPart | GetForm | GetHeld

_CONNECT_S = 5.0
_LOOK_S = 0.25
_LINKS_EACH = 2
_AGAIN_S = 0.1


class UnreachableError(OSError):
    """No connection to a rank: ``is_gone`` says that neither training nor writer listen any more."""

    def __init__(self, why: OSError, *, is_gone: bool) -> None:
        super().__init__(why.strerror or str(why))
        self.is_gone = is_gone


class Dialer:
    """Opens connections to the other ranks of a crew."""

    def __init__(self, crew: RankCrew, counts: Counts) -> None:
        self.crew = crew
        self._counts = counts
        self._hosts: dict[int, str] = {}

    def dial(self, rank: int, check: Callable[[], None], *, near: bool = False) -> RankLink:
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
        """Return why a rank cannot be reached, or None if a writer listens there."""
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
        hosts = [*([first] if first else []), *(name for name in address.hosts if name != first)]
        errors: list[OSError] = []
        for host in hosts:
            try:
                channel = _connect_to_other(host, address.port)
            except OSError as error:
                errors.append(error)
                continue
            self._hosts[rank] = host
            return channel
        is_gone = any(isinstance(error, ConnectionRefusedError) for error in errors)
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


def wait_until(seconds: float) -> Callable[[], None]:
    """Return a check that ends a wait by an OSError after some seconds."""
    end_s = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() > end_s:
            raise TimeoutError

    return check


def tell(crew: RankCrew, ranks: Iterable[int], answer: Answer) -> None:
    """Say to the writers of some ranks that a turn came to nothing here, where there is no writer."""
    dialer, check = Dialer(crew, Counts()), wait_until(crew.grace_s)
    for rank in ranks:
        with contextlib.suppress(OSError), contextlib.closing(dialer.dial(rank, check)) as link:
            link.send(Failed(answer))
            while not isinstance(link.receive().message, Settled):
                pass  # a sign of life; closing before the answer could undo what was sent


class Asking:
    """Connections on which other ranks are asked, kept from turn to turn."""

    def __init__(self, dialer: Dialer, turns: Turns) -> None:
        self.turns, self._dialer = turns, dialer
        self._kept: dict[tuple[int, bool], queue.LifoQueue[RankLink | None]] = {}
        self._lock = threading.Lock()

    def ask(
        self, rank: int, question: Question, check: Callable[[], None], *, near: bool = False
    ) -> Frame:
        """Return the answer of a rank, however late its writer comes to the turn.

        Meanwhile ``check`` is called, which may raise.

        Raises:
            UnreachableError: there is no way to it; if it is not ``near``, for a while already.
            TurnError: the turn came to nothing, or that rank cannot give this.
        """
        kept = self._find_kept(rank, near=near)
        link, frame = kept.get(), None
        try:
            link, frame = self._try(link, rank, question, check, near=near)
        finally:
            kept.put(link if frame is not None else None)
        if isinstance(frame.message, Settled | Failed):
            raise TurnError(frame.message.answer)
        return frame

    def _find_kept(self, rank: int, *, near: bool) -> queue.LifoQueue[RankLink | None]:
        with self._lock:
            kept = self._kept.get((rank, near))
            if kept is None:
                kept = self._kept[rank, near] = queue.LifoQueue()
                for _ in range(_LINKS_EACH):
                    kept.put(None)
            return kept

    def _try(
        self,
        link: RankLink | None,
        rank: int,
        question: Question,
        check: Callable[[], None],
        *,
        near: bool,
    ) -> tuple[RankLink, Frame]:
        failing_s = None
        while True:
            check()
            try:
                if link is None:
                    link = self._dialer.dial(rank, check, near=near)
                    failing_s = None
                return link, _ask(link, question, check)
            except OSError as error:
                failing_s = failing_s or time.monotonic()
                is_over = time.monotonic() - failing_s > self._dialer.crew.grace_s
                if is_over or (near and isinstance(error, UnreachableError)):
                    raise UnreachableError(error, is_gone=False) from error
            except BaseException:
                if link is not None:
                    link.close()
                raise
            if link is not None:
                link.close()
                link = None
            self.turns.pause(_AGAIN_S)

    def close(self) -> None:
        """End the connections that are not in use."""
        for kept in self._kept.values():
            with contextlib.suppress(queue.Empty):
                while True:
                    link = kept.get_nowait()
                    if link is not None:
                        link.close()


def _ask(link: RankLink, question: Question, check: Callable[[], None]) -> Frame:
    link.listen(_LOOK_S, check)
    link.send(question)
    while True:
        frame = link.receive()
        if not isinstance(frame.message, Beat):
            return frame
        check()


class TurnPeers:
    """The other ranks in one turn (see ``mvc.training.Peers``)."""

    def __init__(self, asking: Asking, crew: RankCrew, join: Join) -> None:
        self._asking, self._crew, self._join = asking, crew, join
        # A link keeps it, so it must not know this object, and with it the images.
        self._check = partial(asking.turns.check, join.turn)
        self._images: dict[int, memoryview | None] = {}
        self._locks = [threading.Lock() for _ in range(crew.ranks)]

    def find_image(self, rank: int) -> memoryview | None:
        """Return another rank's image of this turn if its memory can be mapped here, else None.

        What is read there has to be copied before it is used: should the turn fail, it may change.

        Raises:
            StorageError: the turn came to nothing.
        """
        with self._locks[rank]:
            if rank not in self._images:
                self._images[rank] = self._map_image(rank) if self._crew.is_near(rank) else None
            return self._images[rank]

    def _map_image(self, rank: int) -> memoryview | None:
        question = GetImage(self._join.turn, self._join.digest)
        try:
            frame = self._asking.ask(rank, question, self._check, near=True)
        except UnreachableError:
            return None  # another container of this machine: over the network, then
        try:
            return _map(frame)
        except (OSError, ValueError) as error:
            raise StorageError(f"the memory of rank {rank} cannot be mapped: {error}") from error

    def fetch_part(self, rank: int, array: int, chunk: int) -> memoryview:
        """Return another rank's part of a chunk.

        Raises:
            StorageError: the turn came to nothing, or there is no way to that rank.
        """
        return self._fetch(rank, array, chunk)

    def fetch_checked(self, rank: int, array: int, chunk: int) -> memoryview:
        """Return what another rank checks of a chunk; raises as ``fetch_part``."""
        return self._fetch(rank, array, chunk, is_checked=True)

    def _fetch(self, rank: int, array: int, chunk: int, *, is_checked: bool = False) -> memoryview:
        question = GetPart(self._join.turn, self._join.digest, array, chunk, is_checked)
        try:
            return memoryview(self._asking.ask(rank, question, self._check).payload)
        except UnreachableError as error:
            raise StorageError(f"rank {rank} cannot be reached: {error}") from error


def _map(frame: Frame) -> memoryview:
    """Map memory that was passed; the mapping ends with the last view of it."""
    message, descriptor = frame.message, frame.descriptor
    if not isinstance(message, Here) or descriptor < 0:
        raise ValueError("it was not passed")
    try:
        if os.fstat(descriptor).st_size < message.size_bytes:
            raise ValueError("it is too short")
        return memoryview(mmap.mmap(descriptor, message.size_bytes, prot=mmap.PROT_READ))
    finally:
        os.close(descriptor)

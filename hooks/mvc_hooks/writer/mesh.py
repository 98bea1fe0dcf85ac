"""The writers of a sharded run together: what one of them needs of the others to make a commit.

Its ``Server`` gives the others the memory of its snapshot, or parts of chunks of it. Each connection has a
thread. A connection that cannot prove that it belongs to the run is dropped after some seconds, and no
more than a fixed number of them wait at a time.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from typing import TYPE_CHECKING, Protocol

from mvc import MvcError
from mvc_hooks.writer.dialing import Asking, Dialer, TurnPeers
from mvc_hooks.writer.holding import Holding, take_piece
from mvc_hooks.writer.messages import Answer, RankCrew
from mvc_hooks.writer.sides import FollowingRank, LeadingRank
from mvc_hooks.writer.turns import Offer, TurnError, Turns
from mvc_hooks.writer.wire import (
    Beat,
    Counts,
    Failed,
    Frame,
    GetImage,
    GetPart,
    Here,
    Keep,
    RankLink,
    Settled,
    fall_silent,
    open_link,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_MOST_STRANGERS = 256
_PROOF_S = 5.0
_FULL_S = 0.05
_UNKNOWN = -1
_LOOK_S = 0.25
_COURTESY_S = 0.2


class Hears(Protocol):
    """Takes in what is not a question."""

    def hear(self, link: RankLink, frame: Frame) -> None:
        """Take in a frame."""

    def lose(self, link: RankLink) -> None:
        """Note that a connection has ended."""


class Server:
    """Accepts connections and answers them, until it is closed."""

    def __init__(
        self, crew: RankCrew, turns: Turns, counts: Counts, hears: Hears, holding: Holding
    ) -> None:
        self._crew, self._turns, self._counts, self._hears = crew, turns, counts, hears
        self._holding = holding
        self._links: dict[RankLink, bool] = {}  # whether each has proved that it belongs
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._end = socket.socketpair()

    def start(self, descriptors: Sequence[int]) -> None:
        """Listen at inherited sockets, which stay the training's."""
        for descriptor in descriptors:
            self._threads.append(threading.Thread(target=self._accept_all, args=(descriptor,)))
            self._threads[-1].daemon = True
            self._threads[-1].start()

    def close(self) -> None:
        """Stop listening, and end all connections."""
        self._end[0].close()
        for thread in self._threads:
            thread.join()
        self._end[1].close()
        with self._lock:
            links = list(self._links)
        for link in links:
            link.stop()

    def _accept_all(self, descriptor: int) -> None:
        listening = socket.socket(fileno=descriptor)
        waiting = select.poll()  # a thread in accept() could not be ended without the socket
        waiting.register(listening, select.POLLIN)
        waiting.register(self._end[1], select.POLLIN)
        while self._end[1].fileno() not in dict(waiting.poll()):
            try:
                channel, _ = listening.accept()
                try:
                    link = open_link(channel, _UNKNOWN, self._counts, self._crew.grace_s)
                    threading.Thread(target=self._serve, args=(link,), daemon=True).start()
                except BaseException:
                    channel.close()
                    raise
            except (OSError, RuntimeError):  # it is gone again, or there are too many of them
                self._turns.pause(_FULL_S)
        listening.detach()

    def _serve(self, link: RankLink) -> None:
        try:
            self._admit(link)
            while True:
                self._take(link, link.receive())
        except OSError:
            pass  # the end of a connection, however it comes
        finally:
            with self._lock:
                is_known = self._links.pop(link)
            if is_known:
                self._hears.lose(link)
            link.close()

    def _admit(self, link: RankLink) -> None:
        """Let the other end prove itself, soon; drop the oldest strangers if there are too many."""
        with self._lock:
            strangers = [known_link for known_link, is_known in self._links.items() if not is_known]
            self._links[link] = False
        if len(strangers) >= _MOST_STRANGERS:
            strangers[0].stop()
        link.listen(_PROOF_S, fall_silent)
        link.welcome(self._crew)
        link.listen(0, None)
        with self._lock:
            self._links[link] = True

    def _take(self, link: RankLink, frame: Frame) -> None:
        message = frame.message
        if isinstance(message, Keep):
            take_piece(self._holding, link, frame, self._crew.rank)
            return
        if not isinstance(message, GetImage | GetPart):
            self._hears.hear(link, frame)
            return
        while (offer := self._turns.wait_offer(message.turn, self._crew.beat_s)) is None:
            link.send(Beat(self._turns.newest))
        if isinstance(offer, Answer):
            link.send(Settled(offer))
        elif message.digest != offer.join.digest:
            self._refuse(link, message.turn, "its state has another form")
        elif isinstance(message, GetImage):
            try:
                with self._turns.hold(offer) as descriptor:
                    link.send(Here(offer.size_bytes), descriptor=descriptor)
            except TurnError as error:
                link.send(Settled(error.answer))
        else:
            read = offer.parts.read_checked if message.is_checked else offer.parts.read_part
            try:
                part = memoryview(read(message.array, message.chunk)).cast("B")
            except (MvcError, ValueError, LookupError) as error:
                why = getattr(error, "message", error)
                self._refuse(link, message.turn, f"it has no such part: {why}")
            else:
                link.send(Here(part.nbytes), part)

    def _refuse(self, link: RankLink, turn: int, why: str) -> None:
        link.send(Failed(Answer(turn, error="format", message=f"rank {self._crew.rank}: {why}")))


class Mesh:
    """One writer among the others."""

    def __init__(
        self, crew: RankCrew, listening: Sequence[int], holding: Holding | None = None
    ) -> None:
        # counts: what it has sent since it began; turns: what became of the commits.
        self.crew, self.counts, self.turns = crew, Counts(), Turns()
        # dialer: opens connections to the other ranks.
        self.dialer = dialer = Dialer(crew, self.counts)
        self._asking = Asking(dialer, self.turns)
        # Rank 0's side; None elsewhere, where there is a ``follower``.
        self.leader = None if crew.rank else LeadingRank(crew, self.turns, dialer)
        self.follower = FollowingRank(crew, self.turns, dialer) if crew.rank else None
        side = self.leader or self.follower
        assert side is not None
        self._side = side
        self._server = Server(crew, self.turns, self.counts, self._side, holding or Holding())
        self._server.start(listening)
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._watch, daemon=True)]
        if self.follower is not None:
            self._threads.append(threading.Thread(target=self.follower.run, daemon=True))
        for thread in self._threads:
            thread.start()

    @contextlib.contextmanager
    def turn(self, turn: int) -> Iterator[None]:
        """Be in a turn meanwhile."""
        self._side.begin(turn)
        try:
            yield
        finally:
            self.turns.end()

    def bring(self, offer: Offer) -> TurnPeers:
        """Bring a share to the open turn; return the other ranks in it.

        Raises:
            TurnError: it has come to nothing already.
        """
        self._side.bring(offer)
        return TurnPeers(self._asking, self.crew, offer.join)

    def wait_gathered(self, turn: int) -> None:
        """Give all ranks a moment to come to the open turn.

        On a machine with few cores, a writer that is at work takes them from ranks that still copy.
        """
        self.turns.wait_gathered(turn, _COURTESY_S)

    def _watch(self) -> None:
        """Show that this writer is there, and notice who is not."""
        beat_s = time.monotonic()
        while not self._closed.wait(min(_LOOK_S, self.crew.beat_s)):
            if time.monotonic() - beat_s >= self.crew.beat_s:
                self._side.beat()
                beat_s = time.monotonic()
            self._side.judge()

    def close(self) -> None:
        """End all connections and threads."""
        self._closed.set()
        self._server.close()
        if self.follower is not None:
            self.follower.close()
        for thread in self._threads:
            thread.join()
        self._asking.close()

"""What a writer gives to the others: the memory of its snapshot, or parts of chunks of it.

Each connection has a thread. Who cannot prove that it belongs to the run is dropped: it costs a
thread for some seconds, of which there are so many and no more.
"""

from __future__ import annotations

import select
import socket
import threading
from typing import TYPE_CHECKING, Protocol

from mvc import MvcError
from mvc_hooks.writer.messages import Answer
from mvc_hooks.writer.replicating import take_piece
from mvc_hooks.writer.turns import TurnError
from mvc_hooks.writer.wire import (
    Beat,
    Failed,
    GetChecked,
    GetImage,
    GetPart,
    Here,
    Keep,
    Settled,
    fall_silent,
    open_link,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc_hooks.writer.crew import Crew
    from mvc_hooks.writer.holding import Holding
    from mvc_hooks.writer.turns import Offer, Turns
    from mvc_hooks.writer.wire import Counts, Frame, Link

_MOST_STRANGERS = 256
_PROOF_S = 5.0
_FULL_S = 0.05
_UNKNOWN = -1


class Hears(Protocol):
    """Takes in what is not a question."""

    def hear(self, link: Link, frame: Frame) -> None:
        """Take in a frame."""
        ...

    def lose(self, link: Link) -> None:
        """Note that a connection has ended."""
        ...


class Server:
    """Accepts connections and answers them, until it is closed."""

    def __init__(
        self, crew: Crew, turns: Turns, counts: Counts, hears: Hears, holding: Holding
    ) -> None:
        self._crew, self._turns, self._counts, self._hears = crew, turns, counts, hears
        self._holding = holding
        self._links: dict[Link, bool] = {}  # whether each has proved that it belongs
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
                self._accept(listening)
            except (OSError, RuntimeError):  # it is gone again, or there are too many of them
                self._turns.pause(_FULL_S)
        listening.detach()

    def _accept(self, listening: socket.socket) -> None:
        channel, _ = listening.accept()
        try:
            link = open_link(channel, _UNKNOWN, self._counts, self._crew.grace_s)
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()
        except BaseException:
            channel.close()
            raise

    def _serve(self, link: Link) -> None:
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

    def _admit(self, link: Link) -> None:
        """Let the other end prove itself, soon; drop the oldest strangers if there are too many."""
        with self._lock:
            strangers = [one for one, is_known in self._links.items() if not is_known]
            self._links[link] = False
        if len(strangers) >= _MOST_STRANGERS:
            strangers[0].stop()
        link.listen(_PROOF_S, fall_silent)
        link.welcome(self._crew)
        link.listen(0, None)
        with self._lock:
            self._links[link] = True

    def _take(self, link: Link, frame: Frame) -> None:
        message = frame.message
        if isinstance(message, Keep):
            take_piece(self._holding, link, frame, self._crew.rank)
            return
        if not isinstance(message, GetImage | GetPart | GetChecked):
            self._hears.hear(link, frame)
            return
        while (found := self._turns.wait_offer(message.turn, self._crew.beat_s)) is None:
            link.send(Beat(self._turns.newest))
        if isinstance(found, Answer):
            link.send(Settled(found))
        elif message.digest != found.join.digest:
            self._refuse(link, message.turn, "its state has another form")
        elif isinstance(message, GetImage):
            self._give_image(link, found)
        else:
            self._give_part(link, message, found)

    def _give_image(self, link: Link, offer: Offer) -> None:
        try:
            with self._turns.hold(offer) as descriptor:
                link.send(Here(offer.size_bytes), descriptor=descriptor)
        except TurnError as error:
            link.send(Settled(error.answer))

    def _give_part(self, link: Link, message: GetPart | GetChecked, offer: Offer) -> None:
        read = offer.parts.read_part if isinstance(message, GetPart) else offer.parts.read_checked
        try:
            part = memoryview(read(message.array, message.chunk)).cast("B")
        except (MvcError, ValueError, LookupError) as error:
            self._refuse(link, message.turn, f"it has no such part: {error}")
        else:
            link.send(Here(part.nbytes), part)

    def _refuse(self, link: Link, turn: int, why: str) -> None:
        link.send(Failed(Answer(turn, error="format", message=f"rank {self._crew.rank}: {why}")))

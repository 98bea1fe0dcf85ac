"""The side of the other ranks: they tell rank 0 what they do, and hear what becomes of a turn.

What is to be said is kept until the outcome is known, and said again to every writer of rank 0 that
comes: a connection may be lost on the way, and a writer replaced.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from mvc_hooks.writer.members import Member, find_missing
from mvc_hooks.writer.wire import Beat, Failed, Gathered, Join, Settled, Stored, fall_silent

if TYPE_CHECKING:
    from mvc_hooks.writer.crew import Crew
    from mvc_hooks.writer.dialing import Dialer
    from mvc_hooks.writer.messages import Answer
    from mvc_hooks.writer.turns import Offer, Turns
    from mvc_hooks.writer.wire import Frame, Link

_AGAIN_S = 0.2
_MOST_FAILED = 8


class Follower:
    """What a rank other than 0 knows of rank 0, and has to say to it."""

    def __init__(self, crew: Crew, turns: Turns, dialer: Dialer) -> None:
        self._crew, self._turns, self._dialer = crew, turns, dialer
        self._head = Member(0)
        self._said: list[tuple[Join | Stored | Failed, bytes]] = []
        self._is_closed = False

    def begin(self, turn: int) -> None:
        """Open a turn."""
        with (
            self._turns.changed
        ):  # failures that rank 0 has not heard of yet, as far as they matter
            failed = [one for one in self._said if isinstance(one[0], Failed)]
            self._said = failed[-_MOST_FAILED:]
            self._turns.begin(turn)

    def bring(self, offer: Offer) -> None:
        """Bring a share to the open turn; TurnError if that came to nothing already."""
        self._turns.bring(offer)
        self._say(offer.join)

    def finish(self, turn: int, payload: bytes) -> Answer | None:
        """Tell rank 0 what was stored; wait for what becomes of the turn."""
        self._say(Stored(turn), payload)
        return self._turns.wait_outcome(turn)

    def fail(self, answer: Answer) -> Answer | None:
        """Tell rank 0 that the turn came to nothing here; wait for what becomes of it."""
        self._say(Failed(answer))
        return self._turns.wait_outcome(answer.number)

    def _say(self, message: Join | Stored | Failed, payload: bytes = b"") -> None:
        with self._turns.changed:
            self._said.append((message, payload))
            link = self._head.link
        if link is not None:
            try:
                link.send(message, payload)
            except OSError:
                link.stop()

    # A thread of its own.

    def run(self) -> None:
        """Stay connected with rank 0, until this is closed."""
        while not self._is_closed:
            with contextlib.suppress(OSError):
                link = self._dialer.dial(0, self._check)
                try:
                    self._talk(link)
                finally:
                    self._attach(None)
                    link.close()
            self._turns.pause(_AGAIN_S)

    def _talk(self, link: Link) -> None:
        link.listen(self._crew.grace_s, fall_silent)
        link.send(Beat(self._turns.newest))  # says which link this is
        for said, payload in self._attach(link):
            link.send(said, payload)
        while True:
            message = link.receive().message
            if isinstance(message, Beat):
                self._head.turn = message.turn
            elif isinstance(message, Gathered):
                self._turns.gather(message.turn)
            elif isinstance(message, Settled):
                self._take(message.answer)

    def _attach(self, link: Link | None) -> list[tuple[Join | Stored | Failed, bytes]]:
        with self._turns.changed:
            if link is not None:
                self._check()
            self._head.attach(link)
            self._turns.changed.notify_all()
            return list(self._said)

    def _take(self, answer: Answer) -> None:
        with self._turns.changed:
            self._said = [one for one in self._said if _turn_of(one[0]) != answer.number]
            self._turns.settle(answer, is_final=True)

    def _check(self) -> None:
        if self._is_closed:
            raise ConnectionAbortedError

    def close(self) -> None:
        """End the thread."""
        with self._turns.changed:
            self._is_closed = True
            self._turns.changed.notify_all()
        if self._head.link is not None:
            self._head.link.stop()

    # From other threads.

    def hear(self, link: Link, frame: Frame) -> None:
        """Take in what the training of rank 0 says, which it does if it has no writer."""
        if isinstance(frame.message, Failed) and link.rank == 0:
            self._take(frame.message.answer)
            link.send(Settled(frame.message.answer))

    def lose(self, link: Link) -> None:
        """Ranks other than 0 only ask; what they are told needs no care."""

    def beat(self) -> None:
        """Tell rank 0 that this one is there."""
        link = self._head.link
        if link is not None:
            try:
                link.send(Beat(self._turns.newest))
            except OSError:
                link.stop()

    def judge(self) -> None:
        """Stop waiting for rank 0 if it will never tell what becomes of the open turn."""
        with self._turns.changed:
            missing = [self._head] if self._turns.is_pending else []
        answer = find_missing(missing, self._turns, self._crew, self._dialer)
        if answer is not None:
            self._turns.lose(answer)


def _turn_of(message: Join | Stored | Failed) -> int:
    return message.answer.number if isinstance(message, Failed) else message.turn

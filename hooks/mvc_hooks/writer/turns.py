"""What a writer knows of the turns of a sharded run: its own share, and what became of each.

A turn is *open* from when this rank comes to it until it knows the outcome; there is one at a time.
Rank 0 decides every outcome, once, and the others take it from there, so all ranks agree. Threads
that wait for something share one condition.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mvc import StorageError
from mvc_hooks.writer.messages import GONE, Answer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc_hooks.writer.wire import Join

_REMEMBERED = 64


class ShareParts(Protocol):
    """What a rank can give others of its snapshot."""

    def read_part(self, array: int, chunk: int) -> bytes | memoryview:
        """Return this rank's part of a chunk."""

    def read_checked(self, array: int, chunk: int) -> bytes | memoryview:
        """Return what this rank checks of a chunk."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a rank brings to a turn: what it is about, the parts of chunks, and their memory."""

    join: Join
    parts: ShareParts
    descriptor: int  # of that memory, whose first ``size_bytes`` count; open as long as the turn
    size_bytes: int


class TurnError(StorageError):
    """A turn came to nothing; ``answer`` says why."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.message, hint=answer.hint)
        self.answer = answer


class Turns:
    """The open turn and the outcomes of the last ones."""

    def __init__(self) -> None:
        self.changed = threading.Condition()  # the lock of all this, told of every change
        # turn: number of the open turn, or 0; newest: number of the newest turn that came here,
        # open or not; ``began_s`` is when; gathered: number of the newest turn that all ranks have
        # come to.
        self.turn = self.newest = self.gathered = 0
        self.began_s = 0.0
        # What this rank brings to the open turn, if it brings anything.
        self.offer: Offer | None = None
        self.is_decided = False  # whether rank 0 has everything, so that failures come too late
        # Why the outcome of the open turn will never be told, or None.
        self.lost: Answer | None = None
        self._outcomes: dict[int, Answer] = {}

    def begin(self, turn: int) -> None:
        """Open a turn."""
        with self.changed:
            self.turn = self.newest = turn
            self.began_s = time.monotonic()
            self.offer, self.is_decided, self.lost = None, False, None
            self.changed.notify_all()

    def bring(self, offer: Offer) -> None:
        """Bring something to the open turn; TurnError if that came to nothing already."""
        with self.changed:
            self.check(offer.join.turn)
            self.offer = offer
            self.changed.notify_all()

    def end(self) -> None:
        """Close the open turn: its memory may change from now on."""
        with self.changed:
            self.turn, self.offer = 0, None
            self.changed.notify_all()

    @property
    def is_pending(self) -> bool:
        """Whether the outcome of the open turn is still to come, and depends on the other ranks."""
        if not self.turn or self.is_decided or self.lost is not None:
            return False
        return self.turn not in self._outcomes

    def find(self, turn: int) -> Answer | None:
        """Return what became of a turn, if that is known."""
        with self.changed:
            known = self._outcomes.get(turn)
            if known is None and turn < self.newest:
                known = _be_over(turn)
            return known

    def settle(self, answer: Answer, *, is_final: bool = False) -> Answer:
        """Note what became of a turn; return what did, since the first to say so is right.

        Once a turn is decided, only what is final counts, and is waited for.
        """
        with self.changed:
            if not is_final and self.turn == answer.number and self.is_decided:
                self.changed.wait_for(lambda: answer.number in self._outcomes)
            known = self._outcomes.setdefault(answer.number, answer)
            while len(self._outcomes) > _REMEMBERED:
                del self._outcomes[next(iter(self._outcomes))]
            self.changed.notify_all()
        return known

    def lose(self, answer: Answer) -> None:
        """Give up the wait for the outcome of the open turn, if that is still awaited."""
        with self.changed:
            if self.is_pending and self.turn == answer.number:
                self.lost = answer
                self.changed.notify_all()

    def check(self, turn: int) -> None:
        """Raise TurnError if an open turn came to nothing."""
        with self.changed:
            known = self.find(turn) or self.lost
        if known is not None:
            raise TurnError(known)

    def gather(self, turn: int) -> bool:
        """Note that all ranks have come to a turn; return whether that is new."""
        with self.changed:
            is_new = turn > self.gathered
            self.gathered = max(self.gathered, turn)
            self.changed.notify_all()
        return is_new

    def wait_gathered(self, turn: int, at_most_s: float) -> None:
        """Wait until all ranks have come to the open turn, or it is over, but not for long."""
        with self.changed:
            self.changed.wait_for(
                lambda: self.gathered >= turn or self.find(turn) or self.lost, at_most_s
            )

    def wait_outcome(self, turn: int) -> Answer | None:
        """Wait for what becomes of the open turn; None if no rank is left that could tell."""
        with self.changed:
            self.changed.wait_for(lambda: self.find(turn) or self.lost)
            return self.find(turn)

    def wait_offer(self, turn: int, at_most_s: float) -> Offer | Answer | None:
        """Wait for what this rank brings to a turn; return what became of it if it is over."""

        def look() -> Offer | Answer | None:
            return self.find(turn) or (self.offer if self.turn == turn else None)

        with self.changed:
            return self.changed.wait_for(look, at_most_s)

    def pause(self, seconds: float) -> None:
        """Wait for a change, but not for long."""
        with self.changed:
            self.changed.wait(seconds)

    @contextlib.contextmanager
    def hold(self, offer: Offer) -> Iterator[int]:
        """Give a descriptor of an offer's memory that stays open meanwhile."""
        with self.changed:
            self.check(offer.join.turn)
            if self.offer is not offer:
                raise TurnError(_be_over(offer.join.turn))
            descriptor = os.dup(offer.descriptor)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _be_over(turn: int) -> Answer:
    return Answer(turn, error=GONE, message=f"commit {turn} of this run is over")

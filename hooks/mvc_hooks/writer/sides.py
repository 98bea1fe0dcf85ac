"""The two sides of a turn: rank 0 decides what becomes of it, and the other ranks follow.

The leader hears from every other rank, decides, and tells all of them. A follower tells rank 0 what it does.
It keeps what it said until the outcome is known, and says it again to every new writer of rank 0: a
connection may be lost on the way, and a writer replaced. Both stop waiting for a rank that will never come.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mvc_hooks.writer.messages import GONE, Answer
from mvc_hooks.writer.wire import Beat, Failed, Gathered, Join, Settled, Stored, fall_silent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc_hooks.writer.dialing import Dialer
    from mvc_hooks.writer.messages import RankCrew
    from mvc_hooks.writer.turns import Offer, Turns
    from mvc_hooks.writer.wire import Frame, Message, RankLink

_KNOCK_S = 0.5
_MOST_KNOCKS = 16
_AGAIN_S = 0.2
_MOST_FAILED = 8


@dataclass(slots=True)
class Member:
    """Another rank."""

    rank: int
    # Over which it says what it does, or None: since ``since_s`` it is away.
    link: RankLink | None = None
    since_s: float = field(default_factory=time.monotonic)
    turn: int = 0  # the newest turn that it is known to have come to
    join: Join | None = None  # join, stored: what it said about that turn
    stored: tuple[int, bytearray] | None = None
    knocked_s: float = 0.0  # when this rank last tried whether anyone listens there

    def attach(self, link: RankLink | None) -> RankLink | None:
        """Note that the rank came, or went; return the link that it had until now."""
        before, self.link = self.link, link
        self.since_s, self.knocked_s = time.monotonic(), 0.0
        return before


def find_missing(
    members: list[Member], turns: Turns, crew: RankCrew, dialer: Dialer
) -> Answer | None:
    """Return the failure of the open turn if one of these ranks will never do its part, or None."""
    knocks = 0
    for member in members:
        now_s = time.monotonic()
        why = _find_impatience(member, turns, crew, now_s)
        is_due = member.link is None and now_s - member.knocked_s >= _KNOCK_S
        if why is None and is_due and knocks < _MOST_KNOCKS:
            knocks, member.knocked_s = knocks + 1, now_s
            why = _find_absence(member, crew, dialer, now_s)
        if why is not None:
            return Answer(turns.turn, error=GONE, message=f"rank {member.rank}: {why}")
    return None


def _find_impatience(member: Member, turns: Turns, crew: RankCrew, now_s: float) -> str | None:
    if member.turn < turns.turn:
        if now_s - turns.began_s > crew.patience_s:
            return f"it has not come to this commit for {crew.patience_s:.0f} s"
    elif member.link is None and now_s - member.since_s > crew.grace_s:
        return "its writer ended"
    return None


def _find_absence(member: Member, crew: RankCrew, dialer: Dialer, now_s: float) -> str | None:
    error = dialer.knock(member.rank)
    if error is None:
        return None
    if error.is_gone:
        return "its training and its writer have ended"
    is_over = now_s - member.since_s > crew.grace_s
    return f"it cannot be reached: {error}" if is_over else None


class LeadingRank:
    """What rank 0 knows of the others in the open turn."""

    def __init__(self, crew: RankCrew, turns: Turns, dialer: Dialer) -> None:
        self._crew, self._turns, self._dialer = crew, turns, dialer
        self._members = {rank: Member(rank) for rank in range(1, crew.ranks)}

    def begin(self, turn: int) -> None:
        """Open a turn."""
        self._turns.begin(turn)
        self.beat()  # should this writer end, they know that it had come

    def bring(self, offer: Offer) -> None:
        """Bring a share to the open turn; TurnError if that came to nothing already."""
        self._turns.bring(offer)
        for member in self._members.values():
            self._compare(member)
        self._gather()

    def collect(self, turn: int) -> list[bytearray]:
        """Wait until all other ranks have stored their shares; return what each said, in order.

        From then on the outcome depends on this rank alone.

        Raises:
            TurnError: the turn came to nothing.
        """
        turns = self._turns
        with turns.changed:
            turns.changed.wait_for(lambda: turns.find(turn) or not any(self._find_unstored()))
            turns.check(turn)
            turns.is_decided = True
            stored = [member.stored for member in self._members.values()]
            return [payload for number, payload in filter(None, stored) if number == turn]

    def settle(self, answer: Answer, *, is_final: bool = False) -> Answer:
        """Decide what becomes of a turn, if that is open, and tell all; return what does."""
        known = self._turns.settle(answer, is_final=is_final)
        if known is answer:
            with self._turns.changed:
                for member in self._members.values():
                    if member.stored is not None and member.stored[0] <= answer.number:
                        member.stored = None
            for member in self._members.values():
                _send(member.link, Settled(known))
        return known

    def hear(self, link: RankLink, frame: Frame) -> None:
        """Take in what a rank says."""
        member, message = self._members[link.rank], frame.message
        with self._turns.changed:
            before = link if member.link is link else member.attach(link)
        if before is not link:
            link.listen(self._crew.grace_s, fall_silent)
            if before is not None:
                before.stop()
        with self._turns.changed:
            if isinstance(message, Beat | Join):
                member.turn = max(member.turn, message.turn)
            if isinstance(message, Join):
                member.join = message
            if isinstance(message, Stored):
                member.stored = (message.turn, frame.payload)
                self._turns.changed.notify_all()
        if isinstance(message, Join) and not self._repeat(member, message.turn):
            self._compare(member)
            self._gather()
        if isinstance(message, Failed) and self.settle(message.answer) is not message.answer:
            self._repeat(member, message.answer.number)

    def lose(self, link: RankLink) -> None:
        """Note that a connection has ended."""
        member = self._members[link.rank]
        with self._turns.changed:
            if member.link is link:
                member.attach(None)
                self._turns.changed.notify_all()

    def _compare(self, member: Member) -> None:
        """Compare what a rank has come for with the open turn."""
        with self._turns.changed:
            turn, offer, join = self._turns.turn, self._turns.offer, member.join
            why = None
            if offer is not None and join is not None and self._turns.is_pending:
                why = _find_difference(offer.join, join)
        if why is not None:
            self.settle(Answer(turn, error=GONE, message=f"rank {member.rank}: {why}"))

    def _gather(self) -> None:
        """Tell all once everyone has come to the open turn."""
        with self._turns.changed:
            turn, members = self._turns.turn, list(self._members.values())
            is_full = self._turns.offer is not None and all(
                member.join is not None and member.join.turn == turn for member in members
            )
        if is_full and self._turns.gather(turn):
            for member in members:
                _send(member.link, Gathered(turn))

    def _repeat(self, member: Member, turn: int) -> bool:
        """Tell a rank once more what became of a turn, if that is known."""
        known = self._turns.find(turn)
        if known is not None:
            _send(member.link, Settled(known))
        return known is not None

    def _find_unstored(self) -> Iterator[Member]:
        turn = self._turns.turn
        for member in self._members.values():
            if member.stored is None or member.stored[0] != turn:
                yield member

    def beat(self) -> None:
        """Tell the others that this rank is there."""
        for member in self._members.values():
            _send(member.link, Beat(self._turns.newest))

    def judge(self) -> None:
        """Let the open turn fail if a rank will never do its part."""
        with self._turns.changed:
            missing = list(self._find_unstored()) if self._turns.is_pending else []
        answer = find_missing(missing, self._turns, self._crew, self._dialer)
        if answer is not None:
            self.settle(answer)


def _find_difference(mine: Join, theirs: Join) -> str | None:
    if theirs.turn < mine.turn:
        return None  # it is still to come
    if theirs.turn > mine.turn:
        return f"it went on without commit {mine.turn} of this run"
    if theirs.step != mine.step:
        return f"its state is of step {theirs.step}, that of rank 0 of step {mine.step}"
    if theirs.branch != mine.branch:
        return f"its state is for branch {theirs.branch}, that of rank 0 for {mine.branch}"
    if theirs.digest != mine.digest:
        return "its state has another form than that of rank 0"
    return None


def _send(link: RankLink | None, message: Message, payload: bytes = b"") -> None:
    if link is not None:
        try:
            link.send(message, payload)
        except OSError:
            link.stop()


class FollowingRank:
    """What a rank other than 0 knows of rank 0, and has to say to it."""

    def __init__(self, crew: RankCrew, turns: Turns, dialer: Dialer) -> None:
        self._crew, self._turns, self._dialer = crew, turns, dialer
        self._head = Member(0)
        self._said: list[tuple[Join | Stored | Failed, bytes]] = []
        self._is_closed = False

    def begin(self, turn: int) -> None:
        """Open a turn."""
        with self._turns.changed:
            # Failures that rank 0 has not heard of yet, as far as they matter.
            failed = [said for said in self._said if isinstance(said[0], Failed)]
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
        _send(link, message, payload)

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

    def _talk(self, link: RankLink) -> None:
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

    def _attach(self, link: RankLink | None) -> list[tuple[Join | Stored | Failed, bytes]]:
        with self._turns.changed:
            if link is not None:
                self._check()
            self._head.attach(link)
            self._turns.changed.notify_all()
            return list(self._said)

    def _take(self, answer: Answer) -> None:
        with self._turns.changed:
            self._said = [
                (message, payload)
                for message, payload in self._said
                if (message.answer.number if isinstance(message, Failed) else message.turn)
                != answer.number
            ]
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

    def hear(self, link: RankLink, frame: Frame) -> None:
        """Take in what the training of rank 0 says, which it does if it has no writer."""
        if isinstance(frame.message, Failed) and link.rank == 0:
            self._take(frame.message.answer)
            link.send(Settled(frame.message.answer))

    def lose(self, link: RankLink) -> None:
        """Ranks other than 0 only ask; what they are told needs no care."""

    def beat(self) -> None:
        """Tell rank 0 that this one is there."""
        _send(self._head.link, Beat(self._turns.newest))

    def judge(self) -> None:
        """Stop waiting for rank 0 if it will never tell what becomes of the open turn."""
        with self._turns.changed:
            missing = [self._head] if self._turns.is_pending else []
        answer = find_missing(missing, self._turns, self._crew, self._dialer)
        if answer is not None:
            self._turns.lose(answer)

"""Rank 0's side of a turn: it hears of every other rank, decides, and tells all what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc_hooks.writer.members import Member, find_missing
from mvc_hooks.writer.messages import GONE, Answer
from mvc_hooks.writer.wire import Beat, Failed, Gathered, Join, Settled, Stored, fall_silent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc_hooks.writer.crew import Crew
    from mvc_hooks.writer.dialing import Dialer
    from mvc_hooks.writer.turns import Offer, Turns
    from mvc_hooks.writer.wire import Frame, Link


class Leader:
    """What rank 0 knows of the others in the open turn."""

    def __init__(self, crew: Crew, turns: Turns, dialer: Dialer) -> None:
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

    def hear(self, link: Link, frame: Frame) -> None:
        """Take in what a rank says."""
        member, message = self._members[link.rank], frame.message
        self._attach(member, link)
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

    def _attach(self, member: Member, link: Link) -> None:
        with self._turns.changed:
            before = link if member.link is link else member.attach(link)
        if before is not link:
            link.listen(self._crew.grace_s, fall_silent)
            if before is not None:
                before.stop()

    def lose(self, link: Link) -> None:
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
                one.join is not None and one.join.turn == turn for one in members
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
        for one in self._members.values():
            if one.stored is None or one.stored[0] != turn:
                yield one

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


def _send(link: Link | None, message: Beat | Gathered | Settled) -> None:
    if link is not None:
        try:
            link.send(message)
        except OSError:
            link.stop()

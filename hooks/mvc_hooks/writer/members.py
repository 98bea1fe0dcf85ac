"""What a writer knows of another rank, and when it stops waiting for it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mvc_hooks.writer.messages import GONE, Answer

if TYPE_CHECKING:
    from mvc_hooks.writer.crew import Crew
    from mvc_hooks.writer.dialing import Dialer
    from mvc_hooks.writer.turns import Turns
    from mvc_hooks.writer.wire import Join, Link

_KNOCK_S = 0.5
_MOST_KNOCKS = 16


@dataclass(slots=True)
class Member:
    """Another rank.

    Attributes:
        link: over which it says what it does, or None: since ``since_s`` it is away.
        turn: the newest turn that it is known to have come to.
        join, stored: what it said about that turn.
        knocked_s: when it was last tried whether somebody listens there.
    """

    rank: int
    link: Link | None = None
    since_s: float = field(default_factory=time.monotonic)
    turn: int = 0
    join: Join | None = None
    stored: tuple[int, bytearray] | None = None
    knocked_s: float = 0.0

    def attach(self, link: Link | None) -> Link | None:
        """Note that the rank came, or went; return the link that it had until now."""
        before, self.link = self.link, link
        self.since_s, self.knocked_s = time.monotonic(), 0.0
        return before


def find_missing(members: list[Member], turns: Turns, crew: Crew, dialer: Dialer) -> Answer | None:
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


def _find_impatience(member: Member, turns: Turns, crew: Crew, now_s: float) -> str | None:
    if member.turn < turns.turn:
        if now_s - turns.began_s > crew.patience_s:
            return f"it has not come to this commit for {crew.patience_s:.0f} s"
    elif member.link is None and now_s - member.since_s > crew.grace_s:
        return "its writer ended"
    return None


def _find_absence(member: Member, crew: Crew, dialer: Dialer, now_s: float) -> str | None:
    error = dialer.knock(member.rank)
    if error is None:
        return None
    if error.is_gone:
        return "its training and its writer have ended"
    is_over = now_s - member.since_s > crew.grace_s
    return f"it cannot be reached: {error}" if is_over else None

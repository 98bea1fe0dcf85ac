"""A run on a branch, and what works for it: recorded once, for all that take part in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mvc_hooks.extension import Host
from mvc_hooks.ranks.messages import StepMessages
from mvc_hooks.ranks.notes import Talk

if TYPE_CHECKING:
    from mvc_hooks.divergence.history import Reading
    from mvc_hooks.judge import Judge
    from mvc_hooks.run.live import LiveRun
    from mvc_hooks.settings import Settings


@dataclass(slots=True, eq=False, kw_only=True)
class Session(Host):
    """What the rooms of a run share.

    Attributes:
        talk: what ranks note for each other, in ``messages``: one goes from all to all at each step.
        sends: whether this rank has a repository of its own, so that commits come there from a store.
    """

    settings: Settings
    run: LiveRun
    judge: Judge
    talk: Talk = field(default_factory=Talk)
    messages: StepMessages = field(default_factory=StepMessages)
    sends: bool = False

    @property
    def step(self) -> int:
        """Completed steps."""
        return self.run.counters.step

    @property
    def reading(self) -> Reading | None:
        """The newest reading that has arrived, or None."""
        return self.judge.latest

    def note_bad_state(self, step: int) -> None:
        """Record that the state of a step was not sound."""
        self.judge.note_bad_state(step)

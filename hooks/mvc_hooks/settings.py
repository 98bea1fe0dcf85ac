"""What a user sets of a checkpointer, checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from mvc import UsageError
from mvc_hooks.snapshot.ring import Ring

WhenBehind = Literal["wait", "skip", "sync"]
OnFailure = Literal["raise", "continue"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How often, and what happens when something is in the way.

    Attributes:
        every: steps between two commits; None: not by steps.
        every_seconds: seconds between two commits; None: not by time.
        when_behind: what a commit does while earlier ones are still being written: ``wait`` for
            room, be left out (``skip``), or wait until it is durable itself (``sync``).
        on_failure: whether a commit that failed stops the run (``raise``) or is only told.
        in_flight: snapshots that may wait for the writer; each takes the size of the state.
        healthy_after: steps without alarm after which a commit counts as healthy.
        delta: as for ``Repo.commit_state``.
        writer_threads: workers of the writer; all cores where None, at low priority.
        allow: patterns of the parts that may differ at a resume (``optimizer.*``).
        ring: the ring of light snapshots, or None.
        keep_diverged: whether a run that diverged is committed as it was before it goes back.
        signals: whether SIGTERM and SIGINT commit a last time.
    """

    every: int | None = 1000
    every_seconds: float | None = None
    when_behind: WhenBehind = "wait"
    on_failure: OnFailure = "raise"
    in_flight: int = 1
    healthy_after: int = 100
    delta: bool | None = None
    writer_threads: int | None = None
    allow: Sequence[str] = ()
    ring: Ring | None = None
    keep_diverged: bool = False
    signals: bool = True

    def __post_init__(self) -> None:
        """Check them.

        Raises:
            UsageError: one makes no sense; the message names it.
        """
        for name in ("every", "in_flight", "healthy_after", "writer_threads"):
            _check_count(name, getattr(self, name), optional=name in ("every", "writer_threads"))
        seconds = self.every_seconds
        if seconds is not None and not (type(seconds) in (int, float) and 0 < seconds < math.inf):
            raise UsageError(f"every_seconds is {seconds!r}, not a positive number of seconds")
        for name, kind in (("when_behind", WhenBehind), ("on_failure", OnFailure)):
            value, choices = getattr(self, name), get_args(kind)
            if value not in choices:
                raise UsageError(f"{name} is {value!r}, none of {', '.join(choices)}")
        for name in ("delta", "keep_diverged", "signals"):
            _check_switch(name, getattr(self, name), optional=name == "delta")
        self._check_objects()

    def _check_objects(self) -> None:
        _check_patterns(self.allow)
        if self.ring is not None and not isinstance(self.ring, Ring):
            raise UsageError(f"ring is {self.ring!r}, not a Ring", hint="ring=Ring(every=100)")


def _check_patterns(value: object) -> None:
    if (
        not isinstance(value, Sequence)
        or isinstance(value, str)
        or not all(isinstance(pattern, str) for pattern in value)
    ):
        raise UsageError(
            f"allow is {value!r}, not a list of patterns", hint='allow=["optimizer.*"]'
        )


def _check_switch(name: str, value: object, *, optional: bool) -> None:
    if value is None and optional:
        return
    if type(value) is not bool:
        raise UsageError(f"{name} is {value!r}, neither True nor False")


def _check_count(name: str, value: object, *, optional: bool) -> None:
    if value is None and optional:
        return
    if type(value) is not int or value < 1:
        hint = "every=None commits by call only" if name == "every" else None
        raise UsageError(f"{name} is {value!r}, not a whole number from 1 on", hint=hint)

"""The settings of a checkpointer, checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from mvc import UsageError
from mvc_hooks.divergence.history import check_count
from mvc_hooks.snapshot.ring import Ring

WhenBehind = Literal["wait", "skip", "sync"]
OnFailure = Literal["raise", "continue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a ``Checkpointer``, which documents them and has their defaults."""

    every: int | None
    every_seconds: float | None
    resume: bool
    when_behind: WhenBehind
    on_failure: OnFailure
    in_flight: int
    healthy_after: int
    delta: bool | None
    writer_threads: int | None
    allow: Sequence[str]
    ring: Ring | None
    keep_diverged: bool
    signals: bool

    def __post_init__(self) -> None:
        for name in ("every", "in_flight", "healthy_after", "writer_threads"):
            value = getattr(self, name)
            if value is not None or name not in ("every", "writer_threads"):
                hint = "every=None commits by call only" if name == "every" else None
                check_count(name, value, 1, hint=hint)
        seconds = self.every_seconds
        if seconds is not None and not (type(seconds) in (int, float) and 0 < seconds < math.inf):
            raise UsageError(f"every_seconds is {seconds!r}, not a positive number of seconds")
        for name, kind in (("when_behind", WhenBehind), ("on_failure", OnFailure)):
            value, choices = getattr(self, name), get_args(kind)
            if value not in choices:
                raise UsageError(f"{name} is {value!r}, none of {', '.join(choices)}")
        for name in ("delta", "resume", "keep_diverged", "signals"):
            value = getattr(self, name)
            if type(value) is not bool and (value is not None or name != "delta"):
                raise UsageError(f"{name} is {value!r}, neither True nor False")
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

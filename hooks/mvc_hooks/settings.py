"""The settings of a checkpointer, checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mvc import Identity, UsageError
from mvc_data.shards import as_checks
from mvc_hooks.divergence.history import check_count
from mvc_hooks.snapshot.ring import Ring
from mvc_lab.consistency.checking import Consistency
from mvc_lab.monitor.monitor import Monitor

WhenBehind = Literal["wait", "skip", "sync"]
OnFailure = Literal["raise", "continue"]
Replicate = Literal[0, 1]
_CHOICES: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("when_behind", get_args(WhenBehind)),
    ("on_failure", get_args(OnFailure)),
    ("replicate", get_args(Replicate)),
)
_OBJECTS: tuple[tuple[str, Any, str, str | None], ...] = (
    ("branch", str, "a name", None),
    ("identity", Identity, "an Identity", 'identity=mvc.Identity("Ada", "ada@example.org")'),
    ("warm_up", Callable, "a function", None),
    ("ring", Ring, "a Ring", "ring=Ring(every=100)"),
    ("monitor", Monitor, "a Monitor", "monitor=Monitor(port=9400)"),
    ("consistency", Consistency, "a Consistency", "consistency=Consistency(every=100)"),
)


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
    replicate: Replicate
    delta: bool | None
    writer_threads: int | None
    allow: Sequence[str]
    ring: Ring | None
    keep_diverged: bool
    signals: bool
    branch: str | None
    identity: Identity | None
    warm_up: Callable[[], object] | None
    monitor: Monitor | None
    consistency: Consistency | None
    pipeline: object = None
    shards: object = None

    def __post_init__(self) -> None:
        for name in ("every", "in_flight", "healthy_after", "writer_threads"):
            value = getattr(self, name)
            if value is not None or name not in ("every", "writer_threads"):
                hint = "every=None commits by call only" if name == "every" else None
                check_count(name, value, 1, hint=hint)
        seconds = self.every_seconds
        if seconds is not None and not (type(seconds) in (int, float) and 0 < seconds < math.inf):
            raise UsageError(f"every_seconds is {seconds!r}, not a positive number of seconds")
        for name, choices in _CHOICES:
            value = getattr(self, name)
            if type(value) is not type(choices[0]) or value not in choices:
                raise UsageError(f"{name} is {value!r}, not one of {', '.join(map(str, choices))}")
        for name in ("delta", "resume", "keep_diverged", "signals"):
            value = getattr(self, name)
            if type(value) is not bool and (value is not None or name != "delta"):
                raise UsageError(f"{name} is {value!r}, neither True nor False")
        _check_patterns(self.allow)
        as_checks(self.shards)
        for name, kind, what, hint in _OBJECTS:
            value = getattr(self, name)
            if value is not None and (value == "" or not isinstance(value, kind)):
                raise UsageError(f"{name} is {value!r}, not {what}", hint=hint)


def _check_patterns(value: object) -> None:
    if (
        not isinstance(value, Sequence)
        or isinstance(value, str)
        or not all(isinstance(pattern, str) for pattern in value)
    ):
        raise UsageError(
            f"allow is {value!r}, not a list of patterns", hint='allow=["optimizer.*"]'
        )

"""The settings of a checkpointer, and a run on a branch with what works for it: recorded once, for all that take part in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from mvc import Identity
from mvc_hooks.checks import (
    check_fields,
    count,
    flag,
    instance,
    one_of,
    optional,
    seconds,
    sequence,
)
from mvc_hooks.extension import Extension, Host
from mvc_hooks.ranks.messages import StepMessages, Talk
from mvc_hooks.snapshot.ring import Ring

if TYPE_CHECKING:
    from mvc_hooks.divergence.history import Reading
    from mvc_hooks.judge import Judge
    from mvc_hooks.run.live import LiveRun


WhenBehind = Literal["wait", "skip", "sync"]
OnFailure = Literal["raise", "continue"]
Replicate = Literal[0, 1]
_IDENTITY = 'identity=mvc.Identity("Ada", "ada@example.org")'
_REQUIREMENTS = {
    "every": optional(count(hint="every=None commits by call only")),
    "every_seconds": optional(seconds()),
    "in_flight": count(),
    "healthy_after": count(),
    "writer_threads": optional(count()),
    "when_behind": one_of(*get_args(WhenBehind)),
    "on_failure": one_of(*get_args(OnFailure)),
    "replicate": one_of(*get_args(Replicate)),
    "delta": optional(flag()),
    "resume": flag(),
    "keep_diverged": flag(),
    "signals": flag(),
    "allow": sequence(str, "patterns", 'allow=["optimizer.*"]'),
    "branch": optional(instance(str, "a name")),
    "identity": optional(instance(Identity, "an Identity", _IDENTITY)),
    "warm_up": optional(instance(Callable, "a function")),
    "ring": optional(instance(Ring, "a Ring", "ring=Ring(every=100)")),
    "monitor": optional(instance(Extension, "a Monitor", "monitor=Monitor(port=9400)")),
    "consistency": optional(
        instance(Extension, "a Consistency", "consistency=Consistency(every=100)")
    ),
    "extensions": sequence(Extension, "extensions", "extensions=[MyExtension()]"),
}


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
    monitor: Extension | None
    consistency: Extension | None
    extensions: Sequence[Extension]
    pipeline: object
    shards: object

    def __post_init__(self) -> None:
        check_fields(self, _REQUIREMENTS)

    @classmethod
    def pick(cls, options: Mapping[str, Any]) -> Self:
        """Return the settings among all arguments of a checkpointer."""
        return cls(**{field.name: options[field.name] for field in fields(cls)})

    @property
    def all_extensions(self) -> list[Extension]:
        """The extensions that the run is given, those with options of their own first."""
        given = (self.consistency, self.monitor, *self.extensions)
        return [extension for extension in given if extension is not None]

    @property
    def for_data(self) -> dict[str, object]:
        """The options that only the extension of data reads."""
        return {"pipeline": self.pipeline, "shards": self.shards}


@dataclass(slots=True, eq=False, kw_only=True)
class Session(Host):
    """What the rooms of a run share."""

    settings: Settings
    run: LiveRun
    judge: Judge
    # What ranks note for each other, in ``messages``: one goes from all to all at each step.
    talk: Talk = field(default_factory=Talk)
    messages: StepMessages = field(default_factory=StepMessages)
    # Whether this rank has a repository of its own, so that commits come there from a store.
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

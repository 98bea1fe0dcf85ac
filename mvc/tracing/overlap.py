"""How much communication a step had, how much of it computation hid, and what was left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mvc.tracing.spans import Collective, Cover, StepWindow, Trace


@dataclass(frozen=True, slots=True)
class Exposed:
    """A collective in its step; times in seconds.

    Attributes:
        start_s: since the step began.
        exposed_s: for how long nothing was computed meanwhile.
        computed: which share of the step's computation was done when it began.
    """

    name: str
    size_bytes: int | None
    start_s: float
    seconds: float
    exposed_s: float
    computed: float


@dataclass(frozen=True, slots=True)
class Step:
    """A step; times in seconds.

    Attributes:
        communication_s: when at least one collective was under way.
        hidden_s: the part of it in which something was computed.
        exposed_s: the rest, which makes the step longer.
        idle_s: neither was done.
        own_s: when mvc did something, in the thread that trains.
        collectives: in the order in which they began.
    """

    name: str
    start_s: float
    seconds: float
    compute_s: float
    communication_s: float
    hidden_s: float
    exposed_s: float
    idle_s: float
    own_s: float
    collectives: tuple[Exposed, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Which share of each of equal parts of a step was computation, communication, or only the latter."""

    step: str
    seconds: float
    compute: list[float]
    communication: list[float]
    exposed: list[float]


class Overlap:
    """A trace, step by step."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._communication = Cover([(each.start_s, each.end_s) for each in trace.collectives])
        self._busy = Cover(trace.compute.spans, self._communication.spans)
        self._own = Cover(*trace.own.values())
        self.steps = [self._measure(window) for window in trace.steps]

    def _measure(self, window: StepWindow) -> Step:
        start_s, end_s = window.start_s, window.end_s
        seconds = max(end_s - start_s, 0.0)
        compute_s = self._trace.compute.within(start_s, end_s)
        communication_s = self._communication.within(start_s, end_s)
        busy_s = self._busy.within(start_s, end_s)
        exposed_s = max(busy_s - compute_s, 0.0)
        return Step(
            window.name,
            start_s,
            seconds,
            compute_s,
            communication_s,
            max(communication_s - exposed_s, 0.0),
            exposed_s,
            max(seconds - busy_s, 0.0),
            self._own.within(start_s, end_s),
            tuple(
                self._expose(collective, start_s, compute_s)
                for collective in self._trace.collectives
                if start_s <= collective.start_s < end_s
            ),
        )

    def _expose(self, collective: Collective, step_start_s: float, compute_s: float) -> Exposed:
        compute, start_s, end_s = self._trace.compute, collective.start_s, collective.end_s
        seconds, done_s = end_s - start_s, compute.within(step_start_s, start_s)
        return Exposed(
            collective.name,
            collective.size_bytes,
            start_s - step_start_s,
            seconds,
            exposed_s=max(seconds - compute.within(start_s, end_s), 0.0),
            computed=done_s / compute_s if compute_s else 1.0,
        )

    @property
    def typical(self) -> Step:
        """The step of median length."""
        return sorted(self.steps, key=lambda step: step.seconds)[len(self.steps) // 2]

    def sum_own(self) -> Mapping[str, tuple[float, int]]:
        """Return seconds and number of the ranges of mvc in all steps, by name."""
        sums = {}
        for name, spans in self._trace.own.items():
            cover = Cover(spans)
            parts = (cover.within(step.start_s, step.start_s + step.seconds) for step in self.steps)
            sums[name] = sum(parts), len(cover.spans)
        return sums

    def draw(self, step: Step, count: int) -> Timeline:
        """Return a step as ``count`` equal parts."""
        window = (step.start_s, step.start_s + step.seconds)
        compute = self._trace.compute.shares(*window, count)
        busy = self._busy.shares(*window, count)
        exposed = [max(both - computed, 0.0) for both, computed in zip(busy, compute, strict=True)]
        communication = self._communication.shares(*window, count)
        return Timeline(step.name, step.seconds, compute, communication, exposed)

"""Everything that a monitor knows of its run, as plain numbers that its outputs read."""

from __future__ import annotations

import bisect
import math
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc_hooks.divergence.history import Reading
    from mvc_hooks.ranks.syncing import GradientSum

LARGE_BYTES = 2**20
"""Mean size of buckets from which on their speed says something of the link; below, it is latency."""
_COMMITS = 100
_BUS_UPDATES = 20
_MOST_BUCKETS = 64  # of a histogram each
WINDOW = 1000  # how many values a window keeps
SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds of the bars of a histogram of seconds; the thresholds of time are among them."""


class LastValues:
    """The last values of a quantity; one thread adds, others may read."""

    def __init__(self, size: int = WINDOW) -> None:
        self._values: deque[float] = deque(maxlen=size)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        """Add a value; the oldest one leaves."""
        self._values.append(value)

    def quantile(self, share: float) -> float | None:
        """Return the smallest value that this share of all values does not exceed; None without values."""
        values = sorted(self._values)
        return values[max(0, math.ceil(share * len(values)) - 1)] if values else None

    @property
    def largest(self) -> float | None:
        """The largest value."""
        return max(list(self._values), default=None)

    @property
    def sum(self) -> float:
        """The sum of the values."""
        return math.fsum(list(self._values))


class SecondsHistogram:
    """How many values there were up to each bound, and their sum."""

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = (*bounds, math.inf)
        self._counts = [0] * len(self._bounds)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self.sum += value

    def bars(self) -> list[tuple[str, float]]:
        """Return each upper bound as a text, and how many values were at most that."""
        total, bars = 0, list[tuple[str, float]]()
        for bound, count in zip(self._bounds, list(self._counts), strict=True):
            total += count
            bars.append(("+Inf" if math.isinf(bound) else str(bound), total))
        return bars


@dataclass(slots=True)
class RunNumbers:
    """What is known of a run; None: unknown."""

    rank: int = 0
    ranks: int = 1
    branch: str = ""
    step: int = 0
    loss: float | None = None
    grad_norm: float | None = None
    lr: float | None = None
    scale: float | None = None
    tier: str | None = None
    queue_depth: int = 0
    written_bytes: int = 0
    plain_bytes: int = 0
    gradient_bytes: int = 0
    # Speed in bytes per second, and ``is_link_known`` whether alarms may rely on it.
    link: float | None = None
    is_link_known: bool = False
    checks: int | None = None
    mismatches: int | None = None
    deviation: float | None = None
    steps_done: int = 0
    stall_s: float | None = None
    commits: Counter[str] = field(default_factory=Counter)
    alarms: Counter[str] = field(default_factory=Counter)
    # Seconds of the last resume and the last rollback, by kind, and when each ended.
    recovery_s: dict[str, float] = field(default_factory=dict)
    recovered_at: dict[str, float] = field(default_factory=dict)
    rollbacks: int = 0
    steps: LastValues = field(default_factory=LastValues)
    stalls: LastValues = field(default_factory=lambda: LastValues(_COMMITS))
    # Seconds of the last gradient updates; ``bus`` their bus bytes, where buckets are large.
    updates: LastValues = field(default_factory=LastValues)
    bus: LastValues = field(default_factory=lambda: LastValues(_BUS_UPDATES))
    bus_seconds: LastValues = field(default_factory=lambda: LastValues(_BUS_UPDATES))
    buckets: dict[str, LastValues] = field(default_factory=lambda: defaultdict(LastValues))
    step_bars: SecondsHistogram = field(default_factory=SecondsHistogram)
    stall_bars: SecondsHistogram = field(default_factory=SecondsHistogram)
    write_bars: SecondsHistogram = field(default_factory=SecondsHistogram)
    update_bars: SecondsHistogram = field(default_factory=SecondsHistogram)
    bucket_bars: dict[str, SecondsHistogram] = field(
        default_factory=lambda: defaultdict(SecondsHistogram)
    )

    def take_step(self, step: int, seconds: float | None) -> None:
        """A step is complete; ``seconds`` since the one before it."""
        self.step, self.steps_done = step, self.steps_done + 1
        if seconds is not None:
            self.steps.add(seconds)
            self.step_bars.add(seconds)

    def take_reading(self, reading: Reading) -> None:
        """A step was read."""
        self.loss, self.grad_norm = reading.loss, reading.grad_norm
        if reading.lr is not None:
            self.lr = reading.lr

    def take_update(self, update: GradientSum, model: str) -> None:
        """Gradients were summed; ``model`` tells those of several apart."""
        self.updates.add(update.seconds)
        self.update_bars.add(update.seconds)
        self.gradient_bytes += update.size_bytes
        for number, seconds in update.buckets:
            name = f"{model}{number if number < _MOST_BUCKETS else 'rest'}"
            self.buckets[name].add(seconds)
            self.bucket_bars[name].add(seconds)
        if update.bus_bytes is not None and update.size_bytes >= LARGE_BYTES * len(update.buckets):
            self.bus.add(update.bus_bytes)
            self.bus_seconds.add(update.seconds)

    def take_event(self, kind: str, fields: dict[str, Any]) -> None:
        """Something happened that the run's log has, with the fields that the feed gets."""
        match kind:
            case "resume":
                self.tier = fields["tier"]
                self._note_recovery("resume", fields["seconds"])
            case "rollback" if "seconds" in fields:
                self.rollbacks += 1
                self._note_recovery("rollback", fields["seconds"])
            case "snapshot":
                self.stall_s = fields["stall_s"]
                self.stalls.add(fields["stall_s"])
                self.stall_bars.add(fields["stall_s"])
            case "commit":
                self.commits["made"] += 1
                self.write_bars.add(fields["write_s"])
                self.written_bytes += fields["written_bytes"]
                self.plain_bytes += fields["plain_bytes"]
            case "skip":
                self.commits["skipped"] += 1
            case "error":
                self.commits["failed"] += 1
            case "alarm":
                self.alarms[fields["cause"]] += 1

    def _note_recovery(self, kind: str, seconds: float) -> None:
        self.recovery_s[kind], self.recovered_at[kind] = seconds, time.time()

    def take_consistency(self, source: object) -> None:
        """Take over what another part knows of differences between ranks, as far as it has it."""
        self.checks = getattr(source, "checks", None)
        self.mismatches = getattr(source, "mismatches", None)
        self.deviation = getattr(source, "max_delta", None)

    @property
    def bandwidth_used(self) -> float | None:
        """Share of the link's speed that the last updates of large buckets reached."""
        seconds = self.bus_seconds.sum
        if self.link is None or not self.is_link_known or not seconds:
            return None
        return self.bus.sum / seconds / self.link

    def measure(self) -> dict[str, float]:
        """Return what is known by fixed names, as ``Monitor.measure`` documents them."""
        known = {
            "sync_p50_s": self.updates.quantile(0.5),
            "sync_p99_s": self.updates.quantile(0.99),
            "bandwidth_used": self.bandwidth_used,
            "deviation_max": self.deviation,
            "mismatches": self.mismatches,
            "checks": self.checks,
            "recovery_s": max(self.recovery_s.values(), default=None),
            "stall_s": self.stalls.largest,
            "loss": self.loss,
            "grad_norm": self.grad_norm,
            "step_s": self.steps.quantile(0.5),
            "ranks": self.ranks,
        }
        return {name: value for name, value in known.items() if value is not None}

"""What a healthy run stays within, and the alarms of one that does not."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import NamedTuple

from mvc import UsageError

COOLDOWN_S = 300.0  # how long an alarm that came back keeps quiet
_LASTING_S = 60.0
_MARGIN = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What a healthy run stays within; None turns an alarm off.

    Attributes:
        sync_p99_s: seconds in which 99 of 100 gradient updates are summed over the ranks.
        bandwidth_used: share of the link's speed that summing gradients reaches at least.
        deviation: largest difference between values that should be the same on all ranks.
        recovery_s: seconds that a resume or a rollback takes.
        stall_s: seconds that the training pauses for a commit.
        queue: snapshots that wait for the writer.
    """

    sync_p99_s: float | None = 0.05
    bandwidth_used: float | None = 0.85
    deviation: float | None = 1e-5
    recovery_s: float | None = 30.0
    stall_s: float | None = 1.0
    queue: float | None = 4

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            check_positive(f"threshold {field.name}", value, hint="None turns it off")
        if self.bandwidth_used is not None and self.bandwidth_used > 1:
            raise UsageError(
                f"threshold bandwidth_used is {self.bandwidth_used!r}, not a share of the link's speed",
                hint="0.85 is 85 %",
            )


def check_positive(name: str, value: object, *, hint: str | None = None) -> None:
    """Check that a setting is None or a positive, finite number."""
    if value is None or (type(value) in (int, float) and 0 < value < math.inf):  # type: ignore[operator]
        return
    raise UsageError(f"{name} is {value!r}, not a positive number", hint=hint)


class AlarmText(NamedTuple):
    """How an alarm is said: ``fact`` is formatted with a value and its limit.

    ``hold_s`` is how long a value must be beyond its limit.
    """

    fact: str
    advice: str
    is_above: bool = True
    hold_s: float = 0.0


RULES = {
    "sync_p99_s": AlarmText(
        "summing the gradients takes {:.3g} s at P99, more than {:g} s",
        "the rank whose mvc_gradient_update_sync_seconds is the smallest is the one that the others wait "
        "for; if all are alike, look at the network, or enlarge the buckets (bucket_cap_mb=)",
        hold_s=_LASTING_S,
    ),
    "bandwidth_used": AlarmText(
        "summing the gradients uses {:.3g} of the link's speed, less than {:g}",
        "check that the ranks use the fast interface, look for a rank that comes late, and try larger "
        "buckets (bucket_cap_mb=)",
        is_above=False,
        hold_s=_LASTING_S,
    ),
    "deviation": AlarmText(
        "ranks differ by {:.3g} where they should be the same, more than {:g}",
        "go back to a commit from before it (ckpt.roll_back()), and check the machine of the rank that is "
        "alone with its values",
    ),
    "recovery_s": AlarmText(
        "going back to a commit took {:.3g} s, more than {:g} s",
        "keep the state nearer: ring= for rollbacks, replicate=1 or a local disk for resumes",
    ),
    "stall_s": AlarmText(
        "the training paused {:.3g} s for a commit, more than {:g} s",
        'commit less often (every=), let more snapshots wait (in_flight=), or pass when_behind="skip"',
    ),
    "queue": AlarmText(
        "{:g} snapshots wait for the writer, more than {:g}",
        "commit less often (every=), or give the writer more cores (writer_threads=) or a faster disk",
        hold_s=_LASTING_S,
    ),
}
"""Threshold → what its alarm says."""


class Alarm:
    """Says that a value is beyond its limit, once that has lasted ``hold_s`` seconds.

    It says so again only after the value was clearly back, and a while went by.
    """

    def __init__(self, limit: float, *, is_above: bool = True, hold_s: float = 0.0) -> None:
        self._limit, self._hold_s = limit, hold_s
        self._sign = 1 if is_above else -1
        self._since_s: float | None = None
        self._quiet_until_s = -math.inf
        self.is_on = False

    def look(self, value: float, now_s: float) -> bool:
        """Take in a value; return whether the alarm is to be said now."""
        if self._sign * (value - self._limit) <= 0:
            self._since_s = None
            is_back = self._sign * (value - self._limit * (1 - self._sign * _MARGIN)) <= 0
            self.is_on = self.is_on and not is_back
            return False
        if self._since_s is None:
            self._since_s = now_s
        if self.is_on or now_s - self._since_s < self._hold_s:
            return False
        self.is_on = True
        is_said = now_s >= self._quiet_until_s
        if is_said:
            self._quiet_until_s = now_s + COOLDOWN_S
        return is_said

"""Gates between two sizes of a run: what is measured at one, and what it may be at most.

A run that is to grow starts small and at most doubles. What it measures at a size has to pass every gate
before the next size is tried: a fault that a small run shows costs a thousandth of what it costs later.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from mvc.errors import UsageError

GATES = ("bits", "deviation", "sync", "bandwidth", "recovery", "loss")
_COUNTS = ("mismatches", "checks", "ranks")
_UNJUDGED = ("sync_p50_s", "stall_s", "step_s", "grad_norm")  # what a monitor measures besides
_BETWEEN_RANKS = GATES[:4]
_TOO_LARGE = 2**63
_MAX_SHARE = 2.0
"""A measured share of a link's stated bandwidth may be above 1, as links are stated roundly."""


@dataclass(frozen=True, slots=True)
class ScaleLimits:
    """What the gates allow.

    Attributes:
        deviation_max: largest difference between ranks of an element that should be the same.
        sync_p99_s: seconds that 99 of 100 gradient synchronisations take at most.
        bandwidth_used: least share of the links' bandwidth, from 0 to 1.
        recovery_s: seconds from a failure to the first new step.
        loss_rise: by what share the loss may be above that of the size before.
    """

    deviation_max: float = 1e-5
    sync_p99_s: float = 0.05
    bandwidth_used: float = 0.85
    recovery_s: float = 30.0
    loss_rise: float = 0.05


_RANGES = {
    "deviation_max": (0.0, 1.0, "a difference from 0 to 1"),
    "sync_p99_s": (0.0, 10.0, "seconds up to 10, such as 0.05 for 50 ms"),
    "bandwidth_used": (0.0, 1.0, "a share from 0 to 1, such as 0.85"),
    "recovery_s": (0.0, 86_400.0, "seconds up to a day"),
    "loss_rise": (0.0, 1.0, "a share from 0 to 1, such as 0.05"),
}


def make_limits(given: Mapping[str, float]) -> ScaleLimits:
    """Return the default limits with those that are given; UsageError if one makes no sense."""
    for name, value in given.items():
        if name not in _RANGES:
            raise UsageError(f"{name!r} is not a limit", hint=f"there are {', '.join(_RANGES)}")
        low, high, what = _RANGES[name]
        if not _is_number(value) or not low <= value <= high:
            raise UsageError(f"the limit {name} must be {what}, not {value!r}")
    return ScaleLimits(**given)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run measured at a size; None is what it did not measure.

    Attributes:
        ranks: of the run.
        checks: how often the ranks were compared.
        mismatches: how often they differed in any bit.
        deviation_max, sync_p99_s, bandwidth_used, recovery_s: as in ``ScaleLimits``.
        loss: at the end.
    """

    ranks: int
    checks: int | None = None
    mismatches: int | None = None
    deviation_max: float | None = None
    sync_p99_s: float | None = None
    bandwidth_used: float | None = None
    recovery_s: float | None = None
    loss: float | None = None


def parse_measured(values: object, ranks: int | None = None) -> Measured:
    """Return measured numbers by name as a value.

    Args:
        values: name → number, or None for what was not measured; may lack names.
        ranks: of the run, unless the values say so.

    Raises:
        UsageError: a name or number makes no sense, or the number of ranks is not known.
    """
    if not isinstance(values, dict):
        raise UsageError("what was measured must be an object of names and numbers")
    known = [field.name for field in fields(Measured)]
    for name, value in values.items():
        if name not in (*known, *_UNJUDGED):
            raise UsageError(
                f"{str(name)[:80]!r} is nothing that is measured",
                hint=f"there are {', '.join(known)}",
            )
        if value is not None:
            _check_measured(name, value)
    said = values.get("ranks")
    if ranks is not None and said not in (None, ranks):
        raise UsageError(f"this was measured on {said} ranks, not on {ranks}")
    ranks = said if ranks is None else ranks
    if ranks is None:
        raise UsageError("how many ranks was this measured on?", hint="`ranks` says so")
    if ranks < 1:
        raise UsageError(f"a run has at least 1 rank, not {ranks}")
    numbers: dict[str, Any] = {name: values.get(name) for name in known}
    return Measured(**{**numbers, "ranks": ranks})


def _check_measured(name: str, value: object) -> None:
    if not _is_number(value) or (name in _COUNTS and not isinstance(value, int)):
        what = "whole number" if name in _COUNTS else "number"
        raise UsageError(f"{name} is {str(value)[:80]!r}, not a {what}")
    assert isinstance(value, (int, float))
    if name != "loss" and value < 0:
        raise UsageError(f"{name} is {value:g}, and cannot be negative")
    if name == "bandwidth_used" and value > _MAX_SHARE:
        raise UsageError(f"bandwidth_used is {value:g}, not a share such as 0.85")


def _is_number(value: object) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < _TOO_LARGE
    return isinstance(value, float)


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """The answer of one gate.

    Attributes:
        gate: its name.
        status: ``passed``, ``failed``, ``waived`` or, on one rank, ``none``: nothing to compare.
        value: what was measured, or None.
        limit: what it may be, at most or at least.
        text: the fact in words.
    """

    gate: str
    status: str
    value: float | None
    limit: float
    text: str


def judge_scale(
    measured: Measured,
    limits: ScaleLimits,
    loss_before: float | None,
    waived: Collection[str] = (),
) -> tuple[GateVerdict, ...]:
    """Return the answer of every gate.

    Args:
        measured: what the run measured.
        limits: what the gates allow.
        loss_before: the loss at the size before, or None if there is none.
        waived: gates whose failure does not count.

    Raises:
        UsageError: ``waived`` has the name of no gate.
    """
    unknown = [gate for gate in waived if gate not in GATES]
    if unknown:
        raise UsageError(f"{unknown[0][:80]!r} is not a gate", hint=f"there are {', '.join(GATES)}")
    verdicts = []
    for verdict in (
        _judge_bits(measured),
        _judge_most("deviation", "deviation", measured.deviation_max, limits.deviation_max),
        _judge_most("sync", "P99 of a gradient sync", measured.sync_p99_s, limits.sync_p99_s, "s"),
        _judge_bandwidth(measured.bandwidth_used, limits.bandwidth_used),
        _judge_most("recovery", "recovery", measured.recovery_s, limits.recovery_s, "s"),
        _judge_loss(measured.loss, loss_before, limits.loss_rise),
    ):
        if measured.ranks == 1 and verdict.gate in _BETWEEN_RANKS:
            text = "one rank has no other to compare with"
            verdicts.append(replace(verdict, status="none", text=text))
        elif verdict.status == "failed" and verdict.gate in waived:
            verdicts.append(replace(verdict, status="waived"))
        else:
            verdicts.append(verdict)
    return tuple(verdicts)


def _answer(gate: str, value: float | None, limit: float, text: str, *, ok: bool) -> GateVerdict:
    return GateVerdict(gate, "passed" if ok else "failed", value, limit, text)


def _judge_bits(measured: Measured) -> GateVerdict:
    count, checks = measured.mismatches, measured.checks
    if count is None:
        return _answer("bits", None, 0, "mismatches were not measured", ok=False)
    if not checks:
        return _answer("bits", count, 0, "the ranks were never compared", ok=False)
    text = f"{count:,} of {checks:,} checks found a rank that differs"
    return _answer("bits", count, 0, text, ok=count == 0)


def _judge_most(
    gate: str, name: str, value: float | None, limit: float, unit: str = ""
) -> GateVerdict:
    unit = unit and f" {unit}"
    if value is None:
        return _answer(gate, None, limit, f"{name} was not measured", ok=False)
    text = f"{name} is {value:.4g}{unit}, at most {limit:g}{unit}"
    return _answer(gate, value, limit, text, ok=value <= limit)


def _judge_bandwidth(value: float | None, limit: float) -> GateVerdict:
    if value is None:
        return _answer("bandwidth", None, limit, "bandwidth used was not measured", ok=False)
    text = f"{value:.3g} of the bandwidth is used, at least {limit:g}"
    return _answer("bandwidth", value, limit, text, ok=value >= limit)


def _judge_loss(value: float | None, before: float | None, rise: float) -> GateVerdict:
    if value is None:
        return _answer("loss", None, rise, "loss was not measured", ok=False)
    if not math.isfinite(value):
        return _answer("loss", value, rise, f"loss is {value}", ok=False)
    if before is None:
        return _answer("loss", value, rise, f"loss is {value:.6g}, with no size before", ok=True)
    limit = before + rise * abs(before)
    text = f"loss is {value:.6g}, at most {limit:.6g} after {before:.6g} at the size before"
    return _answer("loss", value, limit, text, ok=value <= limit)

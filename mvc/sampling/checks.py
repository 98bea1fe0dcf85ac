"""What a plan of samples must hold: checked when one is made, by a user or from a commit.

A plan is given as ``Any``: what is in its fields is what is asked.
"""

from __future__ import annotations

import math
from typing import Any

from mvc.errors import UsageError
from mvc.sampling.mixture import choose_slots
from mvc.sampling.permutation import MAX_SIZE

TAILS = ("short", "drop", "wrap")
MAX_SOURCES = 4096
_MAX_STAGES = 1024


def check_weight(name: str, weight: object, least: float = math.ulp(0.0)) -> None:
    """Check the weight of a source; UsageError if it is not a number of at least ``least``."""
    if type(weight) not in (int, float) or not least <= weight < math.inf:  # type: ignore[operator]
        kind = "positive number" if least else "number of 0 or more"
        raise UsageError(f"the weight of source {name!r} is {weight!r}, not a {kind}")


def is_whole(value: object, least: int, most: int) -> bool:
    """Return whether a value is a whole number within bounds."""
    return type(value) is int and least <= value <= most


def check_plan(plan: Any) -> None:
    """Check that the parts of a plan go together; UsageError if they do not."""
    if not isinstance(plan.sources, tuple) or not 0 < len(plan.sources) <= MAX_SOURCES:
        raise UsageError(f"a plan has 1 to {MAX_SOURCES} sources")
    if len({one.name for one in plan.sources}) < len(plan.sources):
        raise UsageError("two sources have one name")
    if not is_whole(plan.seed, 0, (1 << 64) - 1):
        raise UsageError(f"seed is {plan.seed!r}, not a whole number from 0 to 2^64 - 1")
    if not is_whole(plan.batch, 1, 1 << 40):
        raise UsageError(
            f"the global batch size is {plan.batch!r}, not a whole number of 1 or more"
        )
    if type(plan.shuffle) is not bool:
        raise UsageError(f"shuffle is {plan.shuffle!r}, neither True nor False")
    if plan.tail not in TAILS:
        raise UsageError(f"tail is {plan.tail!r}, not one of {', '.join(TAILS)}")
    if plan.samples > MAX_SIZE:
        raise UsageError("the sources have more than 2^62 samples")
    _check_mixture(plan)


def _check_mixture(plan: Any) -> None:
    weighted = sum(one.weight is not None for one in plan.sources)
    if weighted not in (0, len(plan.sources)):
        name = next(one.name for one in plan.sources if one.weight is None)
        raise UsageError(
            f"source {name!r} has no weight, but others have", hint="give each a weight, or none"
        )
    if plan.stages and weighted:
        raise UsageError("sources have weights, and so have stages", hint="leave out the sources'")
    if plan.epoch_size is not None:
        if not is_whole(plan.epoch_size, 1, MAX_SIZE):
            raise UsageError(f"epoch_size is {plan.epoch_size!r}, not a number of samples")
        if not plan.is_mixture:
            raise UsageError("epoch_size is for sources with weights only")
    _check_stages(plan)
    if plan.is_mixture:
        for stage in plan.stages:
            choose_slots(stage.weights)
        if weighted:
            choose_slots(tuple(one.weight or 0.0 for one in plan.sources))


def _check_stages(plan: Any) -> None:
    if not isinstance(plan.stages, tuple) or len(plan.stages) > _MAX_STAGES:
        raise UsageError(f"a plan has at most {_MAX_STAGES} stages")
    start = 0
    for number, stage in enumerate(plan.stages):
        is_last = number == len(plan.stages) - 1
        if is_last != (stage.until is None):
            raise UsageError("each stage but the last, and only these, says until which position")
        if not is_last and not is_whole(stage.until, start + 1, MAX_SIZE - 1):
            raise UsageError(
                f"stage {number + 1} ends at {stage.until!r}, where it begins or before"
            )
        start = stage.until or 0
        if len(stage.weights) != len(plan.sources):
            raise UsageError(f"stage {number + 1} does not have one weight per source")
        for source, weight in zip(plan.sources, stage.weights, strict=True):
            check_weight(source.name, weight, 0.0)
        if not any(stage.weights):
            raise UsageError(f"in stage {number + 1} every weight is 0")

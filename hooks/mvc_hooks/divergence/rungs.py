"""The rungs of a ladder: what can be done about an alarm."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mvc import UsageError


@dataclass(frozen=True, slots=True)
class SkipStep:
    """Drop the next optimizer step.

    Attributes:
        limit: alarms that it answers before the next rung's turn.
    """

    limit: int = 3


@dataclass(frozen=True, slots=True)
class Rollback:
    """Go back to an earlier commit.

    Attributes:
        to: ``healthy``, the newest healthy commit; ``last``, the newest commit; or a revision.
        min_steps_back: steps that the commit must lie before the onset; not for a revision.
        skip_batches: batches to skip at the first and at the last of repeated rollbacks.
        limit: alarms that it answers before the next rung's turn.
    """

    to: str = "healthy"
    min_steps_back: int = 100
    skip_batches: tuple[int, int] = (200, 500)
    limit: int = 1


@dataclass(frozen=True, slots=True)
class LrScale:
    """Multiply the learning rate.

    Attributes:
        factor: by what.
        limit: alarms that it answers before the next rung's turn.
    """

    factor: float = 0.5
    limit: int = 1


@dataclass(frozen=True, slots=True)
class Both:
    """Several at once.

    Attributes:
        parts: what is done together; at most one rollback among them.
        limit: alarms that it answers before the next rung's turn.
    """

    parts: tuple[SkipStep | Rollback | LrScale, ...]
    limit: int = 1


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the run.

    Attributes:
        after: rollbacks that must have been made; until then the nearest rung below that rolls back
            answers again. 0 stops as soon as its turn comes.
    """

    after: int = 3


Rung = SkipStep | Rollback | LrScale | Both | Stop


def skip_step(limit: int = 3) -> SkipStep:
    """Return a rung that drops the next optimizer step, for ``limit`` alarms.

    Raises:
        UsageError: a limit below 1.
    """
    return SkipStep(_check_count("limit of skip_step", limit, 1))


def rollback(
    to: str = "healthy",
    min_steps_back: int = 100,
    skip_batches: tuple[int, int] | int = (200, 500),
    limit: int = 1,
) -> Rollback:
    """Return a rung that goes back to an earlier commit.

    Args:
        to: ``healthy``, the newest healthy commit; ``last``, the newest commit; or a revision.
        min_steps_back: steps that the commit must lie before the onset; not for a revision.
        skip_batches: how many batches to skip, or (fewest, most): repeated rollbacks skip more each
            time.
        limit: alarms that it answers before the next rung's turn.

    Raises:
        UsageError: a value out of range.
    """
    if not _is_text(to):
        raise UsageError(
            f"rollback goes to {to!r}, which is no revision", hint='name one, "healthy" or "last"'
        )
    fewest, most = _check_batches(skip_batches)
    back = _check_count("min_steps_back", min_steps_back, 0)
    return Rollback(to, back, (fewest, most), _check_count("limit of rollback", limit, 1))


def lr_scale(factor: float = 0.5, limit: int = 1) -> LrScale:
    """Return a rung that multiplies the learning rate.

    Raises:
        UsageError: a factor that is not positive and finite, or a limit below 1.
    """
    if type(factor) not in (int, float) or not 0 < factor < math.inf:
        raise UsageError(f"factor of lr_scale is {factor!r}, not a positive number")
    return LrScale(float(factor), _check_count("limit of lr_scale", limit, 1))


def both(*rungs: SkipStep | Rollback | LrScale, limit: int = 1) -> Both:
    """Return a rung that does several things at once; their own limits do not count.

    Raises:
        UsageError: less than two, two of one kind, one that cannot be combined, a limit below 1.
    """
    if not all(isinstance(rung, SkipStep | Rollback | LrScale) for rung in rungs):
        raise UsageError("both() takes skip_step(), rollback() and lr_scale()")
    if len(rungs) < 2 or len({type(rung) for rung in rungs}) < len(rungs):  # noqa: PLR2004  # both
        raise UsageError("both() takes two rungs or more, each of another kind")
    return Both(rungs, _check_count("limit of both", limit, 1))


def stop(after: int = 3) -> Stop:
    """Return the rung that stops the run once ``after`` rollbacks did not help.

    Raises:
        UsageError: a number below 0.
    """
    return Stop(_check_count("after of stop", after, 0))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _check_batches(value: object) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else value
    if not isinstance(pair, tuple | list) or len(pair) != 2:  # noqa: PLR2004  # a pair
        raise UsageError(f"skip_batches is {value!r}, not a number or (fewest, most)")
    fewest, most = (_check_count("skip_batches", count, 0) for count in pair)
    if most < fewest:
        raise UsageError(f"skip_batches is {value!r}: the most are less than the fewest")
    return fewest, most


def _check_count(what: str, value: object, fewest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not fewest <= value < 1 << 62:
        raise UsageError(f"{what} is {value!r}, not a whole number of {fewest} or more")
    return value

"""The ladder: an alarm that comes back gets a stronger answer, and in the end the run is stopped.

A ladder is a list of steps. Each answers as many alarms as its limit allows, then it is the turn of
the next. ``stop(after=n)`` ends the run once n rollbacks did not help; until then the nearest step
below it that rolls back answers again. A ladder without a ``stop`` stops after its last step.

    [skip_step(3), rollback(), both(rollback(), lr_scale(0.5)), stop(after=3)]

answers alarms with: skip, skip, skip, rollback, rollback with half the rate, the same again (a
quarter by now), stop.

All of it is forgotten once the run is ``forget_after_steps`` steps *past* the latest alarm. Counting
calm steps instead would be wrong: a run that was rolled back from step 5000 to 4000 and fails at
5000 again has made a thousand calm steps and nothing is better. For the same reason the counts are
not rolled back with the model, or the first step would answer the same failure for ever; they are
restored only when a run resumes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import msgspec

from mvc import UsageError
from mvc_hooks.checks import check_count
from mvc_hooks.divergence.history import Count, Verdict, parse_state

FORGET_AFTER_STEPS = 2000

_ROLLBACKS_TO_MOST = 3
_MOST_FACTOR = 1e300
_ACTIONS = ("skip", "rollback", "lr_factor", "stop_after")


@dataclass(frozen=True, slots=True)
class Rollback:
    """Which commit to go back to, and how many batches to skip there; see ``rollback``."""

    to: str
    min_steps_back: int
    skip_batches: tuple[int, int]

    def __post_init__(self) -> None:
        to: object = self.to
        if not isinstance(to, str) or not to.strip():
            raise UsageError(
                f"rollback goes to {to!r}, not a revision", hint='name one, or "healthy" or "last"'
            )
        check_count("min_steps_back", self.min_steps_back, 0)


@dataclass(frozen=True, slots=True)
class LadderStep:
    """What to do about up to ``limit`` alarms; most steps do one of these things, ``both`` several."""

    limit: float
    skip: bool = False
    rollback: Rollback | None = None
    lr_factor: float | None = None
    stop_after: int | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """The answer to an alarm; ``reason`` is one line, with the alarm and the step of the ladder."""

    verdict: Verdict
    skip: bool
    rollback: Rollback | None
    skip_batches: int
    lr_factor: float
    stop: bool
    reason: str


def skip_step(limit: int = 3) -> LadderStep:
    """Return a step that drops the next optimizer step, for ``limit`` alarms."""
    return LadderStep(check_count("limit of skip_step", limit, 1), skip=True)


def rollback(
    to: str = "healthy",
    min_steps_back: int = 100,
    skip_batches: tuple[int, int] | int = (200, 500),
    limit: int = 1,
) -> LadderStep:
    """Return a step that goes back to an earlier commit.

    Args:
        to: ``healthy``, the newest healthy commit; ``last``, the newest commit; or a revision.
        min_steps_back: how many steps before the onset the commit must be; not for a revision.
        skip_batches: how many batches to skip, or (fewest, most): repeated rollbacks skip more each
            time.
        limit: alarms that it answers before the next step's turn.

    Raises:
        UsageError: a value out of range.
    """
    target = Rollback(to, min_steps_back, _check_batches(skip_batches))
    return LadderStep(check_count("limit of rollback", limit, 1), rollback=target)


def lr_scale(factor: float = 0.5, limit: int = 1) -> LadderStep:
    """Return a step that multiplies the learning rate."""
    if type(factor) not in (int, float) or not 0 < factor < math.inf:
        raise UsageError(f"factor of lr_scale is {factor!r}, not a positive number")
    return LadderStep(check_count("limit of lr_scale", limit, 1), lr_factor=float(factor))


def both(*steps: LadderStep, limit: int = 1) -> LadderStep:
    """Return a step that does several things at once; their own limits do not count.

    Raises:
        UsageError: fewer than two, two of one kind, one that cannot be combined, a limit below 1.
    """
    kinds = [
        [name for name in _ACTIONS if getattr(step, name, None) not in (None, False)]
        for step in steps
    ]
    if any(len(kind) != 1 or kind == ["stop_after"] for kind in kinds):
        raise UsageError("both() takes skip_step(), rollback() and lr_scale()")
    merged = {name: getattr(step, name) for step, (name,) in zip(steps, kinds, strict=True)}
    if len(steps) < 2 or len(merged) < len(steps):  # noqa: PLR2004  # both
        raise UsageError("both() takes two or more steps, each of another kind")
    return LadderStep(check_count("limit of both", limit, 1), **merged)


def stop(after: int = 3) -> LadderStep:
    """Return the step that stops the run once ``after`` rollbacks did not help."""
    return LadderStep(math.inf, stop_after=check_count("after of stop", after, 0))


def default_ladder() -> tuple[LadderStep, ...]:
    """Return the ladder of a run that names none.

    One rollback with the rate unchanged, since most spikes come from data met in a certain state
    and do not come back with other data; two more with half the rate each time; then stop.
    """
    return rollback(), both(rollback(), lr_scale(0.5)), stop(after=3)


Steps: TypeAlias = LadderStep | Iterable[LadderStep]  # a ladder: its steps in turn, or the only one


def as_steps(ladder: Steps) -> tuple[LadderStep, ...]:
    """Return the steps of a ladder."""
    given: Any = ladder
    is_one = isinstance(given, str) or not isinstance(given, Iterable)  # a text is a mistake
    return (given,) if is_one else tuple(given)


class _LadderState(msgspec.Struct, forbid_unknown_fields=True):
    rung: Count
    uses: Count
    rollbacks: Count
    last_alarm_step: Count | None
    lr_factor: Annotated[float, msgspec.Meta(gt=0, le=_MOST_FACTOR)]


class Ladder:
    """The steps, and how far up the run has come.

    ``lr_factor`` is the product of all factors so far; it stays when the ladder forgets. A rollback
    restores the rate of a commit that may be older than some of them: the rate to go on with is the
    commit's, times this, divided by the product in that commit.
    """

    def __init__(
        self, steps: Steps | None = None, *, forget_after_steps: int = FORGET_AFTER_STEPS
    ) -> None:
        self._steps = _check_steps(default_ladder() if steps is None else as_steps(steps))
        self._stop_after = self._steps[-1].stop_after or 0
        self._forget_after_steps = check_count("forget_after_steps", forget_after_steps, 1)
        self.lr_factor = 1.0
        self._at = self._uses = self._rollbacks = 0
        self._last_alarm_step: int | None = None

    def climb(self, verdict: Verdict) -> Action:
        """Return what to do about an alarm, and remember it."""
        known = self._last_alarm_step
        if known is not None and verdict.step - known >= self._forget_after_steps:
            self.forget()
        self._last_alarm_step = verdict.step if known is None else max(known, verdict.step)
        while self._uses >= self._steps[self._at].limit:  # ends at stop(), which has no limit
            self._at, self._uses = self._at + 1, 0
        at = self._choose()
        self._uses += at == self._at
        return self._act(at, verdict)

    def forget(self) -> None:
        """Forget all alarms and rollbacks, as after a rollback by hand; the factor stays."""
        self._at = self._uses = self._rollbacks = 0
        self._last_alarm_step = None

    def state_dict(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        counts = (self._at, self._uses, self._rollbacks, self._last_alarm_step)
        return msgspec.structs.asdict(_LadderState(*counts, self.lr_factor))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counts; a state that is refused changes nothing."""
        loaded = parse_state("a ladder", state, _LadderState)
        # The ladder may have fewer steps now: then it continues with its last.
        self._at, self._uses = min(loaded.rung, len(self._steps) - 1), loaded.uses
        self._rollbacks, self._last_alarm_step = loaded.rollbacks, loaded.last_alarm_step
        self.lr_factor = loaded.lr_factor

    def _choose(self) -> int:
        """Return the index of the step that answers: usually the one whose turn it is."""
        rolling = [at for at, step in enumerate(self._steps) if step.rollback is not None]
        last, after = len(self._steps) - 1, self._stop_after
        if self._at in rolling and 0 < after <= self._rollbacks:
            return last
        if self._at == last and rolling and self._rollbacks < after:
            return rolling[-1]
        return self._at

    def _act(self, at: int, verdict: Verdict) -> Action:
        step = self._steps[at]
        skipped = 0
        if (
            step.rollback is not None
        ):  # from the fewest batches, at the first, to the most, at the last
            fewest, most = step.rollback.skip_batches
            last = (self._stop_after or _ROLLBACKS_TO_MOST) - 1
            skipped = fewest + (most - fewest) * min(self._rollbacks, last) // max(last, 1)
        factor = 1.0 if step.lr_factor is None else step.lr_factor
        self._rollbacks += step.rollback is not None
        # However long the run, the product stays a positive, finite number.
        self.lr_factor = min(max(self.lr_factor * factor, 1 / _MOST_FACTOR), _MOST_FACTOR)
        where = f"ladder step {at + 1} of {len(self._steps)}"
        if step.stop_after is not None:
            where += f", after {self._rollbacks} rollback{'' if self._rollbacks == 1 else 's'}"
        return Action(
            verdict=verdict,
            skip=step.skip,
            rollback=step.rollback,
            skip_batches=skipped,
            lr_factor=factor,
            stop=step.stop_after is not None,
            reason=f"{verdict.cause}: {verdict.reason} ({where})",
        )


def _check_steps(steps: tuple[LadderStep, ...]) -> tuple[LadderStep, ...]:
    if not steps:
        raise UsageError("the ladder is empty", hint="use [stop()] to stop at the first alarm")
    for step in steps:
        if not isinstance(step, LadderStep):
            raise UsageError(
                f"{step!r} is not a step of a ladder",
                hint="use skip_step(), rollback(), lr_scale(), both() and stop()",
            )
    if any(step.stop_after is not None for step in steps[:-1]):
        raise UsageError("the ladder has steps after stop()", hint="put stop() last")
    return steps if steps[-1].stop_after is not None else (*steps, stop(after=0))


def _check_batches(value: object) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else value
    if not isinstance(pair, tuple | list) or len(pair) != 2:  # noqa: PLR2004  # a pair
        raise UsageError(f"skip_batches is {value!r}, not a number or (fewest, most)")
    fewest, most = (check_count("skip_batches", count, 0) for count in pair)
    if most < fewest:
        raise UsageError(f"skip_batches is {value!r}, but the first must not be larger")
    return fewest, most

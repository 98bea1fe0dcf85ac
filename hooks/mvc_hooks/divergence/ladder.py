"""The ladder: each alarm that comes back is answered by something stronger, and at last by a stop.

A ladder is a row of rungs. A rung answers as many alarms as its limit says, then the next one has
its turn. ``stop(after=n)`` ends the run when n rollbacks were made and did not help; while there
were fewer, the nearest rung below it that rolls back answers again. A ladder that ends without a
``stop`` stops behind its last rung.

    [skip_step(3), rollback(), both(rollback(), lr_scale(0.5)), stop(after=3)]

answers alarms with: skip, skip, skip, rollback, rollback with half the rate, the same again (a
quarter by now), stop.

All of it is forgotten once the run has come ``forget_after_steps`` steps *beyond* the latest alarm.
Beyond, and not after: a run that was rolled back from step 5000 to 4000 and fails at 5000 again has
made a thousand calm steps and nothing is better. So the counts must not be rolled back with the
model, or the same failure would be met with the first rung for ever; they are restored at a resume.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mvc import FormatError, UsageError
from mvc_hooks.divergence.history import check_keys
from mvc_hooks.divergence.rungs import Both, LrScale, Rollback, SkipStep, Stop, both
from mvc_hooks.divergence.rungs import lr_scale as scale_lr
from mvc_hooks.divergence.rungs import rollback as roll_back
from mvc_hooks.divergence.rungs import stop as stop_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mvc_hooks.divergence.rungs import Rung
    from mvc_hooks.divergence.values import Verdict

FORGET_AFTER_STEPS = 2000

_ROLLBACKS_TO_MOST = 3
_KEYS = ("rung", "uses", "rollbacks", "last_alarm_step", "lr_factor")


@dataclass(frozen=True, slots=True)
class Action:
    """What to do about an alarm.

    Attributes:
        skip: drop the next optimizer step.
        rollback: where to go back to, or None.
        skip_batches: batches to skip after the rollback; 0 without one.
        lr_factor: what to multiply the learning rate with now; 1 for nothing.
        stop: end the run.
        rung: which rung answered, from 1.
        reason: one line: the alarm, and which answer it is.
    """

    skip: bool
    rollback: Rollback | None
    skip_batches: int
    lr_factor: float
    stop: bool
    rung: int
    reason: str


def default_ladder() -> tuple[Rung, ...]:
    """Return the rungs of a run that names none.

    One rollback as it is, since most spikes come from data met in a certain state and do not come
    back with other data; two more with the learning rate halved each time; then stop.
    """
    return roll_back(), both(roll_back(), scale_lr(0.5)), stop_run(after=3)


class Ladder:
    """Rungs, and how high the run has come."""

    def __init__(
        self, rungs: Iterable[Rung] | None = None, *, forget_after_steps: int = FORGET_AFTER_STEPS
    ) -> None:
        """Start under the first rung.

        Args:
            rungs: the weakest first; ``default_ladder()`` otherwise.
            forget_after_steps: calm steps beyond the latest alarm after which the next one is
                answered by the first rung again.

        Raises:
            UsageError: no rung, something that is none, or a rung behind ``stop``.
        """
        self._rungs = _check_rungs(default_ladder() if rungs is None else tuple(rungs))
        if type(forget_after_steps) is not int or forget_after_steps < 1:
            raise UsageError(f"forget_after_steps is {forget_after_steps!r}, not a positive number")
        self._forget_after_steps = forget_after_steps
        self._lr_factor = 1.0
        self._rung = self._uses = self._rollbacks = 0
        self._last_alarm_step: int | None = None

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """The rungs; the last one is a ``Stop``."""
        return self._rungs

    @property
    def rollbacks(self) -> int:
        """Rollbacks that are remembered."""
        return self._rollbacks

    @property
    def lr_factor(self) -> float:
        """Product of all factors so far; what the ladder forgets does not take them back.

        A rollback restores the learning rate of a commit that may be older than some of them: the
        rate to go on with is the commit's, times this, divided by the product in that commit.
        """
        return self._lr_factor

    def climb(self, verdict: Verdict) -> Action:
        """Return what to do about an alarm, and remember it."""
        if self._is_long_ago(verdict.step):
            self.forget()
        known = self._last_alarm_step
        self._last_alarm_step = verdict.step if known is None else max(known, verdict.step)
        while self._uses >= _limit(self._rungs[self._rung]) and self._rung + 1 < len(self._rungs):
            self._rung, self._uses = self._rung + 1, 0
        at = self._choose()
        self._uses += at == self._rung
        return self._act(at, verdict)

    def forget(self) -> None:
        """Forget all alarms and rollbacks, as after a rollback by hand; the factor stays."""
        self._rung = self._uses = self._rollbacks = 0
        self._last_alarm_step = None

    def state_dict(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {
            "rung": self._rung,
            "uses": self._uses,
            "rollbacks": self._rollbacks,
            "last_alarm_step": self._last_alarm_step,
            "lr_factor": self._lr_factor,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the counts back; a ladder that has fewer rungs now goes on with its last.

        Raises:
            FormatError: not what ``state_dict`` returned. Nothing was changed.
        """
        check_keys("a ladder", state, _KEYS)
        counts = [state["rung"], state["uses"], state["rollbacks"]]
        step, factor = state["last_alarm_step"], state["lr_factor"]
        counts += [] if step is None else [step]
        if any(type(count) is not int or not 0 <= count < 1 << 62 for count in counts):
            raise FormatError("the counts of a ladder are no whole numbers")
        if type(factor) is not float or not 0 < factor < math.inf:
            raise FormatError(f"the learning rate factor of a ladder is {factor!r}")
        self._rung, self._uses = min(state["rung"], len(self._rungs) - 1), state["uses"]
        self._rollbacks, self._last_alarm_step, self._lr_factor = state["rollbacks"], step, factor

    @property
    def _stop(self) -> Stop:
        last = self._rungs[-1]
        assert isinstance(last, Stop)
        return last

    def _is_long_ago(self, step: int) -> bool:
        last = self._last_alarm_step
        return last is not None and step - last >= self._forget_after_steps

    def _choose(self) -> int:
        """Return the rung that answers: the one whose turn it is, or what ``stop`` says."""
        rolling = [at for at, rung in enumerate(self._rungs) if _find_rollback(rung) is not None]
        after = self._stop.after
        if self._rung in rolling and 0 < after <= self._rollbacks:
            return len(self._rungs) - 1
        if self._rung == len(self._rungs) - 1 and rolling and self._rollbacks < after:
            return rolling[-1]
        return self._rung

    def _act(self, at: int, verdict: Verdict) -> Action:
        rung = self._rungs[at]
        parts = rung.parts if isinstance(rung, Both) else (rung,)
        target = _find_rollback(rung)
        skipped = 0 if target is None else self._count_batches(target)
        factor = math.prod(part.factor for part in parts if isinstance(part, LrScale))
        self._rollbacks += target is not None
        # However long the run, the product stays a positive, finite number.
        self._lr_factor = min(max(self._lr_factor * factor, 1e-300), 1e300)
        where = f"rung {at + 1} of {len(self._rungs)}"
        if isinstance(rung, Stop):
            where += f", after {self._rollbacks} rollback{'' if self._rollbacks == 1 else 's'}"
        return Action(
            skip=any(isinstance(part, SkipStep) for part in parts),
            rollback=target,
            skip_batches=skipped,
            lr_factor=float(factor),
            stop=isinstance(rung, Stop),
            rung=at + 1,
            reason=f"{verdict.cause}: {verdict.reason} ({where})",
        )

    def _count_batches(self, target: Rollback) -> int:
        """Return from the fewest batches, at the first rollback, to the most, at the last."""
        fewest, most = target.skip_batches
        last = (self._stop.after or _ROLLBACKS_TO_MOST) - 1
        return fewest + (most - fewest) * min(self._rollbacks, last) // max(last, 1)


def _limit(rung: Rung) -> float:
    return math.inf if isinstance(rung, Stop) else rung.limit


def _find_rollback(rung: Rung) -> Rollback | None:
    parts = rung.parts if isinstance(rung, Both) else (rung,)
    return next((part for part in parts if isinstance(part, Rollback)), None)


def _check_rungs(rungs: tuple[Rung, ...]) -> tuple[Rung, ...]:
    if not rungs:
        raise UsageError("a ladder has no rung", hint="give stop() to stop at the first alarm")
    for rung in rungs:
        if not isinstance(rung, SkipStep | Rollback | LrScale | Both | Stop):
            raise UsageError(
                f"{rung!r} is no rung of a ladder",
                hint="take skip_step(), rollback(), lr_scale(), both() and stop()",
            )
    if any(isinstance(rung, Stop) for rung in rungs[:-1]):
        raise UsageError("a ladder goes on behind stop()", hint="put stop() last")
    return rungs if isinstance(rungs[-1], Stop) else (*rungs, stop_run(after=0))

"""A reading of a step, the verdict of a detector, and how counts are checked."""

from __future__ import annotations

from dataclasses import dataclass

from mvc import UsageError

NOT_FINITE = "not finite"
SPIKE = "spike"
TREND = "trend"


@dataclass(frozen=True, slots=True)
class Reading:
    """What one step measured.

    Attributes:
        step: the number of the completed step; the first is 1.
        loss: its loss, or None if it was not measured. NaN and infinity are values.
        grad_norm: its gradient norm, or None.
    """

    step: int
    loss: float | None = None
    grad_norm: float | None = None

    def __post_init__(self) -> None:
        check_count("step", self.step, 0)
        for name in ("loss", "grad_norm"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, float | int):
                raise UsageError(f"{name} of a reading is a {type(value).__name__}, not a float")
            try:
                object.__setattr__(self, name, float(value))
            except OverflowError:
                raise UsageError(f"{name} of step {self.step} is too large for a float") from None


@dataclass(frozen=True, slots=True)
class Verdict:
    """An alarm.

    Attributes:
        cause: ``not finite``, ``spike``, ``trend``, or the name of the user's detector.
        reason: one line with the numbers.
        onset_step: where it began, as far as can be told; a rollback goes back to before it.
        step: the step whose reading raised the alarm.
    """

    cause: str
    reason: str
    onset_step: int
    step: int

    def __post_init__(self) -> None:
        check_count("step of a verdict", self.step, 0)
        check_count("onset_step of a verdict", self.onset_step, 0)
        if self.onset_step > self.step:
            raise UsageError(f"onset_step {self.onset_step} of a verdict is after step {self.step}")
        for name in ("cause", "reason"):
            text = getattr(self, name)
            if not isinstance(text, str) or not text.strip():
                raise UsageError(f"{name} of a verdict is {text!r}, not a text")
            object.__setattr__(self, name, " ".join(text.split()))


def check_count(what: str, value: object, fewest: int) -> int:
    """Return a whole number that is not too small, and fits where it will be stored.

    Raises:
        UsageError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not fewest <= value < 1 << 62:
        raise UsageError(f"{what} is {value!r}, not a whole number of at least {fewest}")
    return value

"""What the parts of this folder hand to each other: a reading and a verdict."""

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
        loss: its loss, or None where the step measured none. NaN and infinity are values.
        grad_norm: its gradient norm, or None.
    """

    step: int
    loss: float | None = None
    grad_norm: float | None = None

    def __post_init__(self) -> None:
        _check_step("step", self.step)
        for name in ("loss", "grad_norm"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, float | int):
                raise UsageError(f"{name} of a reading is a {type(value).__name__}, not a float")
            try:
                object.__setattr__(self, name, float(value))
            except OverflowError:
                raise UsageError(f"{name} of step {self.step} is beyond any float") from None


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
        _check_step("step of a verdict", self.step)
        _check_step("onset_step of a verdict", self.onset_step)
        if self.onset_step > self.step:
            raise UsageError(
                f"a verdict of step {self.step} says that it began at step {self.onset_step}"
            )
        for name in ("cause", "reason"):
            text = getattr(self, name)
            if not isinstance(text, str) or not text.strip():
                raise UsageError(f"{name} of a verdict is {text!r}, not a text")
            object.__setattr__(self, name, " ".join(text.split()))


def _check_step(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise UsageError(f"{name} is {value!r}, not a step number")

"""What a commit says about the training: step, metrics and other facts, as Git trailers."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import UsageError
from mvc.history.revisions import STEP_TRAILER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mvc.history.values import CommitInfo

METRIC_TRAILER = "Metric"
META_TRAILER = "Meta"
FACT_TRAILERS = frozenset({STEP_TRAILER, METRIC_TRAILER, META_TRAILER})
_MAX_STEP_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Annotations:
    """What a commit says about the training.

    Attributes:
        step: training step, or None.
        metrics: name → number.
        meta: name → text.
    """

    step: int | None = None
    metrics: Mapping[str, float] | None = None
    meta: Mapping[str, str] | None = None

    def trailers(self) -> list[tuple[str, str]]:
        """Return the trailers."""
        found: list[tuple[str, str]] = []
        if self.step is not None:
            found.append((STEP_TRAILER, str(check_steps("a step", self.step))))
        for name, value in (self.metrics or {}).items():
            found.append((METRIC_TRAILER, f"{_checked(name)}={_checked_number(name, value)}"))
        for name, text in (self.meta or {}).items():
            found.append((META_TRAILER, f"{_checked(name)}={text}"))
        return found


def _checked(name: str) -> str:
    if not name or "=" in name or any(sign.isspace() for sign in name):
        raise UsageError(f"{name!r} is not a valid name: it must not contain spaces or '='")
    return name


def check_steps(what: str, value: int) -> int:
    """Return a step, or a number of steps, as an int."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{what} is a whole number, not {value!r}") from None
    if not 0 <= number < 10**_MAX_STEP_DIGITS:
        fact = "negative" if number < 0 else f"not a number of at most {_MAX_STEP_DIGITS} digits"
        raise UsageError(f"{what} is {fact}")
    return number


def _checked_number(name: str, value: float) -> str:
    """Return a number as text that reads back to the same bits."""
    try:
        return str(int(value)) if isinstance(value, int) else repr(float(value))
    except (TypeError, ValueError, OverflowError):
        raise UsageError(
            f"metric {name!r} is a {type(value).__name__}, not a number", hint="meta takes text"
        ) from None


def read_annotations(info: CommitInfo) -> Annotations:
    """Return what the trailers of a commit say; malformed ones are skipped."""
    step: int | None = None
    metrics: dict[str, float] = {}
    meta: dict[str, str] = {}
    for key, value in info.trailers:
        name, equals, text = value.partition("=")
        if key == STEP_TRAILER and _is_step(value):
            step = int(value)
        elif key == METRIC_TRAILER and equals:
            number = parse_number(text)
            if number is not None:
                metrics[name] = number
        elif key == META_TRAILER and equals:
            meta[name] = text
    return Annotations(step, metrics, meta)


def _is_step(text: str) -> bool:
    # Anyone may write a message, and Python refuses to read numbers of thousands of digits.
    return text.isascii() and text.isdigit() and len(text) <= _MAX_STEP_DIGITS


def parse_number(text: str) -> float | None:
    """Return the number a text spells, or None; whole numbers stay whole."""
    try:
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        return None

"""What a commit says of the training: step, metrics and other facts, as trailers of its message.

Apart from ``commit`` so that the log, which only reads them, pays for nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mvc.history.values import CommitInfo

STEP_TRAILER = "Step"
METRIC_TRAILER = "Metric"
META_TRAILER = "Meta"


@dataclass(frozen=True, slots=True)
class Annotations:
    """What a commit says of the training: all of it ends up as Git trailers.

    Attributes:
        step: training step, or None.
        metrics: name → number.
        meta: name → text.
    """

    step: int | None = None
    metrics: Mapping[str, float] | None = None
    meta: Mapping[str, str] | None = None

    def trailers(self) -> list[tuple[str, str]]:
        """Return the trailers.

        Raises:
            UsageError: a negative step, or a name with ``=`` or a line break.
        """
        found: list[tuple[str, str]] = []
        if self.step is not None:
            if self.step < 0:
                raise UsageError(f"a step is not negative: {self.step}")
            found.append((STEP_TRAILER, str(self.step)))
        for name, value in (self.metrics or {}).items():
            found.append((METRIC_TRAILER, f"{_checked(name)}={format_number(value)}"))
        for name, text in (self.meta or {}).items():
            found.append((META_TRAILER, f"{_checked(name)}={text}"))
        return found


def _checked(name: str) -> str:
    if not name or "=" in name or any(sign.isspace() for sign in name):
        raise UsageError(f"{name!r} is no name for a metric: no spaces, no '='")
    return name


def format_number(value: float) -> str:
    """Return a number as text that reads back to the same bits."""
    return repr(float(value)) if not isinstance(value, int) else str(value)


def read_annotations(info: CommitInfo) -> Annotations:
    """Return what the trailers of a commit say; malformed ones are passed over."""
    step: int | None = None
    metrics: dict[str, float] = {}
    meta: dict[str, str] = {}
    for key, value in info.trailers:
        name, equals, text = value.partition("=")
        if key == STEP_TRAILER and value.isascii() and value.isdigit():
            step = int(value)
        elif key == METRIC_TRAILER and equals:
            number = parse_number(text)
            if number is not None:
                metrics[name] = number
        elif key == META_TRAILER and equals:
            meta[name] = text
    return Annotations(step, metrics, meta)


def parse_number(text: str) -> float | None:
    """Return the number a text spells, or None; whole numbers stay whole."""
    try:
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        return None

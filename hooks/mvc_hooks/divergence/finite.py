"""The detector of NaN and infinity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mvc_hooks.checks import check_count
from mvc_hooks.divergence.history import NOT_FINITE, Verdict

if TYPE_CHECKING:
    from mvc_hooks.divergence.history import History


@dataclass(frozen=True, slots=True)
class NotFinite:
    """NaN or infinity, at once.

    While the loss is finite, up to ``overflows`` gradient norms in a row may be infinite or NaN: a
    ``GradScaler`` finds its scale by overflowing, and skips those steps itself.
    """

    overflows: int = 0

    name: ClassVar[str] = NOT_FINITE
    advice: ClassVar[str] = "NotFinite(overflows=16) in detectors lets a scaler overflow"
    cooldown: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_count("overflows of NotFinite", self.overflows, 0)

    def __call__(self, history: History) -> Verdict | None:
        """Return an alarm, or None."""
        latest = history.latest
        if latest is None:
            return None
        if latest.loss is not None and not math.isfinite(latest.loss):
            what, value, advice = "loss", latest.loss, ""
        elif latest.grad_norm is not None and self._is_overflown(history):
            what, value, advice = "gradient norm", latest.grad_norm, self.advice
        else:
            return None
        reason = f"{what} is {value} at step {latest.step}"
        return Verdict(NOT_FINITE, reason, history.onset_step, latest.step, advice)

    def _is_overflown(self, history: History) -> bool:
        if len(history) <= self.overflows:
            return False
        rows = (history[at] for at in range(-1 - self.overflows, 0))
        return all(row.grad_norm is not None and not math.isfinite(row.grad_norm) for row in rows)

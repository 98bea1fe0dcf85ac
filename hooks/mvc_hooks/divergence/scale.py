"""The loss scale of a ``GradScaler``: how it is read, and the detector of its collapse.

A scaler multiplies the loss so that small gradients do not vanish in fp16. Where a gradient overflows, it
skips the optimizer and halves the scale; after ``growth_interval`` steps without that it doubles it. So a
healthy scale falls at the start until nothing overflows (the search), and then goes up and down around
what the largest gradients leave room for. It collapses if gradients overflow at any scale, as when they
are NaN or grow without end: then it halves and halves, and the run stands still without an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from mvc_hooks.checks import check_count, check_ranges
from mvc_hooks.divergence.history import SCALE, History, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


_SET_BY_HAND = 16.0
"""By more than this no scaler grows at once: the script has set the scale, which begins a search."""
_ANSWER = "lower the learning rate, clip the gradients, or train in bf16, which needs no scale"


@dataclass(frozen=True, slots=True)
class ScaleCollapse:
    """The loss scale falls below ``floor`` and far below where it was, and goes on falling.

    Where it was is its highest value in the window, without the search, which ends when the scale rises
    for the first time. Until then a scale below the floor may still be right, as for the sum of a
    million losses: it must be ``halvings`` below the floor itself.

    Attributes:
        window: readings to look at.
        halvings: how often it must have been halved since it was highest.
        floor: below this scale gradients are made smaller, not larger.
        cooldown: steps after an alarm in which it is not reported again.
    """

    window: int = 4096
    halvings: float = 12.0
    floor: float = 1.0
    cooldown: int = 512

    name: ClassVar[str] = SCALE
    advice: ClassVar[str] = (
        "ScaleCollapse(halvings=20) in detectors=[...] is quieter, a list without it silent"
    )

    def __post_init__(self) -> None:
        check_count("window of ScaleCollapse", self.window, 2)
        check_count("cooldown of ScaleCollapse", self.cooldown, 0)
        check_ranges(self, "halvings", "floor", excludes=True)

    def __call__(self, history: History) -> Verdict | None:
        """Return an alarm, or None."""
        latest, counts = history.latest, history.overflows[-2:]
        if latest is None or latest.scale is None or latest.scale >= self.floor:
            return None
        if len(counts) > 1 and counts[0] == counts[1]:  # it does not fall
            return None
        scales = history.scales[-self.window :]
        is_known = np.isfinite(scales)
        steps, scales = history.steps[-self.window :][is_known], scales[is_known]
        begin, level = self._find_level(scales)
        if latest.scale * 2.0**self.halvings > level:
            return None
        high = begin + np.flatnonzero(scales[begin:] >= level / 2)
        onset = int(steps[high[-1] + 1 if len(high) else begin])
        reason = (
            f"loss scale fell from {scales[high[-1] if len(high) else begin]:.6g} before step {onset}"
            f" to {latest.scale:.3g} at step {latest.step}: gradients overflow at any scale, and their"
            f" steps are skipped; {_ANSWER}"
        )
        return Verdict(SCALE, reason, onset, latest.step, self.advice)

    def _find_level(self, scales: NDArray[np.float64]) -> tuple[int, float]:
        """Return where the scale is found, as an index, and its highest value since then."""
        rises = 1 + np.flatnonzero(scales[1:] > scales[:-1])
        by_hand = rises[scales[rises] > _SET_BY_HAND * scales[rises - 1]]
        begin = int(by_hand[-1]) if len(by_hand) else 0
        if len(by_hand) or len(scales) < self.window:
            grown = rises[rises > begin]
            if not len(grown):
                return begin, self.floor
            begin = int(grown[0]) - 1
        return begin, float(np.max(scales[begin:]))


def is_scaling(value: object) -> bool:
    """Return whether an object is a scaler that is enabled."""
    return isinstance(value, torch.amp.GradScaler) and value.is_enabled()


def read_scale(scalers: Sequence[Any]) -> torch.Tensor | float | None:
    """Return the lowest scale, a tensor where it is one; before its first use a scaler has a number."""
    scales = [scaler._scale for scaler in scalers if scaler._scale is not None]  # noqa: SLF001  get_scale() waits for the device
    first = read_first_scale([scaler for scaler in scalers if scaler._scale is None])  # noqa: SLF001  as above
    if not scales:
        return first
    lowest = torch.stack([scale.to(scales[0].device) for scale in scales]).amin()
    return lowest if first is None else lowest.clamp(max=first)


def read_first_scale(scalers: Sequence[Any]) -> float | None:
    """Return the lowest scale as a number, for which the host waits."""
    return min((float(scaler.get_scale()) for scaler in scalers), default=None)

"""The last values of a quantity, histograms of all of them, and how long intervals last together. Pure."""

from __future__ import annotations

import bisect
import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

WINDOW = 1000
"""How many values a window keeps."""
SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds of the bars of a histogram of seconds; the thresholds of time are among them."""


class LastValues:
    """The last values of a quantity; one thread adds, others may read."""

    def __init__(self, size: int = WINDOW) -> None:
        self._values: deque[float] = deque(maxlen=size)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        """Add a value; the oldest one leaves."""
        self._values.append(value)

    def quantile(self, share: float) -> float | None:
        """Return the smallest value that so large a share of all does not exceed; None without values."""
        values = sorted(self._values)
        return values[max(0, math.ceil(share * len(values)) - 1)] if values else None

    @property
    def largest(self) -> float | None:
        """The largest value."""
        return max(list(self._values), default=None)

    @property
    def sum(self) -> float:
        """The sum of the values."""
        return math.fsum(list(self._values))


class SecondsHistogram:
    """How many values there were up to each bound, and their sum."""

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = (*bounds, math.inf)
        self._counts = [0] * len(self._bounds)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self.sum += value

    def bars(self) -> list[tuple[str, float]]:
        """Return each upper bound as a text, and how many values were at most that."""
        total, bars = 0, list[tuple[str, float]]()
        for bound, count in zip(self._bounds, list(self._counts), strict=True):
            total += count
            bars.append(("+Inf" if math.isinf(bound) else str(bound), total))
        return bars

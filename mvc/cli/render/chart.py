"""A loss curve in block characters, one column for a few steps."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BLOCKS = " ▁▂▃▄▅▆▇█"
PLAIN = " ..::==##"
"""For an encoding that lacks the blocks."""
ODD = "!"
"""Marks a loss that is NaN or infinite."""

_LOG_FROM = 100.0  # two decades


@dataclass(frozen=True, slots=True)
class Column:
    """A few neighbouring steps: their highest loss, so that a spike is never averaged away.

    ``is_odd``: one of them is NaN or infinite. ``went_back``: the run went back to an earlier step.
    """

    value: float | None
    is_odd: bool
    went_back: bool


@dataclass(frozen=True, slots=True)
class Chart:
    """A curve to draw, from ``low`` to ``high``, which are None if no value is finite."""

    columns: tuple[Column, ...]
    low: float | None
    high: float | None
    is_log: bool


def chart_of(losses: Sequence[tuple[int, float]], width: int) -> Chart:
    """Return (step, loss) pairs as at most ``width`` columns; logarithmic if they span decades."""
    count = min(len(losses), max(width, 1))
    edges = [round(number * len(losses) / count) for number in range(count + 1)] if count else []
    columns = tuple(
        _column(losses[start:end], losses[start - 1][0] if start else None)
        for start, end in itertools.pairwise(edges)
    )
    values = [column.value for column in columns if column.value is not None]
    if not values:
        return Chart(columns, None, None, is_log=False)
    low, high = min(values), max(values)
    return Chart(columns, low, high, is_log=low > 0 and high / low >= _LOG_FROM)


def _column(losses: Sequence[tuple[int, float]], before: int | None) -> Column:
    finite = [loss for _, loss in losses if math.isfinite(loss)]
    steps = [step for step, _ in losses]
    previous = [steps[0] - 1 if before is None else before, *steps]
    return Column(
        value=max(finite, default=None),
        is_odd=len(finite) < len(losses),
        went_back=any(step <= last for last, step in zip(previous, steps, strict=False)),
    )


def draw(
    chart: Chart, rows: int, *, blocks: str = BLOCKS, style: Callable[[str, str], str]
) -> list[str]:
    """Return the curve as ``rows`` lines, from the top; ``style`` colours a text."""
    full = len(blocks) - 1
    heights = [_height(chart, column, rows * full) for column in chart.columns]
    lines = []
    for row in range(rows - 1, -1, -1):
        cells = [
            (ODD, "red")
            if column.is_odd and row == 0
            else (
                blocks[min(max(height - row * full, 0), full)],
                "yellow" if column.went_back else "cyan",
            )
            for column, height in zip(chart.columns, heights, strict=True)
        ]
        runs = itertools.groupby(cells, key=lambda cell: cell[1])
        texts = [("".join(sign for sign, _ in run), colour) for colour, run in runs]
        lines.append(
            "".join(style(text, colour) if text.strip() else text for text, colour in texts)
        )
    return lines


def _height(chart: Chart, column: Column, most: int) -> int:
    """Return the height of a column in parts of a cell; every value is at least visible."""
    if column.value is None or chart.low is None or chart.high is None:
        return 0
    low, high, value = chart.low, chart.high, column.value
    if chart.is_log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    if low == high:
        return max(most // 2, 1)
    # Halved, because the span of all doubles overflows a double.
    part = (value / 2 - low / 2) / (high / 2 - low / 2) if high / 2 > low / 2 else 0.0
    return max(round(part * most), 1)

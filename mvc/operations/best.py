"""The commit with the best value of a metric."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import NotFoundError
from mvc.operations.log import LogEntry, log
from mvc.workspace.health import find_value

if TYPE_CHECKING:
    from mvc.ids import GitId
    from mvc.workspace.context import Context


@dataclass(frozen=True, slots=True)
class BestCommit:
    """The best commit by a metric.

    Attributes:
        metric: its name.
        commit: the commit.
        value: the metric there.
        step: its training step, or None.
        maximise: whether it is the highest value, not the lowest.
        compared: how many commits it was chosen from.
        left_out: how many have the metric and do not count: abandoned by a rollback, or not finite.
        is_released: whether content of it was released.
    """

    metric: str
    commit: GitId
    value: float
    step: int | None
    maximise: bool
    compared: int
    left_out: int
    is_released: bool


def find_best(context: Context, metric: str, *revisions: str, maximise: bool = False) -> BestCommit:
    """Return the commit with the lowest value of a metric, the earliest of several.

    Commits that a rollback abandoned, and values that are not finite, are left out.

    Args:
        metric: its name; ``step`` and figures such as ``health.norm`` work too.
        revisions: where to look, by default what HEAD reaches; ``A..B`` excludes commits.
        maximise: return the commit with the highest value.

    Raises:
        NotFoundError: no such revision, or no commit there has the metric.
    """
    best: tuple[float, LogEntry] | None = None
    compared = left_out = 0
    for entry in log(context, *revisions):  # newest first
        value = find_value(entry.info, metric)
        if value is None:
            continue
        if entry.diverged is not None or not math.isfinite(value):
            left_out += 1
            continue
        compared += 1
        if best is None or (value >= best[0] if maximise else value <= best[0]):
            best = value, entry
    if best is None:
        fact = f" that counts; {left_out:,} do not" if left_out else ""
        raise NotFoundError(
            f"no commit has the metric {metric!r}{fact}", hint='"mvc log" shows metrics'
        )
    value, entry = best
    return BestCommit(
        metric,
        entry.id,
        value,
        entry.step,
        maximise,
        compared,
        left_out,
        is_released=entry.released is not None,
    )

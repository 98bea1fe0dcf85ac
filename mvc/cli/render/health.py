"""The health of commits along a run, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.output import Output, printable
from mvc.cli.render.text import cut_end, number_text, short_id, table_lines
from mvc.workspace.health import overall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc.ids import GitId
    from mvc.operations.log import LogEntry
    from mvc.workspace.health import CheckpointHealth

_HEAD = ("commit", "step", "nan", "inf", "max", "norm", "change", "", "subject")
_JUMP = 2.0
"""By what factor a norm has to change, up or down, to be marked."""
_MANY = 10.0


def write_health(out: Output, entries: Sequence[LogEntry]) -> None:
    """Write step, NaN, infinities, largest magnitude and norm of every commit that has them.

    The change of the norm is to the first parent; ``!`` marks a jump, and what is not finite.
    """
    found = {entry.id: overall(entry.health) for entry in entries}
    rows = [_HEAD, *(_row(entry, found) for entry in entries)]
    for row, text in zip(rows, table_lines(out, rows, "<>>>>>><<"), strict=True):
        line = text if out.width is None else cut_end(text, out.width)
        styles = ["dim"] if row is _HEAD else ["red"] if row[-2] else []
        out.line(out.style(line, *styles))


def _row(entry: LogEntry, found: Mapping[GitId, CheckpointHealth | None]) -> tuple[str, ...]:
    health = found[entry.id]
    step = "" if entry.step is None else f"{entry.step:,}"
    name, subject = short_id(entry.id), printable(entry.subject)
    if health is None:
        return (name, step, "", "", "", "", "", "", subject)
    before = found.get(entry.info.parents[0]) if entry.info.parents else None
    growth = None if before is None or not before.norm else health.norm / before.norm
    is_jump = growth is not None and not 1 / _JUMP <= growth <= _JUMP
    figures = (f"{health.nan:,}", f"{health.inf:,}", number_text(health.largest))
    mark = "!" if is_jump or health.nan or health.inf else ""
    change = ""
    if growth is not None:
        change = f"x {growth:.3g}" if growth >= _MANY else f"{100 * (growth - 1):+.2g} %"
    return (name, step, *figures, number_text(health.norm), change, mark, subject)

"""A training run as lines of text, with its loss curve in block characters."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.cli.output import Output, printable
from mvc.cli.render.text import (
    BLOCKS,
    bars,
    cell_width,
    columns,
    count_text,
    cut_end,
    cut_middle,
    pad,
    ratio_text,
    seconds_text,
    short_id,
    size_text,
)
from mvc.runs.records import RunEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mvc.runs.records import RunAlarm, RunCommit, RunRollback, RunView

ODD = "!"
"""Marks a loss that is NaN or infinite."""

_LOG_FROM = 100.0  # two decades
_ENDED = "ended"  # the reason of a run that ended normally
_SILENT_FROM_S = 60.0
_LEAST_SUBJECT = 12
_ALL_ROWS = 10
_CHART_ROWS = 6
_MOST_CHART_ROWS = 12
_AROUND = 10  # lines of a frame that are neither curve, commit nor event
_LABEL_WIDTH = 7
_COMMIT_HEADINGS = ("commits", "step", "stall", "write", "new", "of", "queue")
_COMMIT_LEAST = (5, 6, 3)  # columns dropped in a narrow terminal, in this order
_COLOURS = {"alarm": "red", "error": "red", "rollback": "yellow", "skip": "yellow"}


def frame_lines(
    out: Output, view: RunView, *, width: int, height: int | None, now_s: float
) -> list[str]:
    """Return a run as lines of at most ``width`` columns, at most ``height`` of them if given."""
    happened = _happened(view)
    curve, commits, events = _shares(height, len(view.commits), len(happened))
    parts = [
        _header_lines(out, view, width, now_s),
        _curve_lines(out, view, width, curve),
        _commit_lines(out, view.commits[:commits], width),
        _event_lines(out, happened[:events], width),
    ]
    lines = [line for part in parts if part for line in ("", *part)][1:]
    return lines if height is None else lines[:height]


def _shares(height: int | None, commits: int, events: int) -> tuple[int, int, int]:
    """Return how many lines the curve, the commits and the events get."""
    if height is None:
        return _CHART_ROWS, min(commits, _ALL_ROWS), min(events, _ALL_ROWS)
    room = max(height - _AROUND, 3)
    curve = max(room // 3, 1)
    commits_shown = min(commits, max((room - curve) // 2, 1))
    events_shown = min(events, room - curve - commits_shown)
    commits_shown = min(commits, room - curve - events_shown)
    return min(room - commits_shown - events_shown, _MOST_CHART_ROWS), commits_shown, events_shown


def _header_lines(out: Output, view: RunView, width: int, now_s: float) -> list[str]:
    name = cut_middle(printable(view.branch), max(width // 3, 8))
    step = "no step yet" if view.step is None else f"step {view.step:,}"
    if view.step is not None and view.total:
        step += f" of {view.total:,} ({ratio_text(min(view.step / view.total, 1.0))})"
    text, colour = _state(view, now_s)
    room = width - cell_width(name) - 4
    state = cut_end(text, max(room - cell_width(step), 12))
    room -= cell_width(state)
    facts = _joined([step, *_pace(view)], room) or cut_end(step, max(room, 1))
    first = f"{out.style(name, 'bold')}  {pad(facts, room)}  {out.style(state, colour)}"
    measures, origin = _joined(_measures(view), width), _joined(_origin(view, now_s), width)
    lines = [first, *filter(None, (measures, origin))]
    return lines[:2] + [out.style(line, "dim") for line in lines[2:]]


def _state(view: RunView, now_s: float) -> tuple[str, str]:
    """Return text and colour for whether the run is still going."""
    if view.stopped is not None:
        reason = printable(view.stopped)
        text = reason if reason == _ENDED else f"stopped: {reason}" if reason else "stopped"
        return f"■ {text}", "dim"
    if view.alive is False:
        return "■ its process is gone", "red"
    silent_s = 0.0 if view.updated_s is None else now_s - view.updated_s
    if silent_s >= _SILENT_FROM_S:
        return f"● silent for {seconds_text(silent_s)}", "yellow"
    return "● running", "green"


def _pace(view: RunView) -> Iterator[str]:
    if view.steps_per_s is None or view.stopped is not None or view.alive is False:
        return
    speed = view.steps_per_s
    yield f"{speed:.3g} steps/s" if speed >= 1 or not speed else f"{1 / speed:.3g} s/step"
    if view.total and view.step is not None and speed and view.total > view.step:
        left_s = (view.total - view.step) / speed
        if math.isfinite(left_s):  # a damaged feed may claim any speed
            yield f"{seconds_text(left_s)} left"


def _measures(view: RunView) -> Iterator[str]:
    for name, value in (("loss", view.loss), ("grad norm", view.grad_norm), ("lr", view.lr)):
        if value is not None:
            yield f"{name} {value:.5g}"
    if view.scale is not None:
        yield f"scale {view.scale:.7g}"
        yield count_text(view.overflows or 0, "overflow")
    if view.stall_s is not None:
        yield f"stall {_brief(view.stall_s)}"
    if view.queue_depth is not None:
        yield f"queue {view.queue_depth}"
    healthy = next((commit.step for commit in view.commits if commit.is_healthy), None)
    if healthy is not None:
        yield f"healthy {healthy:,}"


def _origin(view: RunView, now_s: float) -> Iterator[str]:
    for name, time_s in (("last update", view.updated_s), ("started", view.started_s)):
        if time_s is not None:
            yield f"{name} {seconds_text(max(now_s - time_s, 0.0))} ago"
    if view.every is not None:
        yield f"a commit every {view.every:,} steps"
    if view.pid is not None:
        yield f"process {view.pid} on {printable(view.host)}"
    if view.damaged_lines:
        yield count_text(view.damaged_lines, "damaged line")


def _joined(parts: Iterable[str], width: int) -> str:
    """Return the first parts, as many as fit."""
    text = ""
    for part in parts:
        longer = f"{text}   {part}" if text else part
        if cell_width(longer) > width:
            break
        text = longer
    return text


def _brief(seconds: float) -> str:
    """Return a duration that may be very short: ``0.4 ms``, ``31 ms``, ``2.5 s``."""
    if seconds >= 1:
        return seconds_text(seconds)
    return f"{seconds * 1e3:.2g} ms" if seconds < 0.0995 else f"{seconds * 1e3:.0f} ms"  # noqa: PLR2004  .2g would write an exponent


def _curve_lines(out: Output, view: RunView, width: int, rows: int) -> list[str]:
    if not view.losses:
        return []
    chart = chart_of(view.losses, width - _LABEL_WIDTH - 1)
    lines = draw(chart, rows, blocks=bars(out), style=out.style)
    labels = [""] * rows
    labels[-1], labels[0] = _label(chart.low), _label(chart.high)
    notes = [f"steps {view.losses[0][0]:,} to {view.losses[-1][0]:,}"]
    notes += ["log scale"] if chart.is_log else []
    notes += [f"{ODD} NaN or infinite"] if any(column.is_odd for column in chart.columns) else []
    heading = f"{out.style('loss', 'bold')}   {out.style(_joined(notes, width - 7), 'dim')}"
    marks = [out.style(pad(label, _LABEL_WIDTH, ">"), "dim") for label in labels]
    return [heading, *(f"{mark} {line}".rstrip() for mark, line in zip(marks, lines, strict=True))]


def _label(value: float) -> str:
    if math.isnan(value):
        return ""
    texts = (f"{value:.{digits}g}" for digits in (4, 3, 2, 1))
    return next(text for text in texts if len(text) <= _LABEL_WIDTH)


def _commit_lines(out: Output, commits: Sequence[RunCommit], width: int) -> list[str]:
    if not commits:
        return []
    rows = _fitting([_COMMIT_HEADINGS, *map(_commit_cells, commits)], width)
    lines = [out.style("  ".join(rows[0]), "bold")]
    for commit, (name, *cells) in zip(commits, rows[1:], strict=True):
        colour = "red" if commit.is_abandoned else "green" if commit.is_healthy else "yellow"
        line = f"{out.style(name, colour)}  {'  '.join(cells)}"
        room = width - cell_width("  ".join((name, *cells))) - 2
        if commit.subject and (room >= _LEAST_SUBJECT or out.width is None):
            line += f"  {out.style(_cut(out, commit.subject, room), 'dim')}"
        lines.append(line)
    return lines


def _cut(out: Output, text: str, width: int) -> str:
    """Return text that fits a terminal; a pipe gets everything."""
    text = printable(text)
    return text if out.width is None else cut_end(text, max(width, 1))


def _fitting(rows: list[tuple[str, ...]], width: int) -> list[list[str]]:
    """Return aligned rows, without the least important columns if there is no room for all."""
    widths = [max(map(cell_width, column)) for column in zip(*rows, strict=True)]
    kept = list(range(len(widths)))
    for least in _COMMIT_LEAST:
        if sum(widths[at] + 2 for at in kept) - 2 > width:
            kept.remove(least)
    return columns([[row[at] for at in kept] for row in rows], "<" + ">" * (len(kept) - 1))


def _commit_cells(commit: RunCommit) -> tuple[str, ...]:
    sizes = (commit.written_bytes, commit.plain_bytes)
    times = (commit.stall_s, commit.write_s)
    queue = commit.queue_depth
    return (
        short_id(printable(commit.commit)),
        f"{commit.step:,}",
        *("-" if seconds is None else _brief(seconds) for seconds in times),
        *("-" if size is None else size_text(size) for size in sizes),
        "-" if queue is None else f"{queue:,}",
    )


def _happened(view: RunView) -> list[RunEvent]:
    """Return all that happened, newest first."""

    def event(kind: str, one: RunRollback | RunAlarm, text: str) -> RunEvent:
        return RunEvent(kind, one.step, one.time_s, text)

    events = [
        *(event("rollback", rollback, _rollback_text(rollback)) for rollback in view.rollbacks),
        *view.events,
        *view.errors,
        *(
            event("alarm", alarm, ": ".join(filter(None, (alarm.cause, alarm.reason))))
            for alarm in view.alarms
        ),
    ]  # at the same time, the consequence stands above its cause
    return sorted(events, key=lambda event: event.time_s, reverse=True)


def _rollback_text(one: RunRollback) -> str:
    text = f"to step {one.to_step:,}"
    if one.to_commit:
        text += f" ({short_id(one.to_commit)})"
    if one.seconds is not None:
        text += f" in {_brief(one.seconds)}"
    if one.skipped_batches:
        text += f", {one.skipped_batches:,} batches skipped"
    if one.diverged_branch:
        text += f", kept on {one.diverged_branch}"
    return f"{text}: {one.reason}" if one.reason else text


def _event_lines(out: Output, events: Sequence[RunEvent], width: int) -> list[str]:
    if not events:
        return []
    times = [time.strftime("%H:%M:%S", time.localtime(one.time_s)) for one in events]
    steps = ["" if one.step is None else f"{one.step:,}" for one in events]
    kinds = [printable(one.kind) for one in events]
    lines = [out.style("what happened", "bold")]
    for one, cells in zip(
        events, columns([*zip(times, steps, kinds, strict=True)], "<><"), strict=True
    ):
        rest = _cut(out, one.text, width - cell_width("  ".join(cells)) - 2)
        if one.kind in _COLOURS:
            cells[2] = out.style(cells[2], _COLOURS[one.kind])
        lines.append(f"{'  '.join(cells)}  {rest}".rstrip())
    return lines


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
    """A curve to draw, from ``low`` to ``high``, which are NaN if no value is finite."""

    columns: list[Column]
    low: float
    high: float
    is_log: bool


def chart_of(losses: Sequence[tuple[int, float]], width: int) -> Chart:
    """Return (step, loss) pairs as at most ``width`` columns; logarithmic if they span decades."""
    count = min(len(losses), max(width, 1))
    edges = [round(number * len(losses) / max(count, 1)) for number in range(count + 1)]
    backs = [False, *(step <= last for (last, _), (step, _) in itertools.pairwise(losses))]
    columns = []
    for start, end in itertools.pairwise(edges):
        finite = [loss for _, loss in losses[start:end] if math.isfinite(loss)]
        is_odd = len(finite) < end - start
        columns.append(Column(max(finite, default=None), is_odd, any(backs[start:end])))
    values = [column.value for column in columns if column.value is not None]
    low, high = min(values, default=math.nan), max(values, default=math.nan)
    return Chart(columns, low, high, is_log=low > 0 and high / low >= _LOG_FROM)


def draw(
    chart: Chart, rows: int, *, blocks: str = BLOCKS, style: Callable[[str, str], str]
) -> list[str]:
    """Return the curve as ``rows`` lines, from the top; ``style`` colours a text."""
    full = len(blocks) - 1
    heights = [_height(chart, column.value, rows * full) for column in chart.columns]
    lines = []
    for row in reversed(range(rows)):
        cells = []
        for column, height in zip(chart.columns, heights, strict=True):
            sign = blocks[min(max(height - row * full, 0), full)]
            colour = "yellow" if column.went_back else "cyan"
            cells.append((ODD, "red") if column.is_odd and row == 0 else (sign, colour))
        line = ""
        for colour, run in itertools.groupby(cells, key=lambda cell: cell[1]):
            text = "".join(sign for sign, _ in run)
            line += style(text, colour) if text.strip() else text
        lines.append(line)
    return lines


def _height(chart: Chart, value: float | None, most: int) -> int:
    """Return the height of a value in parts of a cell; every one is at least visible."""
    if value is None:
        return 0
    if chart.low == chart.high:
        return max(most // 2, 1)
    # Halved, because the span of all doubles overflows a double.
    scaled = (math.log(x) if chart.is_log else x / 2 for x in (chart.low, chart.high, value))
    low, high, value = scaled
    part = (value - low) / (high - low) if high > low else 0.0
    return max(round(part * most), 1)

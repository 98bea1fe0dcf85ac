"""A training run as lines of text."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.cli.output import Output, printable
from mvc.cli.render.chart import BLOCKS, ODD, PLAIN, chart_of, draw
from mvc.cli.render.text import (
    cell_width,
    columns,
    cut_end,
    cut_middle,
    pad,
    ratio_text,
    seconds_text,
    short_id,
    size_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mvc.runs.view import RunAlarm, RunCommit, RunRollback, RunView

_ENDED = "ended"  # what a run says that ended as it should
_SILENT_FROM_S = 60.0
_LEAST_SUBJECT = 12
_ALL_ROWS = 10
_CHART_ROWS = 6
_MOST_CHART_ROWS = 12
_AROUND = 10  # lines of a frame that are neither curve, commit nor event
_LABEL_WIDTH = 7
_COMMIT_HEADINGS = ("commits", "step", "stall", "write", "new", "of", "queue")
_COMMIT_LEAST = (5, 6, 3)
_COLOURS = {"alarm": "red", "error": "red", "rollback": "yellow", "skip": "yellow"}


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of what happened."""

    time_s: float
    kind: str
    step: int | None
    text: str


def frame_lines(
    out: Output, view: RunView, *, width: int, height: int | None, now_s: float
) -> list[str]:
    """Return a run as lines.

    Args:
        out: where they will be written; says which colours there are.
        view: the run.
        width: columns there are.
        height: lines there are; as many as needed where None.
        now_s: the present, in seconds since 1970.
    """
    happened = _happened(view)
    curve, commits, rows = _shares(height, len(view.commits), len(happened))
    parts = [
        _header_lines(out, view, width, now_s),
        _curve_lines(out, view, width, curve),
        _commit_lines(out, view.commits[:commits], width),
        _happened_lines(out, happened[:rows], width),
    ]
    lines = [line for part in parts if part for line in ("", *part)][1:]
    return lines if height is None else lines[:height]


def _shares(height: int | None, commits: int, rows: int) -> tuple[int, int, int]:
    """Return how many lines the curve, the commits and the events get."""
    if height is None:
        return _CHART_ROWS, min(commits, _ALL_ROWS), min(rows, _ALL_ROWS)
    room = max(height - _AROUND, 3)
    curve = max(room // 3, 1)
    shown = min(commits, max((room - curve) // 2, 1))
    told = min(rows, room - curve - shown)
    shown = min(commits, room - curve - told)
    return min(room - shown - told, _MOST_CHART_ROWS), shown, told


def _header_lines(out: Output, view: RunView, width: int, now_s: float) -> list[str]:
    name = cut_middle(printable(view.branch), max(width // 3, 8))
    step = "no step yet" if view.step is None else f"step {view.step:,}"
    if view.step is not None and view.total:
        step += f" of {view.total:,} ({ratio_text(min(view.step / view.total, 1.0))})"
    sign, text, colour = _state(view, now_s)
    room = width - cell_width(name) - 4
    state = cut_end(f"{sign} {text}", max(room - cell_width(step), 12))
    facts = _joined([step, *_pace(view)], room - cell_width(state))
    facts = facts or cut_end(step, max(room - cell_width(state), 1))
    facts = pad(facts, room - cell_width(state))
    lines = [f"{out.style(name, 'bold')}  {facts}  {out.style(state, colour)}"]
    lines += [
        line for parts in (_measures(view), _origin(view, now_s)) if (line := _joined(parts, width))
    ]
    lines[2:] = [out.style(line, "dim") for line in lines[2:]]
    return lines


def _state(view: RunView, now_s: float) -> tuple[str, str, str]:
    """Return sign, text and colour for whether the run goes on."""
    silent_s = 0.0 if view.updated_s is None else max(now_s - view.updated_s, 0.0)
    if view.stopped is not None:
        reason = printable(view.stopped)
        if reason == _ENDED:
            return "■", _ENDED, "dim"
        return "■", f"stopped: {reason}" if reason else "stopped", "dim"
    if view.alive is False:
        return "■", "its process is gone", "red"
    if silent_s >= _SILENT_FROM_S:
        return "●", f"silent for {seconds_text(silent_s)}", "yellow"
    return "●", "running", "green"


def _pace(view: RunView) -> Iterator[str]:
    if view.steps_per_s is None or view.stopped is not None or view.alive is False:
        return
    speed = view.steps_per_s
    yield f"{speed:.3g} steps/s" if speed >= 1 or not speed else f"{1 / speed:.3g} s/step"
    if view.total and view.step is not None and speed and view.total > view.step:
        yield f"{seconds_text((view.total - view.step) / speed)} left"


def _measures(view: RunView) -> Iterator[str]:
    for name, value in (("loss", view.loss), ("grad norm", view.grad_norm), ("lr", view.lr)):
        if value is not None:
            yield f"{name} {value:.5g}"
    if view.stall_s is not None:
        yield f"stall {_brief(view.stall_s)}"
    if view.queue_depth is not None:
        yield f"queue {view.queue_depth}"
    healthy = next((one.step for one in view.commits if one.is_healthy), None)
    if healthy is not None:
        yield f"healthy {healthy:,}"


def _origin(view: RunView, now_s: float) -> Iterator[str]:
    if view.updated_s is not None:
        yield f"heard of {seconds_text(max(now_s - view.updated_s, 0.0))} ago"
    if view.started_s is not None:
        yield f"started {seconds_text(max(now_s - view.started_s, 0.0))} ago"
    if view.every is not None:
        yield f"a commit every {view.every:,} steps"
    if view.pid is not None:
        yield f"process {view.pid} on {printable(view.host)}"
    if view.damaged_lines:
        yield f"{view.damaged_lines:,} damaged lines"


def _joined(parts: Iterable[str], width: int) -> str:
    """Return as many of the parts as there is room for, the first ones."""
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
    return f"{seconds * 1e3:.2g} ms" if seconds < 0.0995 else f"{seconds * 1e3:.0f} ms"  # noqa: PLR2004  where .2g would write an exponent


def _curve_lines(out: Output, view: RunView, width: int, rows: int) -> list[str]:
    if not view.losses:
        return []
    chart = chart_of(view.losses, width - _LABEL_WIDTH - 1)
    blocks = BLOCKS if _has(out, BLOCKS) else PLAIN
    lines = draw(chart, rows, blocks=blocks, style=out.style)
    labels = [""] * rows
    labels[-1], labels[0] = _label(chart.low), _label(chart.high)
    notes = [f"steps {view.losses[0][0]:,} to {view.losses[-1][0]:,}"]
    notes += ["log scale"] if chart.is_log else []
    notes += [f"{ODD} NaN or infinite"] if any(one.is_odd for one in chart.columns) else []
    heading = f"{out.style('loss', 'bold')}   {out.style(_joined(notes, width - 7), 'dim')}"
    marks = [out.style(pad(label, _LABEL_WIDTH, ">"), "dim") for label in labels]
    return [heading, *(f"{mark} {line}".rstrip() for mark, line in zip(marks, lines, strict=True))]


def _label(value: float | None) -> str:
    if value is None:
        return ""
    texts = (f"{value:.{digits}g}" for digits in (4, 3, 2, 1))
    return next(text for text in texts if len(text) <= _LABEL_WIDTH)


def _has(out: Output, text: str) -> bool:
    """Tell whether a stream's encoding has these signs."""
    try:
        text.encode(getattr(out.stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _commit_lines(out: Output, commits: Sequence[RunCommit], width: int) -> list[str]:
    if not commits:
        return []
    rows = _fitting([_COMMIT_HEADINGS, *map(_commit_cells, commits)], width)
    lines = [out.style("  ".join(rows[0]), "bold")]
    for commit, (name, *cells) in zip(commits, rows[1:], strict=True):
        line = f"{out.style(name, _commit_colour(commit))}  {'  '.join(cells)}"
        room = width - cell_width("  ".join((name, *cells))) - 2
        if commit.subject and (room >= _LEAST_SUBJECT or out.width is None):
            line += f"  {out.style(_cut(out, commit.subject, room), 'dim')}"
        lines.append(line)
    return lines


def _commit_colour(commit: RunCommit) -> str:
    if commit.is_abandoned:
        return "red"
    return "green" if commit.is_healthy else "yellow"


def _cut(out: Output, text: str, width: int) -> str:
    """Return text that fits a terminal; a pipe gets everything."""
    text = printable(text)
    return text if out.width is None else cut_end(text, max(width, 1))


def _fitting(rows: list[tuple[str, ...]], width: int) -> list[list[str]]:
    """Return rows as columns; what matters least is left out where there is not room for all."""
    kept = list(range(len(_COMMIT_HEADINGS)))
    for least in _COMMIT_LEAST:
        cells = columns([[row[at] for at in kept] for row in rows], "<" + ">" * (len(kept) - 1))
        if cell_width("  ".join(cells[0])) <= width:
            break
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


def _happened(view: RunView) -> list[_Row]:
    """Return all that happened, newest first."""
    rows = [
        *(_Row(one.time_s, "rollback", one.step, _rollback_text(one)) for one in view.rollbacks),
        *(_Row(one.time_s, one.kind, one.step, one.text) for one in (*view.events, *view.errors)),
        *(_Row(one.time_s, "alarm", one.step, _alarm_text(one)) for one in view.alarms),
    ]  # what follows from what stands above it where both have one time
    return sorted(rows, key=lambda row: row.time_s, reverse=True)


def _alarm_text(one: RunAlarm) -> str:
    return ": ".join(part for part in (one.cause, one.reason) if part)


def _rollback_text(one: RunRollback) -> str:
    text = f"to step {one.to_step:,}"
    if one.to_commit:
        text += f" ({short_id(one.to_commit)})"
    if one.seconds is not None:
        text += f" in {_brief(one.seconds)}"
    if one.skipped_batches:
        text += f", {one.skipped_batches:,} batches left out"
    if one.diverged_branch:
        text += f", kept on {one.diverged_branch}"
    return f"{text}: {one.reason}" if one.reason else text


def _happened_lines(out: Output, rows: Sequence[_Row], width: int) -> list[str]:
    if not rows:
        return []
    cells = columns(
        [
            (
                time.strftime("%H:%M:%S", time.localtime(row.time_s)),
                "" if row.step is None else f"{row.step:,}",
                printable(row.kind),
            )
            for row in rows
        ],
        "<><",
    )
    lines = [out.style("what happened", "bold")]
    for row, (moment, step, kind) in zip(rows, cells, strict=True):
        head = f"{moment}  {step}  "
        room = width - cell_width(head) - cell_width(kind) - 2
        colour = _COLOURS.get(row.kind)
        shown = out.style(kind, colour) if colour else kind
        lines.append(f"{head}{shown}  {_cut(out, row.text, room)}".rstrip())
    return lines

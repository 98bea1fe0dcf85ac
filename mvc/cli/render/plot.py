"""Metrics along a run as curves of braille dots, or of plain signs where a terminal has no others.

A cell of a chart is 2 x 4 dots. Neighbours of a series are joined; a value that is not finite breaks
the curve and stands as ``!`` on the floor. Several series of one chart have letters at their points
where there are no colours to tell them apart.

plotext was tried for this: importing 6.1 takes 200 ms, more than all of ``mvc log``; 5.3 and 6.1 draw
boxes and braille whatever the terminal can show, label logarithms with numbers that are not round,
and have no chart for very large values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.cli.output import Output, printable
from mvc.cli.render.text import can_show, number_text, short_id
from mvc.errors import UsageError
from mvc.workspace.health import find_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mvc.operations.log import LogEntry


WIDTH = 80
"""Of a chart that is not shown on a terminal."""
HEIGHT = 16
_LEAST_HEIGHT, _LEAST_WIDTH = 6, 24
_COLOURS = ("cyan", "yellow", "green", "bold", "dim")
_LETTER_EVERY = 0.08  # of the width
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BRAILLE = 0x2800
_BROKEN, _DIVERGED = "!", "x"
_X_EVERY, _Y_EVERY = 20, 4  # columns or rows between two labels, about
_LEAST_TICKS = 2
_AXES = ("│┤└─┬", "||+-+")


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A value at a place; ``diverged`` marks one that a rollback abandoned."""

    x: float
    y: float
    diverged: bool = False


@dataclass(frozen=True, slots=True)
class Curve:
    """One curve, from left to right."""

    name: str
    points: Sequence[CurvePoint]


def chart_height(out: Output, charts: int) -> int:
    """Return how many rows each of some charts gets, so that they fit on the screen if they can."""
    if out.width is None:
        return HEIGHT
    return min(
        max((out.height - 1) // charts - len(("title", "axis", "labels")), _LEAST_HEIGHT), 40
    )


def draw(
    out: Output, title: str, x_name: str, series: Sequence[Curve], height: int, *, log_scale: bool
) -> Iterator[str]:
    """Yield the lines of a chart.

    Args:
        out: where it will stand, which says how wide it is and which signs there are.
        title: of the value.
        x_name: what the places are.
        series: curves; at least one value of all is finite, and positive with ``log_scale``.
        height: rows of the chart itself.
        log_scale: whether equal ratios are equal heights.
    """
    is_plain = not can_show(out, chr(_BRAILLE) + _AXES[0])
    scale = math.log10 if log_scale else float
    values = [point.y for curve in series for point in curve.points if is_shown(point.y, log_scale)]
    low, high = scale(min(values)), scale(max(values))
    ticks = (_log_ticks if log_scale else _ticks)(low, high, max(height // _Y_EVERY, _LEAST_TICKS))
    labels = [number_text(_plain(10**tick if log_scale else tick)) for tick in ticks]
    left = max(map(len, [*labels, x_name])) + 1
    width = max((out.width or WIDTH) - left - 1, _LEAST_WIDTH)
    places = [point.x for one in series for point in one.points]
    canvas = _Canvas(width, height, is_plain)
    span_x, span_y = (min(places), max(places)), (low, high)
    has_letters = len(series) > 1 and not out.colour
    for number, one in enumerate(series):
        letter = _LETTERS[number % len(_LETTERS)] if has_letters else ""
        _curve(canvas, one, span_x, span_y, number, letter, log_scale=log_scale)
    yield from _title(out, title, x_name, series, has_letters=has_letters)
    rows = {
        canvas.row_of(_share(tick, span_y)): text for tick, text in zip(ticks, labels, strict=True)
    }
    axis = _AXES[is_plain]
    for row, cells in enumerate(canvas.rows(out)):
        sign = axis[1] if row in rows else axis[0]
        yield f"{rows.get(row, ''):>{left - 1}} {sign}{cells}".rstrip()
    yield from _floor(left, width, span_x, x_name, axis)


def is_shown(value: float, log_scale: bool) -> bool:
    """Return whether a value has a height."""
    return math.isfinite(value) and (not log_scale or value > 0)


def _title(
    out: Output, title: str, x_name: str, series: Sequence[Curve], *, has_letters: bool
) -> Iterator[str]:
    finite = [point for curve in series for point in curve.points if math.isfinite(point.y)]
    least, most = (pick(finite, key=lambda point: point.y) for pick in (min, max))
    facts = ", ".join(
        f"{word} {number_text(point.y)} at {x_name} {number_text(_plain(point.x))}"
        for word, point in (("lowest", least), ("highest", most))
    )
    yield f"{out.style(printable(title), 'bold')}  {facts}"
    if len(series) == 1:
        return
    names = [
        f"{_LETTERS[at % len(_LETTERS)]} {printable(one.name)}"
        if has_letters
        else out.style(printable(one.name), _COLOURS[at % len(_COLOURS)])
        for at, one in enumerate(series)
    ]
    yield "  ".join(names)


def _curve(
    canvas: _Canvas,
    series: Curve,
    span_x: tuple[float, float],
    span_y: tuple[float, float],
    colour: int,
    letter: str,
    *,
    log_scale: bool,
) -> None:
    before: tuple[int, int] | None = None
    next_letter = 0.0
    for point in series.points:
        x = _share(point.x, span_x)
        if not is_shown(point.y, log_scale):
            canvas.mark(x, 0.0, _BROKEN, None)
            before = None
            continue
        y = _share(math.log10(point.y) if log_scale else point.y, span_y)
        dot = canvas.dot(x, y)
        canvas.line(before or dot, dot, colour)
        before = dot
        if point.diverged:
            canvas.mark(x, y, _DIVERGED, None)
        elif letter and x >= next_letter:
            canvas.mark(x, y, letter, colour)
            next_letter = x + _LETTER_EVERY


class _Canvas:
    """Cells with dots, and signs on top of them."""

    def __init__(self, columns: int, rows: int, is_plain: bool) -> None:
        self._columns, self._rows, self._is_plain = columns, rows, is_plain
        self._wide, self._high = (1, 1) if is_plain else (2, 4)
        self._bits = [[0] * columns for _ in range(rows)]
        self._colours: list[list[int | None]] = [[None] * columns for _ in range(rows)]
        self._signs: dict[tuple[int, int], str] = {}

    def dot(self, x: float, y: float) -> tuple[int, int]:
        """Return the dot of a place given in shares of the chart, from below left."""
        wide, high = self._columns * self._wide, self._rows * self._high
        return round(x * (wide - 1)), round((1 - y) * (high - 1))

    def row_of(self, y: float) -> int:
        """Return the row of a height."""
        return self.dot(0.0, y)[1] // self._high

    def line(self, start: tuple[int, int], end: tuple[int, int], colour: int) -> None:
        """Join two dots."""
        steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
        for step in range(steps + 1):
            x, y = (round(a + (b - a) * step / steps) for a, b in zip(start, end, strict=True))
            row, column = y // self._high, x // self._wide
            self._bits[row][column] |= _BITS[y % self._high][x % self._wide]
            self._colours[row][column] = colour

    def mark(self, x: float, y: float, sign: str, colour: int | None) -> None:
        """Put a sign on a place; without a colour it is a warning, which no other sign covers."""
        column, row = self.dot(x, y)
        place = row // self._high, column // self._wide
        if self._signs.get(place) not in (_BROKEN, _DIVERGED):
            self._signs[place] = sign
            self._colours[place[0]][place[1]] = colour

    def rows(self, out: Output) -> Iterator[str]:
        """Yield the rows as text."""
        for row in range(self._rows):
            text = ""
            for column in range(self._columns):
                sign, colour = self._sign(row, column), self._colours[row][column]
                if sign in (_BROKEN, _DIVERGED) and colour is None:
                    sign = out.style(sign, "red")
                elif colour is not None:
                    sign = out.style(sign, _COLOURS[colour % len(_COLOURS)])
                text += sign
            yield text

    def _sign(self, row: int, column: int) -> str:
        bits = self._bits[row][column]
        drawn = " " if not bits else "*" if self._is_plain else chr(_BRAILLE + bits)
        return self._signs.get((row, column), drawn)


def _share(value: float, span: tuple[float, float]) -> float:
    low, high = span
    return (value - low) / (high - low) if high > low else 0.5


def _ticks(low: float, high: float, wanted: int) -> list[float]:
    """Return about ``wanted`` round numbers in a range: 1, 2 or 5 times a power of ten apart."""
    if high - low <= abs(high) * 1e-12:
        return [low]
    power = 10.0 ** math.ceil(math.log10(high - low))
    found: list[float] = []
    for step in (power / 10**at / times for at in range(4) for times in (1, 2, 5)):
        places = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
        found = [float(f"{place * step:.12g}") for place in places]
        if len(found) >= wanted:
            break
    return found


def _log_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Return logarithms of round numbers in a range: powers of ten, or what lies between them."""
    whole = [float(at) for at in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)]
    if len(whole) >= _LEAST_TICKS:
        return whole[:: -(-len(whole) // (3 * wanted))]
    return [math.log10(tick) for tick in _ticks(10**low, 10**high, wanted) if tick > 0]


def _floor(
    left: int, width: int, span: tuple[float, float], x_name: str, axis: str
) -> Iterator[str]:
    """Yield the axis below, and its labels."""
    line, labels = list(axis[3] * width), [" "] * (left + 1 + width)
    end = 0
    for tick in _ticks(*span, width // _X_EVERY):
        column = round(_share(tick, span) * (width - 1))
        text = number_text(_plain(tick))
        start = min(max(left + 1 + column - len(text) // 2, left), len(labels) - len(text))
        if start >= end:
            labels[start : start + len(text)] = text
            line[column], end = axis[4], start + len(text) + 2
    yield f"{'':{left}}{axis[2]}{''.join(line)}"
    yield f"{x_name:>{left - 1}}{''.join(labels[left - 1 :])}".rstrip()


def _plain(value: float) -> float:
    """Return a whole number as int, which is written out."""
    return int(value) if value == int(value) and abs(value) < 1e15 else value  # noqa: PLR2004


def write_curves(
    out: Output,
    entries: Sequence[LogEntry],
    parents: Mapping[str, Sequence[str]],
    metrics: Sequence[str],
    *,
    log_scale: bool,
) -> None:
    """Draw metrics of commits, which come children first; ``parents`` are those to draw."""
    lines = _history_lines(entries, parents)
    has_steps = any(entry.step is not None for entry in entries)
    # A commit's place is its step, or how many commits are older.
    places: dict[str, float] = {
        entry.id: entry.step if entry.step is not None else len(entries) - at
        for at, entry in enumerate(entries)
        if entry.step is not None or not has_steps
    }
    charts = [
        (metric, _metric_curves(lines, places, metric, log_scale=log_scale)) for metric in metrics
    ]
    height = chart_height(out, len(charts))
    for number, (metric, series) in enumerate(charts):
        out.lines([""] if number else [])
        x_name = "step" if has_steps else "commit"
        for text in draw(out, metric, x_name, series, height, log_scale=log_scale):
            out.line(text)


def chosen_metrics(entries: Sequence[LogEntry], asked: Sequence[str]) -> list[str]:
    """Return the metrics to draw: those that were asked for, or else the loss or the first there is."""
    if asked:
        return list(dict.fromkeys(asked))
    known = list(dict.fromkeys(name for entry in entries for name in entry.metrics))
    if not known:
        raise UsageError(
            "no commit shown has a metric", hint='"mvc commit --metric loss=2" adds one'
        )
    return ["loss"] if "loss" in known else known[:1]


def _history_lines(
    entries: Sequence[LogEntry], parents: Mapping[str, Sequence[str]]
) -> list[tuple[str, list[LogEntry]]]:
    """Return (name, commits from the oldest on) of lines of history.

    Each begins with a commit that no line before it has, and ends where it branched off.
    """
    by_id: dict[str, LogEntry] = {entry.id: entry for entry in entries}
    taken: set[str] = set()
    lines: list[tuple[str, list[LogEntry]]] = []
    # HEAD's line first, so that others branch off from it.
    for tip in sorted(entries, key=lambda entry: not any("HEAD" in ref for ref in entry.refs)):
        line: list[LogEntry] = []
        at = str(tip.id)
        while at in by_id and at not in taken:
            taken.add(at)
            line.append(by_id[at])
            at = next(iter(parents.get(at, ())), "")
        if line:
            line += [by_id[at]] if at in by_id else []
            branches = [ref.partition(" -> ")[2] or ref for ref in tip.refs if ref != "HEAD"]
            lines.append(([*branches, short_id(tip.id)][0], line[::-1]))
    return lines


def _metric_curves(
    lines: Sequence[tuple[str, Sequence[LogEntry]]],
    places: Mapping[str, float],
    metric: str,
    *,
    log_scale: bool,
) -> list[Curve]:
    """Return the curves of a metric; UsageError if there is nothing to draw."""
    found = [Curve(name, list(_line_points(line, places, metric))) for name, line in lines]
    found = [one for one in found if one.points]
    values = [point.y for one in found for point in one.points]
    if not values:
        raise UsageError(
            f"no commit shown has the metric {metric!r}", hint='"mvc log" shows metrics'
        )
    if not any(is_shown(value, log_scale) for value in values):
        fact = "finite and above zero" if log_scale else "finite"
        raise UsageError(f"no value of {metric!r} is {fact}")
    # A line with a single point has only the one where it branched off.
    return [one for one in found if len(one.points) > 1] or found


def _line_points(
    line: Sequence[LogEntry], places: Mapping[str, float], metric: str
) -> Iterator[CurvePoint]:
    for entry in line:
        value = find_value(entry.info, metric)
        if value is not None and entry.id in places:
            y = float(value) if abs(value) < 1e300 else math.inf  # noqa: PLR2004  sums of two fit
            yield CurvePoint(
                places[entry.id], math.nan if math.isnan(value) else y, entry.diverged is not None
            )

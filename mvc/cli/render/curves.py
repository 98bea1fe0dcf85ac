"""The commits of a log as curves of their metrics: one chart for each metric, one curve per line."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mvc.cli.render.plot import Point, Series, chart_height, draw, is_shown
from mvc.cli.render.text import short_id
from mvc.errors import UsageError
from mvc.workspace.health import find_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mvc.cli.output import Output
    from mvc.operations.log import LogEntry


def write_curves(
    out: Output,
    entries: Sequence[LogEntry],
    parents: Mapping[str, Sequence[str]],
    metrics: Sequence[str],
    *,
    log_scale: bool,
) -> None:
    """Draw metrics of commits, which come children first; ``parents`` are those to draw."""
    lines = _lines(entries, parents)
    has_steps = any(entry.step is not None for entry in entries)
    places = _places(entries, has_steps=has_steps)
    charts = [(metric, _series(lines, places, metric, log_scale=log_scale)) for metric in metrics]
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


def _places(entries: Sequence[LogEntry], *, has_steps: bool) -> dict[str, float]:
    """Return commit → place: its step, or how many commits are older; without a step it has none."""
    if has_steps:
        return {entry.id: entry.step for entry in entries if entry.step is not None}
    return {entry.id: len(entries) - at for at, entry in enumerate(entries)}


def _lines(
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
            lines.append((_name(tip), line[::-1]))
    return lines


def _name(tip: LogEntry) -> str:
    """Return the branch that a line of commits is on, or the id of its tip."""
    names = [ref.partition(" -> ")[2] or ref for ref in tip.refs if ref != "HEAD"]
    return names[0] if names else short_id(tip.id)


def _series(
    lines: Sequence[tuple[str, Sequence[LogEntry]]],
    places: Mapping[str, float],
    metric: str,
    *,
    log_scale: bool,
) -> list[Series]:
    """Return the curves of a metric; UsageError if there is nothing to draw."""
    found = [Series(name, list(_points(line, places, metric))) for name, line in lines]
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


def _points(line: Sequence[LogEntry], places: Mapping[str, float], metric: str) -> Iterator[Point]:
    for entry in line:
        value = find_value(entry.info, metric)
        if value is not None and entry.id in places:
            y = float(value) if abs(value) < 1e300 else math.inf  # noqa: PLR2004  sums of two fit
            yield Point(
                places[entry.id], math.nan if math.isnan(value) else y, entry.diverged is not None
            )

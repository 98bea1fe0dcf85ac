"""How two models differ in numbers, as rows and as one screen."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from typing import TYPE_CHECKING

from mvc.cli.output import printable
from mvc.cli.render.comparison_rows import ROWS, Row, choose, group_rows, tensor_rows
from mvc.cli.render.text import (
    bars,
    cell_width,
    columns,
    count_text,
    cut_middle,
    pad,
    ratio_text,
    short_id,
)
from mvc.comparison.kinds import find_kind, find_layer
from mvc.comparison.pairs import STATUSES
from mvc.comparison.rollup import by_kind, by_layer, sum_up
from mvc.ids import is_git_id
from mvc.tensor_names import natural_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mvc.cli.output import Output
    from mvc.cli.render.comparison_rows import View
    from mvc.comparison.pairs import TensorChange
    from mvc.numbers.spectral import Spectrum
    from mvc.numbers.statistics import TensorStatistics
    from mvc.operations.compare import ModelDiff

_LEAST_SHARE = 1e-4
_LEAST_ROWS = 8
_ROWS_OF_TWO = 15
_OTHER_LINES = 4
_MOST_TREND = 24
_MOST_NAME = 80
_WIDE = 100
_ANY_WIDTH = 10_000
_VERDICT_STYLES = {"bad": ("red",), "warning": ("yellow",), "good": ("green",)}

_NARROW = ("sigma", "rel_L2", "cosine", "changed", "max_diff")
_GIVES_WAY = ("max_diff", "changed", "cosine")  # to names, the first of them first
_SORTED = {
    "l2": ("rel_L2",),
    "max": ("max_diff",),
    "ulp": ("ulp50", "ulp99"),
    "norm": ("norm_old", "norm_new"),
}  # the columns of a key that has another name


def write_comparison(out: Output, diff: ModelDiff, view: View) -> None:
    """Write a comparison: one screen on a terminal, all rows elsewhere or if they are asked for."""
    head = list(_head_lines(out, diff, everything=view.everything))
    if out.width is None:
        out.lines(f"# {line}" for line in head)
    else:
        out.lines(head)
    if out.width is not None and view.by is None and not view.everything:
        out.lines(_screen_lines(out, diff, view, len(head)))
        return
    by = view.by or "tensor"
    rows = choose(ROWS[by](diff, view), view, view.sort or "name")
    if rows:
        out.lines(_table(out, [Row(by, is_heading=True), *rows], view.sort))


def _head_lines(out: Output, diff: ModelDiff, *, everything: bool) -> Iterator[str]:
    """Yield what was compared and what it amounts to."""
    labels = [
        short_id(side.label) if is_git_id(side.label) else printable(side.label)
        for side in (diff.old, diff.new)
    ]
    if out.width is not None:
        labels = [cut_middle(label, (out.width - len(" -> ")) // 2) for label in labels]
    yield out.style(" -> ".join(labels), "bold")
    yield from _verdict_lines(out, diff, everything=everything)
    total, found = diff.total, diff.total.statistics
    counts = Counter(change.status for change in diff.changes)
    words = [f"{counts[status]:,} {status}" for status in STATUSES if counts[status]]
    yield f"{count_text(total.tensors, 'tensor')}: {', '.join(words) or 'none'}"
    if found is not None and found.changed:
        share = _share_text(found.changed / total.elements).replace("%", " %")
        yield f"{share} of {count_text(total.elements, 'element')} changed"
        yield (
            f"changed tensors: sigma {_figure(found.sigma)}, relative L2 "
            f"{_figure(found.relative_l2)}, cosine {_figure(found.cosine, '.6f')}"
        )


def _verdict_lines(out: Output, diff: ModelDiff, *, everything: bool) -> Iterator[str]:
    """Yield what the comparison means; on a terminal as much as leaves room for figures."""
    room = math.inf if out.width is None or everything else max(out.height // 4, 4)
    for place, verdict in enumerate(diff.verdicts):
        lines = textwrap.wrap(
            f"* {printable(verdict.text)}", out.width or _ANY_WIDTH, subsequent_indent="  "
        )
        room -= len(lines)
        if room < 0:
            yield f"  and {len(diff.verdicts) - place} more: --all"
            return
        styles = _VERDICT_STYLES.get(verdict.level, ())
        yield from (out.style(line, *styles) for line in lines)


def _screen_lines(out: Output, diff: ModelDiff, view: View, used: int) -> Iterator[str]:
    """Yield as many rows as fit: all tensors, or kinds and what changed most."""
    # A line less than there are: a pager that gets as many waits for more.
    sort, room = view.sort or "sigma", max(out.height - used - _OTHER_LINES, _LEAST_ROWS)
    tensors = choose(tensor_rows(diff), view, sort)
    sections = [("tensor", tensors)]
    if len(tensors) >= room:
        kinds = choose(group_rows(by_kind(diff.changes), _find_trends(out, diff)), view, sort)
        layers = choose(group_rows(by_layer(diff.changes)), view, sort)
        named = [("kind", kinds), ("module", layers), ("tensor", tensors)]
        if any(row.spectrum for row in tensors):  # which groups do not have
            del named[1]
        sections = [(name, rows) for name, rows in named if len(rows) > 1]
        has_moved = diff.total.statistics is not None and diff.total.statistics.changed > 0
        del sections[1 if not has_moved else 2 if room < _ROWS_OF_TWO else 3 :]
    lines: list[Row] = []
    for number, (name, rows) in enumerate(sections):
        left = room - len(lines)
        shown = rows[: max((left // 2 if sections[number + 1 :] else left) - 1, 2)]
        title = name if len(shown) == len(rows) else f"{name} ({len(shown):,} of {len(rows):,})"
        lines += [Row(title, is_heading=True), *shown]
    if tensors:
        yield from ("", *_table(out, lines, view.sort))
    if any(line.is_heading and line.name.endswith(")") for line in lines):
        yield out.style('"--by tensor" lists every tensor, "--by module" every module', "dim")


def _find_trends(out: Output, diff: ModelDiff) -> dict[str, str]:
    """Return kind → a bar of sigma for each layer, from the first to the last."""
    places: dict[str, dict[str, list[TensorChange]]] = {}
    for change in diff.changes:
        layer = find_layer(change.name)
        if layer is not None:
            kind = find_kind(change.name, change.pair.shown.view.shape)
            places.setdefault(kind, {}).setdefault(layer, []).append(change)
    return {kind: _trend(layers, bars(out)) for kind, layers in places.items() if len(layers) > 1}


def _trend(layers: Mapping[str, Sequence[TensorChange]], signs: str) -> str:
    names, width = sorted(layers, key=natural_key), min(len(layers), _MOST_TREND)
    joined: list[list[TensorChange]] = [[] for _ in range(width)]
    for number, name in enumerate(names):
        joined[number * width // len(names)] += layers[name]
    groups = [sum_up(changes).statistics for changes in joined]
    sigmas = [0.0 if group is None else group.sigma or 0.0 for group in groups]
    top, last = max(sigmas), len(signs) - 1
    return "".join(signs[math.ceil(sigma / top * last) if top else 0] for sigma in sigmas)


def _figure(value: float | None, form: str = ".3g") -> str:
    return "-" if value is None else format(value, form)


def _share_text(share: float) -> str:
    """Return a share without a space, so that columns can be cut at them."""
    if not share:
        return "0%"
    return "<0.01%" if share < _LEAST_SHARE else ratio_text(share).replace(" ", "")


_FIGURE_COLUMNS: dict[str, Callable[[TensorStatistics], str]] = {
    "sigma": lambda one: _figure(one.sigma),
    "rel_L2": lambda one: _figure(one.relative_l2),
    "cosine": lambda one: _figure(one.cosine, ".6f"),
    "changed": lambda one: _share_text(one.share_changed),
    "max_diff": lambda one: _figure(one.largest),
    "ulp50": lambda one: _figure(one.ulp_50, "d"),
    "ulp99": lambda one: _figure(one.ulp_99, "d"),
    "ulp_max": lambda one: _figure(one.ulp_max, "d"),
    "norm_old": lambda one: _figure(one.norm_old),
    "norm_new": lambda one: _figure(one.norm_new),
}
_SPECTRAL_COLUMNS: dict[str, Callable[[Spectrum], str]] = {
    "sigma_1": lambda one: _figure(one.largest),
    "st.rank": lambda one: _figure(one.stable_rank),
    "rank90": lambda one: _rank(one, 0.9),
    "rank99": lambda one: _rank(one, 0.99),
}
_NARROW_SPECTRAL = ("sigma", "changed", *_SPECTRAL_COLUMNS)


def _table(out: Output, rows: Sequence[Row], sort: str | None) -> Iterator[str]:
    """Yield rows of equal columns: all of them in a pipe, on a terminal as many as fit beside names."""
    is_wide = out.width is None or out.width >= _WIDE
    if any(row.spectrum for row in rows):
        names = _NARROW_SPECTRAL if out.width else (*_FIGURE_COLUMNS, *_SPECTRAL_COLUMNS)
    else:
        names = _NARROW if out.width else tuple(_FIGURE_COLUMNS)
    wanted = _SORTED.get(sort or "", (sort,))
    names += tuple(one for one in wanted if one in _FIGURE_COLUMNS and one not in names)
    has_groups = any(row.tensors for row in rows)
    has_end = is_wide and any(row.note or row.trend for row in rows)

    def fill(names: Sequence[str]) -> list[list[str]]:
        return [
            [
                printable(row.name),
                *([row.tensors or ("" if number else "tensors")] if has_groups else []),
                *(_figures(row, names, out) if number else names),
                *([row.note or row.trend] if has_end else []),
            ]
            for number, row in enumerate(rows)
        ]

    cells = fill(names)
    for name in _GIVES_WAY:
        widths = (max(map(cell_width, column)) for column in zip(*cells, strict=True))
        if out.width and name not in wanted and sum(width + 2 for width in widths) - 2 > out.width:
            names = tuple(one for one in names if one != name)
            cells = fill(names)
    aligns = "<" + ">" * (len(names) + has_groups) + "<" * has_end
    if out.width is None:  # names stay whole, and one that is very long moves no other row
        longest = min(max(cell_width(first) for first, *_ in cells), _MOST_NAME)
        lines = columns([rest for _, *rest in cells], aligns[1:])
        lines = [[pad(cell[0], longest), *line] for cell, line in zip(cells, lines, strict=True)]
    else:
        width = out.width - (len(aligns) - 1) * len("  ")
        lines = columns(cells, aligns, width=width)
    for row, line in zip(rows, lines, strict=True):
        text = "  ".join(line).rstrip()
        style = ["bold"] if row.is_heading else ["red"] if row.is_sick else []
        yield out.style(text, *style) if style else text


def _figures(row: Row, names: Sequence[str], out: Output) -> list[str]:
    if row.is_heading:
        return [""] * len(names)
    values, spectrum = row.statistics, row.spectrum
    if values is None:
        # A column of a pipe holds figures only; on a terminal there may be no room for the note.
        return [row.state if out.width is not None and row.state else "-", *"-" * (len(names) - 1)]
    return [
        _FIGURE_COLUMNS[name](values)
        if name in _FIGURE_COLUMNS
        else "-"
        if spectrum is None
        else _SPECTRAL_COLUMNS[name](spectrum)
        for name in names
    ]


def _rank(spectrum: Spectrum, share: float) -> str:
    rank = spectrum.find_rank(share)
    return f">{len(spectrum.values)}" if rank is None else str(rank)

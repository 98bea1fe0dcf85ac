"""Who last changed each tensor, as text and as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.cli.output import Output, pick, printable
from mvc.cli.render.rollup import fold
from mvc.cli.render.text import (
    can_show,
    cell_width,
    columns,
    cut_end,
    cut_middle,
    iso_date,
    pad,
    ratio_text,
    short_id,
)
from mvc.numbers.statistics import join
from mvc.tensor_names import in_layer_order
from mvc.workspace.trailers import read_annotations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.history.values import CommitInfo
    from mvc.ids import GitId
    from mvc.operations.blame import Blame, DriftPoint, TensorBlame

_LEVELS = ("▁▂▃▄▅▆▇█", "._-=+*%#")
_MARKS = ("·•", "'o")  # not compared: as before, and another version
_NOT_FINITE = "!"
_NARROW = 100
_DATE, _AUTHOR, _NAME = 2, 3, 6  # places of cells
_SUBJECT, _LEAST = 18, 8
_LEAST_NAME = 24
_OTHER_LINES = 3
_DAY = len("2026-11-20")


@dataclass(frozen=True, slots=True)
class _Row:
    """One line: a tensor, or several with one commit to blame."""

    name: str
    commit: GitId
    tensors: Sequence[TensorBlame]

    @property
    def drift(self) -> list[DriftPoint | None]:
        """The points of one tensor, or those of all joined."""
        return [
            _join(points) for points in zip(*(tensor.drift for tensor in self.tensors), strict=True)
        ]


def _join(points: Sequence[DriftPoint | None]) -> DriftPoint | None:
    """Return several tensors at one commit as one; those that never changed add nothing."""
    there = [point for point in points if point is not None]
    if not there:
        return None
    moved = [point for point in there if not point.is_first]
    known = [point.statistics for point in moved if point.statistics is not None]
    return type(there[0])(
        changed=any(point.changed for point in there),
        statistics=join(known) if moved and len(known) == len(moved) else None,
        is_first=not moved,
    )


def blame_fields(found: Blame, by: str) -> dict[str, object]:
    """Return everything for ``--json``."""
    rows = _rows(found, by, None)
    named = {commit: _commit_fields(info) for commit, info in found.commits.items()}
    head = {"commit": found.commit, "commits": named, "samples": found.samples}
    if by == "module":
        modules = [
            {"name": row.name, "tensors": len(row.tensors), "commit": row.commit, **_drift(row)}
            for row in rows
        ]
        return {**head, "modules": modules}
    tensors = [
        {**pick(row.tensors[0], "path name dtype shape id commit since versions"), **_drift(row)}
        for row in rows
    ]
    return {**head, "tensors": tensors}


def _commit_fields(info: CommitInfo) -> dict[str, object]:
    return {
        "author": f"{info.author.name} <{info.author.email}>",
        "date": iso_date(info.author_time_s, info.author_timezone_s),
        "step": read_annotations(info).step,
        "subject": info.subject,
    }


def _drift(row: _Row) -> dict[str, object]:
    return {
        "drift": [None if point is None else point.distance for point in row.drift],
        "changed": [point is not None and point.changed for point in row.drift],
    }


def write_blame(out: Output, found: Blame, by: str, *, everything: bool) -> None:
    """Write one line per tensor or module, folded until they fit on a terminal."""
    room = None if out.width is None or everything else max(out.height - _OTHER_LINES, 1)
    rows = _rows(found, by, room)
    is_plain = not can_show(out, _LEVELS[0] + _MARKS[0])
    is_narrow = out.width is not None and out.width < _NARROW
    cells = [_cells(found.commits[row.commit], row, is_plain, is_narrow) for row in rows]
    for commit, rest in _lines(cells, out.width):
        out.line(out.style(commit, "yellow") + rest)
    if out.width is not None and any(
        any(point is not None and point.distance is None for point in row.drift) for row in rows
    ):
        out.line(out.style('("mvc blame --stats" compares what the dots stand for)', "dim"))


def _rows(found: Blame, by: str, room: int | None) -> list[_Row]:
    several = len({one.path for one in found.tensors}) > 1

    def name_of(one: TensorBlame) -> str:
        return f"{one.path}:{one.name}" if several else one.name

    ordered = in_layer_order(found.tensors, name_of)
    if by == "module":
        modules: dict[str, list[TensorBlame]] = {}
        for one in ordered:
            modules.setdefault(name_of(one).rpartition(".")[0] or name_of(one), []).append(one)
        rows = []
        for name, tensors in modules.items():
            named = {tensor.commit for tensor in tensors}
            latest = next(commit for commit in found.commits if commit in named)
            rows.append(_Row(name, latest, tensors))
        if room is None or len(rows) <= room:
            return rows
        return [
            _Row(name, some[0].commit, [one for row in some for one in row.tensors])
            for name, some in fold(rows, room, lambda row: row.name, lambda row: row.commit)
        ]
    if room is None or len(ordered) <= room:
        return [_Row(name_of(one), one.commit, [one]) for one in ordered]
    groups = fold(ordered, room, name_of, lambda one: one.commit)
    return [_Row(name, some[0].commit, some) for name, some in groups]


def _cells(info: CommitInfo, row: _Row, is_plain: bool, is_narrow: bool) -> list[str]:
    drift = row.drift[:: -2 if is_narrow else -1][::-1]  # the last one stays
    step = read_annotations(info).step
    distance = None if drift[-1] is None else drift[-1].distance
    percent = ""
    if distance is not None:
        percent = ratio_text(distance) if math.isfinite(distance) else "NaN"
        percent = "0 %" if distance == 0 else percent
    count = "" if len(row.tensors) == 1 else f" ({len(row.tensors):,})"
    return [
        short_id(info.id),
        "" if step is None else f"{step:,}",
        iso_date(info.author_time_s, info.author_timezone_s)[:_DAY],
        printable(info.author.name),
        sparkline(drift, is_plain=is_plain),
        percent,
        printable(row.name) + count,
        printable(info.subject),
    ]


def sparkline(drift: Sequence[DriftPoint | None], *, is_plain: bool = False) -> str:
    """Return one sign per point: a height for a distance, a mark where it is not known."""
    levels, marks = _LEVELS[is_plain], _MARKS[is_plain]
    known = [point.distance for point in drift if point is not None]
    top = max((one for one in known if one is not None and math.isfinite(one)), default=0.0)
    text = ""
    for point in drift:
        if point is None:
            text += " "
        elif point.distance is None:
            text += marks[point.changed]
        elif not math.isfinite(point.distance):
            text += _NOT_FINITE
        else:
            share = min(point.distance / top, 1.0) if top else 0.0
            text += levels[round(share * (len(levels) - 1))]
    return text


def _lines(cells: Sequence[Sequence[str]], width: int | None) -> list[tuple[str, str]]:
    """Return (id, rest) of lines; where there is no room, who and when are left out, then why."""
    names = [row[_NAME] for row in cells]
    name_width, kept = max(map(cell_width, names)), list(range(_NAME))
    table = columns([row[:_NAME] for row in cells], "<><<<>")
    for dropped in (_AUTHOR, _DATE):
        if (
            width is None
            or _taken(table[0], kept) + min(name_width, _LEAST_NAME) <= width - _SUBJECT
        ):
            break
        kept.remove(dropped)
    room = math.inf if width is None else width - _taken(table[0], kept)
    if name_width > room - _SUBJECT:
        has_subject = room - _LEAST_NAME >= _SUBJECT
        name_width = min(name_width, int(room - _SUBJECT * has_subject))
    lines: list[tuple[str, str]] = []
    for row, whole in zip(table, cells, strict=True):
        name = pad(cut_middle(whole[_NAME], name_width), name_width)
        text = "  ".join(["", *(row[at] for at in kept[1:]), name])
        left = room - name_width - 2
        subject = whole[-1] if width is None else cut_end(whole[-1], int(left)) * (left > _LEAST)
        lines.append((row[0], f"{text}  {subject}".rstrip()))
    return lines


def _taken(row: Sequence[str], kept: Sequence[int]) -> int:
    """Return the columns that some cells take, with the space after each."""
    return sum(cell_width(row[at]) + 2 for at in kept)

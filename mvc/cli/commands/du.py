"""Show what branches, commits, files and tensors cost."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mvc.cli.options import JSON, check_limit
from mvc.cli.output import Output, Shown, pick, printable
from mvc.cli.parameters import CommandUsageError, arguments, integer, string
from mvc.cli.render.text import (
    cell_width,
    columns,
    count_text,
    cut_end,
    cut_middle,
    pad,
    ratio_text,
    short_id,
    size_text,
    table_lines,
)
from mvc.cli.session import is_revision, open_repo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mvc.operations.du import DuEntry, DuReport, DuTotals

_LISTS = {
    "branches": "branch", "tags": "tag", "commits": "commit", "files": "file", "tensors": "tensor",
}  # fmt: skip
_PLACES = {
    "branch": "name commit", "tag": "name commit", "commit": "commit subject", "file": "path",
    "tensor": "path tensor=name", "selection": "name",
}  # fmt: skip
_SUMMARY = ("branch", "tag", "commit", "file")
_SUMMARY_ROWS = 10
_HEADINGS = ("alone", "shared", "raw", "ratio")
_LEAST_PATH = 8
_BETWEEN = "(bytes between tensors)"


def du(
    revisions: list[str] = arguments("[REV | A..B]..."),
    by: str | None = string("--by KIND", "Print one full list: branch, tag, commit, file, tensor."),
    limit: int | None = integer("-n, --limit N", "Show at most N per list; -N is short for it."),
    shown: Shown = JSON,
) -> None:
    """Show what branches, commits, tags, files and tensors cost in the store.

    alone: what would be free if only this one were gone, by prune, tag -d or branch -D, once gc
    has run and the reflogs have expired. shared: what it needs and others need too. raw: the size
    of its file versions as plain files. ratio: alone plus shared, relative to raw. With a revision,
    only that commit counts; A..B means the commits of B that A does not have.
    """
    check_limit(limit)
    repo = open_repo()
    for name in revisions:
        if os.path.lexists(name) and not is_revision(repo, name):
            raise CommandUsageError(f"{name!r} is a path: --by file lists files")
    report = repo.upkeep.du(*revisions, by=_SUMMARY if by is None else (by,))
    shown.page(lambda: _report_fields(report, by, limit), _write_report, report, by, limit)


def _write_report(out: Output, report: DuReport, by: str | None, limit: int | None) -> None:
    if report.selection is not None:
        out.lines(_selection_lines(out, report.selection))
    elif by is None:
        out.lines(_totals_lines(out, report.totals))
    rows = limit if limit is not None else _SUMMARY_ROWS if by is None else None
    lists = [entries for name in _LISTS if (entries := getattr(report, name))]
    for number, lines in enumerate(_list_lines(out, lists, rows)):
        if number or by is None:
            out.line()
        out.lines(lines)


def _report_fields(report: DuReport, by: str | None, limit: int | None) -> dict[str, object]:
    chosen = report.selection
    wanted = _SUMMARY if by is None else (by,)
    return {
        "totals": pick(
            report.totals,
            "raw=raw_bytes stored=needed_bytes ratio versions commits packs pack_bytes index_bytes "
            "object_bytes statistics_bytes base_bytes reflog_bytes unneeded_bytes",
        ),
        "selection": None if chosen is None else _entry_fields(chosen),
        **{
            name: [_entry_fields(one) for one in getattr(report, name)[:limit]]
            for name, kind in _LISTS.items()
            if kind in wanted
        },
    }


def _entry_fields(one: DuEntry) -> dict[str, object]:
    sizes = "raw=raw_bytes alone=alone_bytes shared=shared_bytes ratio versions"
    fields = pick(one, f"{_PLACES[one.kind]} {sizes}")
    if one.kind == "tensor":
        fields["tensor"] = one.name or None  # bytes between tensors have no name
    return fields


def _totals_lines(out: Output, totals: DuTotals) -> Iterator[str]:
    versions = count_text(totals.versions, "file version")
    commits = count_text(totals.commits, "commit")
    stored = f"in {count_text(totals.packs, 'pack')}"
    if totals.ratio is not None:
        stored += f"; {ratio_text(totals.ratio)} of raw is needed"
    rows = [
        ("raw", totals.raw_bytes, f"{versions} of {commits} as plain files"),
        ("stored", totals.pack_bytes, stored),
        ("indexes", totals.index_bytes, "of the packs"),
        ("objects", totals.object_bytes, "of Git: commits, manifests, small files"),
        ("statistics", totals.statistics_bytes, "computed by comparisons; may be deleted"),
        ("bases", totals.base_bytes, "kept only because others are stored as differences from it"),
        ("reflogs", totals.reflog_bytes, "kept only until its reflog entries expire"),
        ("unneeded", totals.unneeded_bytes, 'freed by "mvc gc" once it is old enough'),
    ]
    always = ("raw", "stored", "indexes", "objects")
    return _size_lines(out, [row for row in rows if row[1] or row[0] in always])


def _selection_lines(out: Output, one: DuEntry) -> Iterator[str]:
    ratio = "" if one.ratio is None else f"; {ratio_text(one.ratio)} of that in the store"
    rows = [
        ("raw", one.raw_bytes, f"{count_text(one.versions, 'file version')} as plain files{ratio}"),
        ("alone", one.alone_bytes, "free if all of this were released"),
        ("shared", one.shared_bytes, "needed by others too"),
    ]
    return _size_lines(out, rows)


def _size_lines(out: Output, rows: Sequence[tuple[str, int, str]]) -> Iterator[str]:
    cells = [((name, "bold"), size_text(size), (text, "dim")) for name, size, text in rows]
    return table_lines(out, cells, "<><")


def _list_lines(
    out: Output, lists: Sequence[Sequence[DuEntry]], limit: int | None
) -> Iterator[list[str]]:
    """Yield the lines of each list; the numbers of all lists are aligned."""
    rows = [cells for entries in lists for cells in (_HEADINGS, *map(_numbers, entries[:limit]))]
    numbers = ("  ".join(cells) for cells in columns(rows, ">>>>"))
    for entries in lists:
        kind, heading = entries[0].kind, next(numbers)
        width = None if out.width is None else max(out.width - cell_width(heading) - 2, 12)
        lines = [out.style(f"{heading}  {kind}", "bold")]
        lines += [f"{next(numbers)}  {_name(out, entry, width)}" for entry in entries[:limit]]
        more = len(entries) - len(entries[:limit])
        if more:
            text = f"and {more:,} more"
            hint = f'; "mvc du --by {kind}" lists all' if limit == _SUMMARY_ROWS else ""
            lines.append(out.style(f"{pad('', cell_width(heading))}  {text}{hint}", "dim"))
        yield lines


def _numbers(one: DuEntry) -> tuple[str, ...]:
    ratio = "" if one.ratio is None else ratio_text(one.ratio)
    sizes = (one.alone_bytes, one.shared_bytes, one.raw_bytes)
    return (*map(size_text, sizes), ratio)


def _name(out: Output, one: DuEntry, width: int | None) -> str:
    if one.kind == "commit":
        short = short_id(one.commit)
        subject = printable(one.subject)
        if width is not None:
            subject = cut_end(subject, max(width - len(short) - 1, 1))
        return f"{out.style(short, 'yellow')} {subject}".rstrip()
    if one.kind == "tensor":
        return _tensor_name(out, one, width)
    name = printable(one.name)
    return name if width is None else cut_middle(name, width)


def _tensor_name(out: Output, one: DuEntry, width: int | None) -> str:
    """Return name and path, or the name alone if there is no room for both."""
    name, path = printable(one.name) or _BETWEEN, printable(one.path or "")
    if width is None:
        return f"{name}  {path}"
    name = cut_middle(name, width)
    room = width - cell_width(name) - 2
    return f"{name}  {out.style(cut_middle(path, room), 'dim')}" if room >= _LEAST_PATH else name

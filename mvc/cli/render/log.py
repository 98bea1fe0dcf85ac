"""Commits as text and as JSON: in full, a line each, or the health of their weights."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from mvc.cli.output import Output, pick, printable
from mvc.cli.render.text import (
    SHORT_ID,
    cell_width,
    count_text,
    cut_end,
    git_date,
    iso_date,
    number_text,
    short_id,
    table_lines,
    utc_date,
)
from mvc.workspace.health import overall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mvc.cli.render.graph import GraphRows
    from mvc.operations.log import LogEntry
    from mvc.workspace.verdicts import Divergence

    Parents = Mapping[str, Sequence[str]] | None
    Below = Callable[[LogEntry], Sequence[str]] | None
    from collections.abc import Mapping, Sequence

    from mvc.ids import GitId
    from mvc.workspace.health import CheckpointHealth


_LEAST_SUBJECT = 40
_LEAST_CUT = 10
_REASON_WIDTH = 40
_HEALTHY = "healthy"
_SHOWN_ABOVE = frozenset(
    {"Step", "Metric", "Meta", "Health", "Gate", "Replica-Check", "Replica-Dispute"}
)

_HEALTH_HEAD = ("commit", "step", "nan", "inf", "max", "norm", "change", "", "subject")
_JUMP = 2.0
"""By what factor a norm has to change, up or down, to be marked."""
_MANY = 10.0


def entry_fields(entry: LogEntry) -> dict[str, object]:
    """Return one commit for ``--json``."""
    info, facts, release = entry.info, entry.annotations, entry.released
    diverged, agreement = entry.diverged, entry.agreement
    return {
        **pick(info, "commit=id parents"),
        "author": f"{info.author.name} <{info.author.email}>",
        "date": iso_date(info.author_time_s, info.author_timezone_s),
        **pick(entry, "subject=info.subject step"),
        "metrics": dict(facts.metrics or {}),
        "meta": dict(facts.meta or {}),
        "refs": entry.refs,
        "released": release
        and {"policy": release.policy, "time": utc_date(release.time_s), "files": release.paths},
        "healthy": entry.is_healthy,
        "diverged": diverged
        and {
            **pick(diverged, "reason branch target target_step at_step"),
            "branch": diverged.branch or None,
            "time": utc_date(diverged.time_s),
        },
        **pick(entry, "health(path nan inf largest norm saturated) failed_gates"),
        "replicas": agreement
        and pick(agreement, "agreed chunks differed disputes(path tensor chunk stored checked)"),
    }


def _ref_names(entry: LogEntry, width: int | None = None) -> list[str]:
    """Return the names of a commit, or as many of them as fit and ``…``."""
    names = [*map(printable, entry.refs), *([_HEALTHY] if entry.is_healthy else [])]
    most = len(names)
    while width is not None and most > 1 and cell_width(", ".join(names)) > width:
        most -= 1
        names = [*names[:most], "…"]
    return names


def _refs_text(out: Output, entry: LogEntry, names: Sequence[str]) -> str:
    """Return ``(HEAD -> main, tag: v1, healthy)`` in Git's colours, or nothing."""
    if not names:
        return ""
    styled = [_ref(out, name) for name in names]
    if entry.is_healthy and names[-1] == _HEALTHY:
        styled[-1] = out.style(_HEALTHY, "green")
    comma = out.style(", ", "yellow")
    return out.style("(", "yellow") + comma.join(styled) + out.style(")", "yellow")


def _ref(out: Output, ref: str) -> str:
    head, arrow, branch = ref.partition(" -> ")
    if arrow:
        return out.style(head + arrow, "cyan", "bold") + out.style(branch, "green", "bold")
    if head == "HEAD":
        return out.style(head, "cyan", "bold")
    return out.style(head, "yellow" if head.startswith(("tag: ", "@")) else "green", "bold")


def write_full(
    out: Output, entries: Sequence[LogEntry], parents: Parents, below: Below = None
) -> None:
    """Write commits as ``git log`` does, with the step and metrics in the header.

    ``below`` returns more lines for a commit.
    """
    draw = _drawing(parents)
    for number, entry in enumerate(entries):
        lines = list(_full_lines(out, entry))
        more = () if below is None else below(entry)
        lines += ["", *more] if more else []
        if draw is not None:
            rows = draw(entry)
            last = number == len(entries) - 1
            lines = list(_drawn(rows, lines if last else [*lines, ""]))
        elif number:
            out.line()
        out.lines(lines)


def _full_lines(out: Output, entry: LogEntry) -> Iterator[str]:
    info, facts = entry.info, entry.annotations
    refs = _refs_text(out, entry, _ref_names(entry))
    yield out.style(f"commit {info.id}", "yellow") + (f" {refs}" if refs else "")
    if len(info.parents) > 1:
        yield "Merge:   " + " ".join(map(short_id, info.parents))
    yield f"Author:  {printable(info.author.name)} <{printable(info.author.email)}>"
    yield f"Date:    {git_date(info.author_time_s, info.author_timezone_s)}"
    if entry.released is not None:
        files = count_text(len(entry.released.paths), "file")
        day = iso_date(entry.released.time_s, 0)[: len("2026-11-20")]
        text = f"{files} released on {day} by {printable(entry.released.policy)}"
        yield f"Content: {out.style(text, 'dim')}"
    if entry.diverged is not None:
        yield f"Diverged: {out.style(_diverged_text(entry.diverged), 'red')}"
    if facts.step is not None:
        yield f"Step:    {facts.step:,}"
    if facts.metrics:
        cells = (f"{printable(name)} {number_text(value)}" for name, value in facts.metrics.items())
        yield "Metrics: " + ", ".join(cells)
    for name, text in (facts.meta or {}).items():
        yield f"Meta:    {printable(name)} = {printable(text)}"
    yield from _health_lines(out, entry)
    yield ""
    body = ["", *info.body.split("\n")] if info.body else []
    others = [f"{key}: {text}" for key, text in info.trailers if key not in _SHOWN_ABOVE]
    for line in [info.subject, *body, *([""] if others else []), *others]:
        yield f"    {printable(line.expandtabs())}".rstrip()


def _health_lines(out: Output, entry: LogEntry) -> Iterator[str]:
    for one in entry.health:
        if one.nan or one.inf:
            what = f"{printable(one.path)} holds {one.nan:,} NaN, {one.inf:,} infinite"
            yield f"Health:  {out.style(what, 'red')}"
    for reason in entry.failed_gates:
        yield f"Gate:    {out.style(f'failed {printable(reason)}', 'red')}"
    agreement = entry.agreement
    if agreement is not None and agreement.differed:
        yield f"Replicas: {out.style(printable(str(agreement)), 'red')}"
    elif agreement is not None:
        yield f"Replicas: {agreement}"


def _diverged_text(diverged: Divergence) -> str:
    seen = "" if diverged.at_step is None else f"at step {diverged.at_step:,}"
    cause = ", ".join(part for part in (printable(diverged.reason), seen) if part)
    if diverged.target is None:
        return cause or "abandoned"
    step = "" if diverged.target_step is None else f" (step {diverged.target_step:,})"
    branch = printable(diverged.branch) or "the branch"
    went = f"{branch} went back to {short_id(diverged.target)}{step}"
    return f"{cause}; {went}" if cause else went


def _marks(entry: LogEntry, width: int | None) -> list[tuple[str, str]]:
    """Return the marks before the subject of a line: (text, colour)."""
    marks: list[tuple[str, str]] = []
    if entry.failed_gates:
        gates = (reason.partition(":")[0] for reason in entry.failed_gates)
        marks.append((f"[gate: {printable(', '.join(dict.fromkeys(gates)))}]", "red"))
    if entry.agreement is not None and entry.agreement.differed:
        marks.append(("[replicas differ]", "red"))
    if entry.released is not None:
        marks.append(("[model only]" if entry.released.keeps_model else "[released]", "dim"))
    if entry.diverged is not None:
        reason = printable(entry.diverged.reason)
        if width is not None:
            reason = cut_end(reason, _REASON_WIDTH)
        marks.append((f"[diverged: {reason}]" if reason else "[diverged]", "red"))
    return marks


def _drawing(parents: Parents) -> Callable[[LogEntry], GraphRows] | None:
    """Return what draws one commit after the other, or None without a graph."""
    if parents is None:
        return None
    from mvc.cli.render.graph import Graph

    graph = Graph()
    return lambda entry: graph.step(entry.info.id, parents[entry.info.id])


def _drawn(rows: GraphRows, lines: Sequence[str]) -> Iterator[str]:
    """Put the graph's rows to the left of their commit's lines."""
    drawing = [rows.commit, *rows.below]
    for number in range(max(len(lines), len(drawing))):
        left = drawing[number] if number < len(drawing) else rows.padding
        text = lines[number] if number < len(lines) else ""
        yield f"{left:<{rows.width}} {text}".rstrip()


def write_oneline(
    out: Output, entries: Sequence[LogEntry], parents: Parents, below: Below = None
) -> None:
    """Write one line per commit: id, step, metrics in columns, refs, subject."""
    width = None if out.width is None else max(out.width - _LEAST_SUBJECT, out.width // 2)
    cells = _fact_columns(entries, width)
    draw = _drawing(parents)
    for entry, facts in zip(entries, cells, strict=True):
        more = () if below is None else below(entry)
        if draw is not None:
            rows = draw(entry)
            out.lines(_drawn(rows, [_one_line(out, entry, facts, rows.width + 1), *more]))
        else:
            out.lines([_one_line(out, entry, facts, 0), *more])


def _one_line(out: Output, entry: LogEntry, facts: str, indent: int) -> str:
    """Return a commit's line; a terminal cuts a long subject."""
    subject, names = printable(entry.info.subject), _ref_names(entry)
    marks = _marks(entry, out.width)
    if out.width is not None:
        taken = indent + SHORT_ID + (len("    ") + cell_width(facts) if facts else 1)
        room = out.width - taken - sum(cell_width(mark) + 1 for mark, _ in marks)
        names = _ref_names(entry, room - len("() ") - min(cell_width(subject), _LEAST_CUT))
        refs_width = cell_width(f"({', '.join(names)}) ") if names else 0
        subject = cut_end(subject, max(room - refs_width, _LEAST_CUT))
    refs = _refs_text(out, entry, names)
    middle = f"  {out.style(facts, 'cyan')}  " if facts else " "
    name = out.style(short_id(entry.info.id), "yellow")
    shown = "".join(f"{out.style(mark, colour)} " for mark, colour in marks)
    return f"{name}{middle}{shown}{refs}{' ' if refs else ''}{subject}".rstrip()


def _fact_columns(entries: Sequence[LogEntry], width: int | None) -> list[str]:
    """Return each commit's step and metrics, aligned; those beyond ``width`` are left out."""
    names: dict[str, None] = {}
    for entry in entries:
        names.update(dict.fromkeys(entry.metrics))
    groups: list[list[str]] = []
    steps = [entry.step for entry in entries]
    if any(step is not None for step in steps):
        groups.append(_labelled("step", steps))
    for name in names:
        values = [entry.metrics.get(name) for entry in entries]
        groups.append(_labelled(printable(name), values))
    if width is not None:
        sizes = list(accumulate(cell_width(group[0]) + 2 for group in groups))
        groups = groups[: max(bisect_right(sizes, width), 1)]
    if not groups:
        return ["" for _ in entries]
    # A commit without metrics gets no padding, so that its subject is not pushed far right.
    return ["  ".join(cells).rstrip() for cells in zip(*groups, strict=True)]


def _labelled(name: str, values: Sequence[float | None]) -> list[str]:
    """Return ``loss 2.5`` for every value, right-aligned; spaces for None."""
    texts = ["" if value is None else number_text(value) for value in values]
    size = max(map(len, texts))
    return [
        f"{name} {text:>{size}}" if text else " " * (cell_width(name) + 1 + size) for text in texts
    ]


def write_health(out: Output, entries: Sequence[LogEntry]) -> None:
    """Write step, NaN, infinities, largest magnitude and norm of every commit that has them.

    The change of the norm is to the first parent; ``!`` marks a jump, and what is not finite.
    """
    found = {entry.id: overall(entry.health) for entry in entries}
    rows = [_HEALTH_HEAD, *(_health_row(entry, found) for entry in entries)]
    for row, text in zip(rows, table_lines(out, rows, "<>>>>>><<"), strict=True):
        line = text if out.width is None else cut_end(text, out.width)
        styles = ["dim"] if row is _HEALTH_HEAD else ["red"] if row[-2] else []
        out.line(out.style(line, *styles))


def _health_row(entry: LogEntry, found: Mapping[GitId, CheckpointHealth | None]) -> tuple[str, ...]:
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

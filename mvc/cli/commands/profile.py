"""Show what communication costs a training step."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mvc.cli.options import HTML, JSON
from mvc.cli.output import Output, Shown, printable
from mvc.cli.parameters import CommandUsageError, arguments
from mvc.cli.render.text import (
    bars,
    count_text,
    cut_middle,
    pad,
    short_text,
    size_text,
    table_lines,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Fields = Mapping[str, Any]


_COLUMNS = 96  # of a picture on a page
_MOST_EXPOSED = 10

_PIPE_WIDTH = 80
_MOST_STEPS = 8
_MOST_COLLECTIVES = 5
_NAME = 44
_ROWS = {"compute": "cyan", "communication": "yellow", "exposed": "red"}
_LABEL = max(map(len, _ROWS)) + 2
_LEVELS = {"good": "green", "note": "dim", "warning": "yellow"}
_STEP_HEADS = ("step", "time", "compute", "communication", "hidden", "exposed", "idle", "mvc")
_EXPOSED_HEADS = ("exposed most", "size", "begins at", "takes", "exposed")


def profile(
    traces: list[str] = arguments("TRACE...", required=True),
    html: str | None = HTML,
    shown: Shown = JSON,
) -> None:
    """Show how much communication the steps of a run had, and how much computation hid.

    TRACE is what torch.profiler exports, as JSON or compressed by gzip. A step is a ProfilerStep of the
    profiler or a range "mvc.step", else the whole trace is one. Communication that runs while something is
    computed is hidden; the rest is exposed, and makes the step longer. The collectives that were
    exposed most are listed, with what mvc itself took and what to change.

    Traces of several ranks are shown one after the other; a rank that the others wait for is named.

    --html writes the same as a page with a picture of the steps. No repository is needed.
    """
    from mvc.cli.pages.report import check_target, write_page

    check_target(html)
    if len(set(traces)) < len(traces):
        raise CommandUsageError("a trace is named twice")
    fields = _read(traces)
    written = None
    if html is not None:
        written = write_page("profile", " ".join(["mvc profile", *traces]), fields, html)
    shown.answer(fields, _write_profile, fields, written)


def _read(paths: list[str]) -> dict[str, Any]:
    """Return what the traces say, as docs/json.md has it."""
    from mvc.tracing.advice import advise, find_straggler
    from mvc.tracing.overlap import Overlap
    from mvc.tracing.reading import read_trace

    found, overlaps = [], []
    for path in paths:
        trace = read_trace(path)
        overlap = Overlap(trace)
        overlaps.append(overlap)
        found.append({
            **{name: getattr(trace, name) for name in ("path", "rank", "ranks", "device")},
            "steps": [
                {**asdict(step), "collectives": len(step.collectives)} for step in overlap.steps
            ],
            "exposed": _list_exposed(overlap),
            "own": [
                {"name": name, "seconds": seconds, "count": count}
                for name, (seconds, count) in overlap.sum_own().items()
            ],
            "timeline": asdict(overlap.draw(overlap.typical, _COLUMNS)),
            "advice": [asdict(one) for one in advise(trace, overlap)],
        })  # fmt: skip
    straggler = find_straggler(overlaps)
    late = None
    if straggler is not None:
        own = found[straggler.trace]
        late = {**asdict(straggler), "path": own["path"], "rank": own["rank"]}
        del late["trace"]
    return {"traces": found, "straggler": late}


def _list_exposed(overlap: Any) -> list[dict[str, object]]:
    """Return the collectives of all steps that were exposed most."""
    known = [
        {"step": step.name, **asdict(collective)}
        for step in overlap.steps
        for collective in step.collectives
    ]
    known.sort(key=lambda one: -one["exposed_s"])
    return known[:_MOST_EXPOSED]


def _write_profile(out: Output, fields: Fields, page: str | None) -> None:
    out.lines(_profile_lines(out, fields))
    out.lines([] if page is None else [page])


def _profile_lines(out: Output, fields: Fields) -> Iterator[str]:
    """Yield what was found in all traces; the advice is that of the trace with the most exposed."""
    traces = fields["traces"]
    for trace in traces:
        yield from _trace_lines(out, trace)
        yield ""
    worst = max(traces, key=lambda one: sum(step["exposed_s"] for step in one["steps"]))
    for advice in worst["advice"]:
        yield out.style(printable(advice["text"]), _LEVELS[advice["level"]])
        if advice["hint"]:
            yield f"  {printable(advice['hint'])}"
    if fields["straggler"] is not None:
        yield from _straggler_lines(out, fields["straggler"])


def _trace_lines(out: Output, trace: Fields) -> Iterator[str]:
    facts = [trace["device"].upper(), count_text(len(trace["steps"]), "step")]
    if trace["rank"] is not None:
        of = "" if trace["ranks"] is None else f" of {trace['ranks']}"
        facts.insert(0, f"rank {trace['rank']}{of}")
    yield f"{out.style(printable(trace['path']), 'bold')}  {', '.join(facts)}"
    yield from _step_lines(out, trace["steps"])
    yield from _timeline_lines(out, trace["timeline"])
    yield from _exposed_lines(out, trace["exposed"])
    for one in trace["own"]:
        times = count_text(one["count"], "time")
        yield f"{printable(one['name'])}: {short_text(one['seconds'])}, {times}"


def _step_lines(out: Output, steps: Sequence[Fields]) -> Iterator[str]:
    shown = sorted(steps, key=lambda one: -one["exposed_s"])[:_MOST_STEPS]
    shown.sort(key=lambda one: one["start_s"])
    names = ("seconds", "compute_s", "communication_s", "hidden_s", "exposed_s", "idle_s", "own_s")
    rows = [
        [cut_middle(printable(one["name"]), _NAME), *(short_text(one[name]) for name in names)]
        for one in shown
    ]
    rows.append(
        ["mean", *(short_text(sum(step[name] for step in steps) / len(steps)) for name in names)]
    )
    if len(steps) > len(shown):
        yield f"the {len(shown)} steps with the most exposed communication:"
    yield from _table(out, _STEP_HEADS, rows)


def _exposed_lines(out: Output, collectives: Sequence[Fields]) -> Iterator[str]:
    rows = [
        [
            cut_middle(printable(f"{collective['step']} {collective['name']}"), _NAME),
            "-" if collective["size_bytes"] is None else size_text(collective["size_bytes"]),
            *(short_text(collective[name]) for name in ("start_s", "seconds", "exposed_s")),
        ]
        for collective in collectives[:_MOST_COLLECTIVES]
        if collective["exposed_s"] > 0
    ]
    if rows:
        yield ""
        yield from _table(out, _EXPOSED_HEADS, rows)


def _table(out: Output, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    heading, *lines = table_lines(out, [heads, *rows], "<" + ">" * (len(heads) - 1))
    yield out.style(heading, "bold")
    yield from lines


def _timeline_lines(out: Output, timeline: Fields) -> Iterator[str]:
    """Draw a step: the height of a sign is the share of its time."""
    blocks = bars(out)
    parts = len(timeline["compute"])
    width = min((out.width or _PIPE_WIDTH) - _LABEL, parts)
    yield ""
    yield f"{printable(timeline['step'])}, {short_text(timeline['seconds'])}"
    for name, colour in _ROWS.items():
        edges = [round(at * parts / width) for at in range(width + 1)]
        shares = [
            sum(timeline[name][low:high]) / (high - low) for low, high in itertools.pairwise(edges)
        ]
        signs = "".join(_sign(blocks, share) for share in shares)
        yield f"{pad(name, _LABEL)}{out.style(signs.rstrip(), colour)}".rstrip()


def _sign(blocks: str, share: float) -> str:
    """Return the block of a share; what is there at all can be seen."""
    least = 1 if share > 0.01 else 0  # noqa: PLR2004  a percent
    return blocks[max(round(share * (len(blocks) - 1)), least)]


def _straggler_lines(out: Output, one: Fields) -> Iterator[str]:
    name = printable(one["path"]) if one["rank"] is None else f"rank {one['rank']}"
    yield out.style(
        f"the others wait for {name}: they are in collectives for {short_text(one['others_wait_s'])} of a step, "
        f"it for {short_text(one['waits_s'])}",
        "yellow",
    )
    if one["because"] is None:
        yield "  its steps do not say why: its link may be slow, or other programs run there"
    else:
        excess = short_text(one["excess_s"])
        yield f"  it has {excess} more {one['because']} in a step than the others"

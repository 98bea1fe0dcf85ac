"""What ``mvc profile`` found, as lines of text, with a step drawn in block characters."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from mvc.cli.output import Output, printable
from mvc.cli.render.text import (
    BLOCKS,
    PLAIN,
    can_show,
    columns,
    count_text,
    cut_middle,
    pad,
    size_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Fields = Mapping[str, Any]

_PIPE_WIDTH = 80
_MOST_STEPS = 8
_MOST_COLLECTIVES = 5
_NAME = 44
_ROWS = {"compute": "cyan", "communication": "yellow", "exposed": "red"}
_LABEL = max(map(len, _ROWS)) + 2
_LEVELS = {"good": "green", "note": "dim", "warning": "yellow"}
_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
_ROUNDED, _LONG_S = 0.9995, 1000.0  # what would round to four digits
_STEP_HEADS = ("step", "time", "compute", "communication", "hidden", "exposed", "idle", "mvc")
_EXPOSED_HEADS = ("exposed most", "size", "begins at", "takes", "exposed")


def write_profile(out: Output, fields: Fields, page: str | None) -> None:
    """Write what was found in all traces, and which page has it, if there is one."""
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
    first, *others = columns([heads, *rows], "<" + ">" * (len(heads) - 1))
    yield out.style("  ".join(first), "bold")
    for row in others:
        yield "  ".join(row)


def _timeline_lines(out: Output, timeline: Fields) -> Iterator[str]:
    """Draw a step: the height of a sign is the share of its time."""
    blocks = BLOCKS if can_show(out, BLOCKS) else PLAIN
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


def short_text(seconds: float) -> str:
    """Return a duration: ``41 µs``, ``3.25 ms``, ``1.5 s``."""
    if seconds <= 0:
        return "0"
    unit, scale = next((one for one in _UNITS if seconds >= _ROUNDED * one[1]), _UNITS[-1])
    return f"{seconds / scale:,.0f} s" if seconds >= _LONG_S else f"{seconds / scale:.3g} {unit}"

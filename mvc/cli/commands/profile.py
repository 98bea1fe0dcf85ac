"""Show what communication costs a training step."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from mvc.cli.options import HTML, JSON
from mvc.cli.output import Shown
from mvc.cli.parameters import CommandUsageError, arguments

_COLUMNS = 96  # of a picture on a page
_MOST_EXPOSED = 10


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
    from mvc.cli.render.profile import write_profile

    shown.answer(fields, write_profile, fields, written)


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

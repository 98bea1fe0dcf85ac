"""The overview of what ``profile --json`` prints: advice, and what the steps have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mvc.cli.pages.overview import Card, Overview, Side, Verdict
from mvc.cli.render.profile import short_text
from mvc.cli.render.text import count_text, ratio_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    Fields = Mapping[str, Any]

_SUMS = {
    "time": "seconds", "compute": "compute_s", "communication": "communication_s",
    "hidden": "hidden_s", "exposed": "exposed_s", "mvc": "own_s",
}  # fmt: skip


def overview_of_profile(report: Fields) -> Overview:
    """Return the overview; its figures are of a step, on average over all traces."""
    traces = report["traces"]
    steps = [step for trace in traces for step in trace["steps"]]
    seconds = sum(step["seconds"] for step in steps) or 1e-12
    verdicts = [
        Verdict(one["level"], ": ".join(filter(None, (one["text"], one["hint"]))))
        for one in max(traces, key=lambda one: sum(s["exposed_s"] for s in one["steps"]))["advice"]
    ]
    straggler = report["straggler"]
    if straggler is not None:
        name = straggler["path"] if straggler["rank"] is None else f"rank {straggler['rank']}"
        verdicts.append(Verdict("warning", f"the others wait for {name}"))
    cards = []
    for name, key in _SUMS.items():
        total_s = sum(step[key] for step in steps)
        share = None if key == "seconds" else f"{ratio_text(total_s / seconds)} of a step"
        cards.append(Card(name, short_text(total_s / len(steps)), None, share))
    paths = [trace["path"] for trace in traces]
    side = Side(count_text(len(paths), "trace"), paths)
    return Overview("mvc profile", [side], verdicts, cards, "", None, [])

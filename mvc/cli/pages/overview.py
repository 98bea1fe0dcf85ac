"""The overview of a report: all of its page but the tables, made of what ``--json`` prints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mvc.cli.pages.heat import HeatMap, Spot, lay_out
from mvc.cli.render.text import count_text, ratio_text, short_id, short_text
from mvc.cli.render.verify import modules_text, system_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Fields = Mapping[str, Any]

_HEALTH = {"nan": "NaN", "inf": "Inf", "zeros": "zeros", "saturated": "saturated"}
_BAD = ("NaN", "Inf")
_AXIS = "|new − old| of the elements that changed"
_SUMS = {
    "time": "seconds", "compute": "compute_s", "communication": "communication_s",
    "hidden": "hidden_s", "exposed": "exposed_s", "mvc": "own_s",
}  # fmt: skip

_LEVELS = {True: ("good", "passed"), False: ("bad", "failed"), None: ("warning", "not judged")}


@dataclass(frozen=True, slots=True)
class ReportSide:
    """One of the two that were compared: what the user called it, and facts about it."""

    label: str
    lines: list[str]


@dataclass(frozen=True, slots=True)
class ReportVerdict:
    """A sentence; ``level`` is ``good``, ``note``, ``warning`` or ``bad``.

    ``tensors`` are the names of those that it rests on.
    """

    level: str
    text: str
    tensors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Card:
    """One figure of the whole, with a level if it says something good or bad."""

    name: str
    figure: str
    level: str | None = None
    remark: str | None = None


@dataclass(frozen=True, slots=True)
class ReportSeries:
    """How many values fell into each bucket."""

    name: str
    counts: list[int]


@dataclass(frozen=True, slots=True)
class ReportHistogram:
    """Distributions over the same buckets, which lie between ``edges``; None is an open end."""

    title: str
    axis: str
    edges: list[float | None]
    series: list[ReportSeries]


@dataclass(frozen=True, slots=True)
class Overview:
    """All but the tables of a report."""

    title: str
    sides: list[ReportSide]
    verdicts: list[ReportVerdict]
    cards: list[Card]
    heat_title: str
    heat: HeatMap | None
    histograms: list[ReportHistogram]


def overview_of_diff(report: Fields) -> Overview:
    """Return the overview of what ``diff --stats --json`` prints."""
    return Overview(
        title="mvc diff",
        sides=[side_of(report["old"]), side_of(report["new"])],
        verdicts=[
            ReportVerdict(verdict["level"], verdict["text"], list(verdict["tensors"]))
            for verdict in report["verdicts"]
        ],
        cards=[*_cards(report["total"]), *_token_cards(report.get("tokens"))],
        heat_title="Relative difference by layer and kind",
        heat=lay_out(
            [
                Spot(tensor["kind"], tensor["layer"], _state(tensor), _sigma(tensor))
                for tensor in report["tensors"]
            ]
        ),
        histograms=_differences(report["total"]["statistics"]),
    )


def side_of(side: Fields) -> ReportSide:
    """Return a side with what is known of its commit."""
    step, date = side.get("step"), side.get("date")
    facts = [
        short_id(side["commit"]) if side.get("commit") else None,
        None if step is None else f"step {step:,}",
        None if date is None else date[:16].replace("T", " "),
    ]
    lines = [side.get("subject"), " · ".join(fact for fact in facts if fact)]
    return ReportSide(side["label"], [line for line in lines if line])


def _state(tensor: Fields) -> str:
    """Return how a tensor is marked on the heat map: one of its states."""
    if tensor["status"] in ("added", "removed"):
        return str(tensor["status"])
    statistics = tensor["statistics"]
    if statistics is not None and _count_bad(statistics["new"]) > _count_bad(statistics["old"]):
        return "broken"
    if tensor["status"] != "modified":
        return "same"
    return "unmeasured" if _sigma(tensor) is None else "changed"


def _sigma(tensor: Fields) -> float | None:
    statistics = tensor["statistics"]
    return None if statistics is None else statistics["sigma"]


def _count_bad(health: Fields) -> int:
    return int(health["nan"] + health["inf"])


def _cards(total: Fields) -> list[Card]:
    differing, tensors = total["differing"], total["tensors"]
    cards = [Card("tensors that differ", f"{differing:,}", remark=f"of {tensors:,}")]
    statistics = total["statistics"]
    if statistics is None:
        return cards
    cosine = statistics["cosine"]
    cards += [
        Card(
            "elements changed",
            ratio_text(statistics["changed"] / (total["elements"] or 1)),
            remark=f"of {total['elements']:,}",
        ),
        Card("σ", figure_text(statistics["sigma"]), remark="Σ|A−B| / (Σ|A|+Σ|B|)"),
        Card("relative L2", figure_text(statistics["relative_l2"])),
        Card("cosine", "–" if cosine is None else f"{cosine:.6f}"),
        Card("largest difference", figure_text(statistics["max"])),
        Card("norm", change_text(statistics["norm_old"], statistics["norm_new"])),
    ]
    for name, word in _HEALTH.items():
        old, new = statistics["old"][name], statistics["new"][name]
        if old or new or name == "nan":
            cards.append(
                Card(word, change_text(old, new), "bad" if new > old and word in _BAD else None)
            )
    return cards


def _token_cards(tokens: Fields | None) -> list[Card]:
    if tokens is None:
        return []
    counts = (("added", "added"), ("removed", "removed"), ("moved", "at other ids"))
    remarks = [f"{tokens[name]:,} {word}" for name, word in counts if tokens[name]]
    return [Card("common tokens", f"{tokens['common']:,}", remark=", ".join(remarks) or None)]


def figure_text(value: float | None) -> str:
    """Return a figure with four digits, or a dash for one that is not known."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def change_text(old: float | None, new: float | None) -> str:
    """Return ``old → new``, or one of them if both read alike."""
    before, after = figure_text(old), figure_text(new)
    return after if before == after else f"{before} → {after}"


def _differences(statistics: Fields | None) -> list[ReportHistogram]:
    """Return the histogram of differences, without the empty buckets at its ends."""
    counts = {} if statistics is None else dict(statistics["histogram"])
    if not counts:
        return []
    exponents = range(min(counts), max(counts) + 1)
    edges: list[float | None] = [2.0**exponent for exponent in (*exponents, exponents.stop)]
    series = ReportSeries("", [counts.get(exponent, 0) for exponent in exponents])
    return [ReportHistogram("Sizes of the differences", _AXIS, edges, [series])]


def overview_of_profile(report: Fields) -> Overview:
    """Return the overview; its figures are of a step, on average over all traces."""
    traces = report["traces"]
    steps = [step for trace in traces for step in trace["steps"]]
    seconds = sum(step["seconds"] for step in steps) or 1e-12
    verdicts = [
        ReportVerdict(one["level"], ": ".join(filter(None, (one["text"], one["hint"]))))
        for one in max(traces, key=lambda one: sum(s["exposed_s"] for s in one["steps"]))["advice"]
    ]
    straggler = report["straggler"]
    if straggler is not None:
        name = straggler["path"] if straggler["rank"] is None else f"rank {straggler['rank']}"
        verdicts.append(ReportVerdict("warning", f"the others wait for {name}"))
    cards = []
    for name, key in _SUMS.items():
        total_s = sum(step[key] for step in steps)
        share = None if key == "seconds" else f"{ratio_text(total_s / seconds)} of a step"
        cards.append(Card(name, short_text(total_s / len(steps)), None, share))
    paths = [trace["path"] for trace in traces]
    side = ReportSide(count_text(len(paths), "trace"), paths)
    return Overview("mvc profile", [side], verdicts, cards, "", None, [])


def overview_of_verify(report: Fields) -> Overview:
    """Return the overview; ``report`` has the two sides beside what is printed."""
    system = report["system"]
    return Overview(
        title="mvc verify",
        sides=[side_of(report[name]) for name in ("old", "new") if report.get(name)],
        verdicts=list(_verdicts(report)),
        cards=[] if system is None else _system_cards(system),
        heat_title="",
        heat=None,
        histograms=[] if system is None else _scores(system),
    )


def _verdicts(report: Fields) -> Iterator[ReportVerdict]:
    unit, module, system = (report[layer] for layer in ("unit", "module", "system"))
    if unit is not None:
        yield _verdict("unit", unit["passed"], _unit_text(unit))
    if module is not None:
        yield _verdict("module", module["passed"], modules_text(module, is_worst_first=False))
    for setting in report["settings"]:
        name = f"{setting['setting']} {setting['old']} and {setting['new']}"
        yield _verdict(name, setting["passed"], modules_text(setting, is_worst_first=True))
    if system is not None:
        yield _verdict("system", system["passed"], system_text(system))


def _verdict(layer: str, passed: bool | None, text: str) -> ReportVerdict:
    level, word = _LEVELS[passed]
    return ReportVerdict(level, f"{layer} {word}: {text}")


def _unit_text(unit: Fields) -> str:
    total, failed = unit["tensors_total"], unit["tensors_failed"]
    wanted = (
        "the same to the bit" if unit["atol"] is None else f"within {figure_text(unit['atol'])}"
    )
    if unit["rtol"]:
        wanted += f" + {figure_text(unit['rtol'])} of the old value"
    if not failed:
        return f"{count_text(total, 'tensor')} {wanted}"
    verb = "is" if failed == 1 else "are"
    return f"{failed:,} of {count_text(total, 'tensor')} {verb} not {wanted}"


def _system_cards(system: Fields) -> list[Card]:
    cards = [Card("samples", f"{system['samples']:,}")]
    agreement, loss = system["agreement"], system["loss"]
    if agreement is not None:
        low, high = (ratio_text(agreement[name]) for name in ("low", "high"))
        cards.append(
            Card("same top prediction", ratio_text(agreement["share"]), None, f"{low} to {high}")
        )
    if system["divergence"] is not None:
        cards.append(
            Card("divergence", figure_text(system["divergence"]), None, "bits, on average")
        )
    if loss is not None:
        cards.append(Card(loss["kind"].replace("-", " "), change_text(loss["old"], loss["new"])))
    return cards


def _scores(system: Fields) -> list[ReportHistogram]:
    found = system["histogram"]
    if found is None:
        return []
    series = [ReportSeries(name, list(found[name])) for name in ("old", "new")]
    edges = [None, *found["edges"], None]
    return [ReportHistogram("Outputs of both models", system["score"], edges, series)]

"""The overview of what ``verify --json`` prints about two models: a verdict for each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mvc.cli.pages.overview import (
    Card,
    Overview,
    ReportHistogram,
    ReportSeries,
    ReportVerdict,
    change_text,
    figure_text,
    side_of,
)
from mvc.cli.render.text import count_text, ratio_text
from mvc.cli.render.verify_models import modules_text, system_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Fields = Mapping[str, Any]

_LEVELS = {True: ("good", "passed"), False: ("bad", "failed"), None: ("warning", "not judged")}


def overview_of_verify(report: Fields) -> Overview:
    """Return the overview; ``report`` has the two sides beside what is printed."""
    system = report["system"]
    return Overview(
        title="mvc verify",
        sides=[side_of(report[name]) for name in ("old", "new") if report.get(name)],
        verdicts=list(_verdicts(report)),
        cards=[] if system is None else _cards(system),
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


def _cards(system: Fields) -> list[Card]:
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

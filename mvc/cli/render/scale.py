"""Predictions of AllReduce, plans to grow and answers of their gates, as text and for ``--json``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mvc.cli.output import Output, pick, printable
from mvc.cli.render.text import columns, count_text, ratio_text, short_id, utc_date

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.operations.scale import ScaleStatus
    from mvc.scaling.allreduce import Prediction
    from mvc.scaling.fabric import Fabric
    from mvc.scaling.limits import GateVerdict
    from mvc.scaling.results import ScaleResult

_COLOURS = {"passed": "green", "failed": "red", "waived": "yellow", "none": "dim"}
_WORDS = {"passed": "ok", "failed": "failed", "waived": "waived", "none": "-"}


def _best(predictions: Sequence[Prediction]) -> Prediction:
    return min(predictions, key=lambda one: one.time_s)


def prediction_fields(
    fabric: Fabric, size_bytes: float, predictions: Sequence[Prediction]
) -> dict[str, object]:
    """Return what was assumed, and what each algorithm takes."""
    links = {"link": fabric.link, "inside": fabric.inside}
    figures = "algorithm time_s latency_s transfer_s reduce_s bandwidth_used"
    shown = {
        name: None if link is None else pick(link, "latency_s bandwidth_bytes_s")
        for name, link in links.items()
    }
    free = math.isinf(fabric.reduce_bytes_s)
    return {
        "ranks": fabric.ranks,
        "size_bytes": size_bytes,
        **shown,
        "per_node": fabric.per_node,
        "reduce_bytes_s": None if free else fabric.reduce_bytes_s,
        "best": _best(predictions).algorithm,
        "algorithms": [
            {**pick(prediction, figures), "shape": list(prediction.shape)}
            for prediction in predictions
        ],
    }


def write_predictions(
    out: Output, fabric: Fabric, size_bytes: float, predictions: Sequence[Prediction]
) -> None:
    """Write what was assumed, and a table with the best algorithm marked."""
    out.line(f"{fabric.ranks:,} ranks, {size_bytes:,.0f} bytes on each")
    for name, link in (("a link", fabric.link), ("within a node", fabric.inside)):
        if link is not None:
            speed = f"{link.bandwidth_bytes_s / 1e9:.6g} GB/s"
            out.line(f"{name}: {link.latency_s * 1e6:.4g} us per message, {speed}")
    if math.isfinite(fabric.reduce_bytes_s):
        out.line(f"adding: {fabric.reduce_bytes_s / 1e9:.6g} GB/s")
    out.line()
    best = _best(predictions)
    head = ("algorithm", "", "time", "messages", "bytes", "adding", "bandwidth used", "")
    rows = [
        (
            prediction.algorithm,
            "x".join(map(str, prediction.shape)),
            *(f"{part * 1e3:.3f} ms" for part in (prediction.time_s, prediction.latency_s)),
            *(f"{part * 1e3:.3f} ms" for part in (prediction.transfer_s, prediction.reduce_s)),
            ratio_text(prediction.bandwidth_used),
            "best" if prediction is best else "",
        )
        for prediction in predictions
    ]
    cells = columns([head, *rows], "<<>>>>><")
    out.line(out.style("  ".join(cells[0]).rstrip(), "bold"))
    for one, row in zip(predictions, cells[1:], strict=True):
        text = "  ".join(row).rstrip()
        out.line(out.style(text, "green") if one is best else text)


def result_fields(result: ScaleResult) -> dict[str, object]:
    """Return the answers of the gates at one size."""
    return {
        **pick(result, "commit ranks passed=ok"),
        "time": utc_date(result.time_s),
        "gates": [pick(verdict, "gate status value limit text") for verdict in result.verdicts],
    }


def write_result(out: Output, result: ScaleResult) -> None:
    """Write the answer of each gate, and of all."""
    rows = [(verdict.gate, _WORDS[verdict.status], verdict.text) for verdict in result.verdicts]
    for one, (gate, word, text) in zip(result.verdicts, columns(rows, "<<<"), strict=True):
        out.line(f"{gate}  {out.style(word, _COLOURS[one.status])}  {printable(text)}".rstrip())
    what = f"{count_text(result.ranks, 'rank')} at {short_id(result.commit)}"
    if result.ok:
        out.line(f"{out.style('passed:', 'green', 'bold')} {what}")
    else:
        out.line(f"{out.style('failed:', 'red', 'bold')} {what}, at {_names(result.failed)}")


def _names(verdicts: Sequence[GateVerdict]) -> str:
    return ", ".join(verdict.gate for verdict in verdicts)


def status_fields(status: ScaleStatus) -> dict[str, object]:
    """Return the plan, and the latest result of each size."""
    return {
        "steps": [
            {
                "ranks": ranks,
                "result": result_fields(status.results[ranks]) if ranks in status.results else None,
            }
            for ranks in status.steps
        ],
        "next_ranks": status.next_ranks,
    }


def write_status(out: Output, status: ScaleStatus) -> None:
    """Write a line for each size, and which is next."""
    rows = []
    for ranks in status.steps:
        result = status.results.get(ranks)
        word, text, commit = "-", "", ""
        if result is not None:
            word, commit = ("passed" if result.ok else "failed"), short_id(result.commit)
            waived = [verdict for verdict in result.verdicts if verdict.status == "waived"]
            text = "; ".join(one.text for one in result.failed)
            text = text or (f"waived: {_names(waived)}" if waived else "")
        rows.append((f"{ranks:,}", word, commit, printable(text)))
    for row in columns(rows, "><<<"):
        word = row[1].strip()
        row[1] = out.style(row[1], _COLOURS.get(word, "dim"))
        out.line("  ".join(row).rstrip())
    if status.next_ranks is None:
        out.line(out.style("all sizes have passed", "green"))
    else:
        out.line(f"next: {count_text(status.next_ranks, 'rank')}")

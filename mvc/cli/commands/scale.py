"""Grow a run step by step; predict what an AllReduce takes."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any

from mvc.cli.errors import NEGATIVE
from mvc.cli.options import DRY_RUN, JSON, check_no_more, check_options
from mvc.cli.output import Output, Shown, pick, printable
from mvc.cli.parameters import (
    CommandUsageError,
    Exit,
    arguments,
    decimal,
    integer,
    named,
    string,
    strings,
)
from mvc.cli.render.text import count_text, ratio_text, short_id, table_lines, utc_date
from mvc.cli.session import open_repo
from mvc.errors import NotFoundError, UsageError, translate_os_errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc.operations.scale import ScaleStatus
    from mvc.scaling.allreduce import Prediction
    from mvc.scaling.fabric import Fabric
    from mvc.scaling.limits import GateVerdict
    from mvc.scaling.results import ScaleResult


VERBS = "allreduce plan status gate"
_MAX_BYTES = 2**20
_OF_VERB = {
    "allreduce": "ranks bytes latency bandwidth adding per-node inside-latency inside-bandwidth dims "
    "algorithm preset",
    "plan": "from to dry-run",
    "status": "ranks",
    "gate": "ranks measured deviation sync-p99 bandwidth-used recovery loss-rise waive",
}


_OPTIONS = named(
    integer("--from N", "plan: ranks at the start."),
    integer("--to N", "plan: ranks at the end."),
    DRY_RUN,
    integer("--ranks N", "Of the run; allreduce: that take part."),
    string("--measured FILE", "gate: what was measured, as JSON; - reads it."),
    decimal("--deviation X", "gate: at most this (1e-5)."),
    decimal("--sync-p99 SECONDS", "gate: at most this (0.05)."),
    decimal("--bandwidth-used SHARE", "gate: at least this (0.85)."),
    decimal("--recovery SECONDS", "gate: at most this (30)."),
    decimal("--loss-rise SHARE", "gate: over the size before (0.05)."),
    strings("--waive NAME", "gate: its failure does not count; is noted."),
    decimal("--bytes N", "allreduce: bytes on each rank."),
    decimal("--latency SECONDS", "allreduce: of a message."),
    decimal("--bandwidth N", "allreduce: bytes a second of a link, one way."),
    decimal("--adding N", "allreduce: bytes a rank adds a second (no limit)."),
    integer("--per-node N", "allreduce: ranks of a node."),
    decimal("--inside-latency SECONDS", "allreduce: within a node."),
    decimal("--inside-bandwidth N", "allreduce: within a node."),
    strings("--dims AxBxC", "allreduce: a torus, or its dimensions: 2, 3."),
    strings("--algorithm NAME", "allreduce: only this; may be repeated."),
    string("--preset NAME", "allreduce: a fabric with a name: founding."),
)
_LIMITS = {
    "deviation": "deviation_max", "sync-p99": "sync_p99_s", "bandwidth-used": "bandwidth_used",
    "recovery": "recovery_s", "loss-rise": "loss_rise",
}  # fmt: skip

_SHAPE = re.compile(r"[0-9]{1,8}(x[0-9]{1,8}){1,2}", re.ASCII)
_COLOURS = {"passed": "green", "failed": "red", "waived": "yellow", "none": "dim"}
_WORDS = {"passed": "ok", "failed": "failed", "waived": "waived", "none": "-"}


def scale(
    words: list[str] = arguments("[WORD... [REV]]"),
    options: dict[str, Any] = _OPTIONS,
    shown: Shown = JSON,
) -> None:
    """Grow a run step by step; predict what an AllReduce takes.

    plan --from A --to B makes a plan of sizes, each at most twice the one before. gate [REV]
    --measured FILE judges what a run measured at a size and notes the answer on a commit; it exits
    with 1 if a gate fails, and the next size is refused until all pass. status [REV] shows the
    sizes; with --ranks N it fails unless that size may be taken.

    The gates are bits, deviation, sync, bandwidth, recovery and loss. FILE has "ranks", "checks",
    "mismatches", "deviation_max", "sync_p99_s", "bandwidth_used", "recovery_s" and "loss". What is
    null or missing fails its gate, unless that is waived.

    allreduce shows what each algorithm takes on stated links, by the alpha-beta model
    (docs/scaling.md). All times are in seconds, all sizes in bytes.
    """
    verb, *rest = words or [""]
    if verb not in _OF_VERB:
        raise CommandUsageError(f"{verb!r} is not one of {VERBS.replace(' ', ', ')}")
    check_options(verb, options, _OF_VERB[verb])
    check_no_more(rest, 1 if verb in ("status", "gate") else 0)
    if verb == "allreduce":
        _predict(options, shown)
    elif verb == "plan":
        _plan(options, shown)
    elif verb == "status":
        _show(options["ranks"], shown, *rest)
    else:
        _judge(options, shown, *rest)


def _predict(options: Mapping[str, Any], shown: Shown) -> None:
    from mvc.scaling.allreduce import predict_all

    fabric, size_bytes = _make_fabric(options)
    found = predict_all(fabric, size_bytes, options["algorithm"])
    fields = _prediction_fields(fabric, size_bytes, found)
    shown.answer(fields, _write_predictions, fabric, size_bytes, found)


def _plan(options: Mapping[str, Any], shown: Shown) -> None:
    first, last, keep = options["from"], options["to"], not options["dry-run"]
    if first is None or last is None:
        raise CommandUsageError("a plan needs --from and --to")
    steps = open_repo().runs.plan_scale(first, last, keep=keep)
    text = " -> ".join(f"{ranks:,}" for ranks in steps)
    shown.answer({"steps": list(steps), "kept": keep}, Output.line, text)


def _show(ranks: int | None, shown: Shown, revision: str = "HEAD") -> None:
    status = open_repo().runs.scale_status(revision)
    if ranks is not None:
        status.check(ranks)
    shown.answer(_status_fields(status), _write_status, status)


def _judge(options: Mapping[str, Any], shown: Shown, revision: str = "HEAD") -> None:
    if options["measured"] is None:
        raise CommandUsageError("name what was measured: --measured FILE, or - for standard input")
    values = _read_measured(options["measured"])
    limits = {key: options[name] for name, key in _LIMITS.items() if options[name] is not None}
    result = open_repo().runs.record_scale(
        values, revision, ranks=options["ranks"], limits=limits, waive=options["waive"]
    )
    shown.answer(_result_fields(result), _write_result, result)
    if not result.ok:
        raise Exit(NEGATIVE)


def _read_measured(name: str) -> Any:
    """Return the JSON in a file, or on standard input for ``-``."""
    try:
        with translate_os_errors(f"read {name}"):
            if name == "-":
                data = sys.stdin.buffer.read(_MAX_BYTES)
            else:
                with open(name, "rb") as file:
                    data = file.read(_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"file {name!r} does not exist") from None
    except IsADirectoryError:
        raise UsageError(f"{name!r} is a folder, not a file of what was measured") from None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise UsageError(f"{name!r} is not JSON, as what was measured has to be") from None


def _make_fabric(options: Mapping[str, Any]) -> tuple[Fabric, float]:
    """Return the fabric and the bytes that are stated; those of a preset where nothing is."""
    from mvc.scaling.fabric import PRESETS, Fabric, Link

    stated = {name: value for name, value in options.items() if value is not None}
    preset, per_node = options["preset"], options["per-node"]
    tori: tuple[tuple[int, ...], ...] = ()
    if preset is None:
        for name in ("ranks", "bytes", "latency", "bandwidth"):
            if name not in stated:
                raise CommandUsageError(f"allreduce needs --{name}, or a --preset")
    elif preset not in PRESETS:
        raise CommandUsageError(f"{preset!r} is not a preset; there is {', '.join(PRESETS)}")
    else:
        base, link = PRESETS[preset].fabric, PRESETS[preset].fabric.link
        known = {"ranks": base.ranks, "bytes": PRESETS[preset].size_bytes}
        links = {"latency": link.latency_s, "bandwidth": link.bandwidth_bytes_s}
        stated = {**known, **links, **stated}
        tori = base.tori if stated["ranks"] == base.ranks else ()
    outer = Link(stated["latency"], stated["bandwidth"])
    inside = (options["inside-latency"], options["inside-bandwidth"])
    if per_node is None and inside != (None, None):
        raise CommandUsageError("--inside-latency and --inside-bandwidth need --per-node")
    node = None
    if per_node is not None:
        pairs = zip(inside, astuple(outer), strict=True)
        node = Link(*(around if own is None else own for own, around in pairs))
    ranks = stated["ranks"]
    tori = tuple(_parse_shape(text, ranks) for text in options["dims"]) or tori
    fabric = Fabric(ranks, outer, per_node=per_node, inside=node, tori=tori)
    if options["adding"] is not None:
        fabric = replace(fabric, reduce_bytes_s=options["adding"])
    return fabric, stated["bytes"]


def _parse_shape(text: str, ranks: int) -> tuple[int, ...]:
    """Return a shape that is stated; of a number of dimensions, the one nearest to a cube."""
    from mvc.scaling.fabric import find_torus

    if text in ("2", "3"):
        shape = find_torus(ranks, int(text))
        if shape is None:
            raise CommandUsageError(f"{ranks:,} ranks are no torus of {text} dimensions")
        return shape
    if not _SHAPE.fullmatch(text):
        raise CommandUsageError(f"{text[:80]!r} is not a torus such as 8x8x8 or 16x32")
    return tuple(map(int, text.split("x")))


def _best(predictions: Sequence[Prediction]) -> Prediction:
    return min(predictions, key=lambda one: one.time_s)


def _prediction_fields(
    fabric: Fabric, size_bytes: float, predictions: Sequence[Prediction]
) -> dict[str, object]:
    """Return what was assumed, and what each algorithm takes."""
    link = "latency_s bandwidth_bytes_s"
    figures = "algorithm time_s latency_s transfer_s reduce_s bandwidth_used shape"
    return {
        "ranks": fabric.ranks,
        "size_bytes": size_bytes,
        **pick(fabric, f"link({link}) inside({link}) per_node"),
        "reduce_bytes_s": fabric.reduce_bytes_s if math.isfinite(fabric.reduce_bytes_s) else None,
        "best": _best(predictions).algorithm,
        "algorithms": [pick(prediction, figures) for prediction in predictions],
    }


def _write_predictions(
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
    heading, *lines = table_lines(out, [head, *rows], "<<>>>>><")
    out.line(out.style(heading, "bold"))
    for prediction, line in zip(predictions, lines, strict=True):
        out.line(out.style(line, "green") if prediction is best else line)


def _result_fields(result: ScaleResult) -> dict[str, object]:
    """Return the answers of the gates at one size."""
    return {
        **pick(result, "commit ranks passed=ok"),
        "time": utc_date(result.time_s),
        **pick(result, "gates=verdicts(gate status value limit text)"),
    }


def _write_result(out: Output, result: ScaleResult) -> None:
    """Write the answer of each gate, and of all."""
    rows = [
        (verdict.gate, (_WORDS[verdict.status], _COLOURS[verdict.status]), printable(verdict.text))
        for verdict in result.verdicts
    ]
    out.lines(table_lines(out, rows, "<<<"))
    what = f"{count_text(result.ranks, 'rank')} at {short_id(result.commit)}"
    if result.ok:
        out.line(f"{out.style('passed:', 'green', 'bold')} {what}")
    else:
        out.line(f"{out.style('failed:', 'red', 'bold')} {what}, at {_names(result.failed)}")


def _names(verdicts: Sequence[GateVerdict]) -> str:
    return ", ".join(verdict.gate for verdict in verdicts)


def _status_fields(status: ScaleStatus) -> dict[str, object]:
    """Return the plan, and the latest result of each size."""
    return {
        "steps": [
            {
                "ranks": ranks,
                "result": _result_fields(status.results[ranks])
                if ranks in status.results
                else None,
            }
            for ranks in status.steps
        ],
        "next_ranks": status.next_ranks,
    }


def _write_status(out: Output, status: ScaleStatus) -> None:
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
        verdict = (word, _COLOURS.get(word, "dim"))
        rows.append((f"{ranks:,}", verdict, commit, printable(text)))
    out.lines(table_lines(out, rows, "><<<"))
    if status.next_ranks is None:
        out.line(out.style("all sizes have passed", "green"))
    else:
        out.line(f"next: {count_text(status.next_ranks, 'rank')}")

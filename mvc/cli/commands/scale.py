"""Grow a run step by step; predict what an AllReduce takes."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any, TypeVar

from mvc.cli.errors import NEGATIVE
from mvc.cli.options import DRY_RUN, JSON
from mvc.cli.output import stdout, write_json
from mvc.cli.parameters import CommandUsageError, Exit, arguments, decimal, integer, string, strings
from mvc.cli.session import open_repo
from mvc.errors import NotFoundError, UsageError, translate_os_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mvc.scaling.fabric import Fabric, Link

    Speed = tuple[float | None, float | None]
    """Latency and bandwidth, as far as they are stated."""


VERBS = "allreduce plan status gate"
_MAX_BYTES = 2**20
_OF_VERB = {
    "allreduce": "ranks bytes latency bandwidth adding per-node inside-latency inside-bandwidth dims "
    "algorithm preset",
    "plan": "from to dry-run",
    "status": "ranks",
    "gate": "ranks measured deviation sync-p99 bandwidth-used recovery loss-rise waive",
}
_REVISIONS = {"status": 1, "gate": 1}


def scale(
    words: list[str] = arguments("[WORD... [REV]]"),
    first: int | None = integer("--from N", "plan: ranks at the start."),
    last: int | None = integer("--to N", "plan: ranks at the end."),
    dry_run: bool = DRY_RUN,
    ranks: int | None = integer("--ranks N", "Of the run; allreduce: that take part."),
    measured: str | None = string(
        "--measured FILE", "gate: what was measured, as JSON; - reads it."
    ),
    deviation: float | None = decimal("--deviation X", "gate: at most this (1e-5)."),
    sync_p99: float | None = decimal("--sync-p99 SECONDS", "gate: at most this (0.05)."),
    bandwidth_used: float | None = decimal("--bandwidth-used SHARE", "gate: at least this (0.85)."),
    recovery: float | None = decimal("--recovery SECONDS", "gate: at most this (30)."),
    loss_rise: float | None = decimal("--loss-rise SHARE", "gate: over the size before (0.05)."),
    waive: list[str] = strings("--waive NAME", "gate: its failure does not count; is noted."),
    size_bytes: float | None = decimal("--bytes N", "allreduce: bytes on each rank."),
    latency: float | None = decimal("--latency SECONDS", "allreduce: of a message."),
    bandwidth: float | None = decimal(
        "--bandwidth N", "allreduce: bytes a second of a link, one way."
    ),
    adding: float | None = decimal(
        "--adding N", "allreduce: bytes a rank adds a second (no limit)."
    ),
    per_node: int | None = integer("--per-node N", "allreduce: ranks of a node."),
    inside_latency: float | None = decimal("--inside-latency SECONDS", "allreduce: within a node."),
    inside_bandwidth: float | None = decimal("--inside-bandwidth N", "allreduce: within a node."),
    dims: list[str] = strings("--dims AxBxC", "allreduce: a torus, or its dimensions: 2, 3."),
    algorithm: list[str] = strings("--algorithm NAME", "allreduce: only this; may be repeated."),
    preset: str | None = string("--preset NAME", "allreduce: a fabric with a name: founding."),
    as_json: bool = JSON,
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
    given = {
        "from": first, "to": last, "dry-run": dry_run or None, "ranks": ranks, "measured": measured,
        "deviation": deviation, "sync-p99": sync_p99, "bandwidth-used": bandwidth_used,
        "recovery": recovery, "loss-rise": loss_rise, "waive": waive or None, "bytes": size_bytes,
        "latency": latency, "bandwidth": bandwidth, "adding": adding, "per-node": per_node,
        "inside-latency": inside_latency, "inside-bandwidth": inside_bandwidth, "dims": dims or None,
        "algorithm": algorithm or None, "preset": preset,
    }  # fmt: skip
    strange = [name for name, value in given.items() if value is not None]
    strange = [name for name in strange if name not in _OF_VERB[verb].split()]
    if strange:
        raise CommandUsageError(f"--{strange[0]} does not go with {verb}")
    if len(rest) > _REVISIONS.get(verb, 0):
        raise CommandUsageError(f"unexpected argument {rest[-1]!r}")
    if verb == "allreduce":
        inside = (inside_latency, inside_bandwidth)
        fabric, size = make_fabric(
            preset, ranks, size_bytes, (latency, bandwidth), inside, per_node, dims or ()
        )
        fabric = fabric if adding is None else replace(fabric, reduce_bytes_s=adding)
        _predict(fabric, size, algorithm or (), as_json=as_json)
    elif verb == "plan":
        _plan(first, last, keep=not dry_run, as_json=as_json)
    elif verb == "status":
        _show(ranks, *rest, as_json=as_json)
    else:
        limits = {
            "deviation_max": deviation, "sync_p99_s": sync_p99, "bandwidth_used": bandwidth_used,
            "recovery_s": recovery, "loss_rise": loss_rise,
        }  # fmt: skip
        chosen = {name: value for name, value in limits.items() if value is not None}
        _judge(measured, *rest, ranks=ranks, limits=chosen, waive=waive or (), as_json=as_json)


def _predict(
    fabric: Fabric, size_bytes: float, algorithms: Sequence[str], *, as_json: bool
) -> None:
    from mvc.cli.render.scale import prediction_fields, write_predictions
    from mvc.scaling.allreduce import predict_all

    found = predict_all(fabric, size_bytes, algorithms)
    if as_json:
        write_json(prediction_fields(fabric, size_bytes, found))
    else:
        write_predictions(stdout(), fabric, size_bytes, found)


def _plan(first: int | None, last: int | None, *, keep: bool, as_json: bool) -> None:
    if first is None or last is None:
        raise CommandUsageError("a plan needs --from and --to")
    steps = open_repo().runs.plan_scale(first, last, keep=keep)
    if as_json:
        write_json({"steps": list(steps), "kept": keep})
    else:
        stdout().line(" -> ".join(f"{ranks:,}" for ranks in steps))


def _show(ranks: int | None, revision: str = "HEAD", *, as_json: bool) -> None:
    from mvc.cli.render.scale import status_fields, write_status

    status = open_repo().runs.scale_status(revision)
    if ranks is not None:
        status.check(ranks)
    if as_json:
        write_json(status_fields(status))
    else:
        write_status(stdout(), status)


def _judge(
    measured: str | None,
    revision: str = "HEAD",
    *,
    ranks: int | None,
    limits: Mapping[str, float],
    waive: Sequence[str],
    as_json: bool,
) -> None:
    from mvc.cli.render.scale import result_fields, write_result

    if measured is None:
        raise CommandUsageError("name what was measured: --measured FILE, or - for standard input")
    values = _read_measured(measured)
    result = open_repo().runs.record_scale(
        values, revision, ranks=ranks, limits=limits, waive=waive
    )
    if as_json:
        write_json(result_fields(result))
    else:
        write_result(stdout(), result)
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


_Number = TypeVar("_Number", int, float)
_SHAPE = re.compile(r"[0-9]{1,8}(x[0-9]{1,8}){1,2}", re.ASCII)


def make_fabric(
    preset: str | None,
    ranks: int | None,
    size_bytes: float | None,
    link: Speed,
    inside: Speed,
    per_node: int | None,
    dims: Sequence[str],
) -> tuple[Fabric, float]:
    """Return the fabric and the bytes that are stated; those of a preset where nothing is."""
    from mvc.scaling.fabric import PRESETS, Fabric, Link

    if preset is not None and preset not in PRESETS:
        raise CommandUsageError(f"{preset!r} is not a preset; there is {', '.join(PRESETS)}")
    if preset is None:
        ranks, size_bytes = _need("ranks", ranks), _need("bytes", size_bytes)
        outer = Link(_need("latency", link[0]), _need("bandwidth", link[1]))
        tori: tuple[tuple[int, ...], ...] = ()
    else:
        known, base = PRESETS[preset], PRESETS[preset].fabric
        ranks = base.ranks if ranks is None else ranks
        size_bytes = known.size_bytes if size_bytes is None else size_bytes
        outer = Link(*_fill(link, base.link))
        tori = base.tori if ranks == base.ranks else ()
    if per_node is None and inside != (None, None):
        raise CommandUsageError("--inside-latency and --inside-bandwidth need --per-node")
    node = None if per_node is None else Link(*_fill(inside, outer))
    tori = tuple(_parse_shape(text, ranks) for text in dims) or tori
    return Fabric(ranks, outer, per_node=per_node, inside=node, tori=tori), size_bytes


def _need(name: str, value: _Number | None) -> _Number:
    if value is None:
        raise CommandUsageError(f"allreduce needs --{name}, or a --preset")
    return value


def _fill(stated: Speed, known: Link) -> Iterator[float]:
    """Yield latency and bandwidth; those of a known link where nothing is stated."""
    for one, other in zip(stated, astuple(known), strict=True):
        yield other if one is None else one


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

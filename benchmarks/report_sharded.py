"""Sharded runs as tables and targets."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.tables import Table, Target

if TYPE_CHECKING:
    from collections.abc import Iterator

    Results = dict[str, Any]

_COPY_LIMIT = 1.3
_LOAD_LIMIT_S, _RECOVERY_LIMIT_S = 2.0, 30.0


def list_targets(results: Results) -> Iterator[Target]:
    """Yield the targets for the stall of a rank."""
    saves = results.get("sharded", {}).get("saves", {}).get("mvc", {})
    for size in saves or ("1", "2", "4", "8"):
        entry = saves.get(size)
        measured = None if entry is None else _ratio(entry["stall"], entry["memmove"])
        name = f"stall of a commit of {size} processes, against one memmove of what each holds"
        yield Target(name, _COPY_LIMIT, measured, "times")
    for size, rounds in _find_recoveries(results).items():
        what = f"a rank of {size} killed"
        load_s = None if rounds is None else median(one["load"] for one in rounds)
        whole_s = None if rounds is None else median(sum(one.values()) for one in rounds)
        yield Target(f"{what}: resume from the last commit", _LOAD_LIMIT_S, load_s, "s")
        yield Target(f"{what}: until the first new step", _RECOVERY_LIMIT_S, whole_s, "s")


def _find_recoveries(results: Results) -> Results:
    entry = results.get("sharded", {}).get("recovery", {})
    found: Results = entry.get("rounds", {}).get("mvc", {})
    return found or dict.fromkeys(("2", "4"))


def sharded_tables(results: Results) -> Iterator[Table]:
    """Yield the tables."""
    entry = results["sharded"]
    title = f"sharded, a state of {entry['state_mb']:,} MB saved"
    rows = [["processes", "way", "stall s", "of one memmove", "until durable s", "MB on disk"]]
    for way, by_size in entry["saves"].items():
        for size, one in by_size.items():
            stall, ratio = median(one["stall"]), _ratio(one["stall"], one["memmove"])
            durable, size_mb = median(one["durable"]), median(one["bytes"]) / 1e6
            figures = f"{stall:.3f}", f"{ratio:.2f}", f"{durable:.2f}", f"{size_mb:,.1f}"
            rows.append([str(size), way, *figures])
    yield Table(title, [rows[0], *sorted(rows[1:], key=lambda row: int(row[0]))])
    rows = [["saved by", "loaded by", "way", "s"]]
    for way, by_size in entry["loads"].items():
        for size, one in by_size.items():
            rows.append([str(size), str(one["on"]), way, f"{median(one['load']):.2f}"])
    title = "sharded, loaded on another number of processes"
    yield Table(title, [rows[0], *sorted(rows[1:], key=lambda row: int(row[0]))])
    if "recovery" in entry:
        yield _recovery_table(entry["recovery"])


def _recovery_table(entry: Results) -> Table:
    title = f"sharded, a rank killed, {entry['state_mb']:,} MB, seconds"
    names = {
        "process": "restarted", "imports": "imports", "group": "process group",
        "model": "model", "load": "resume", "step": "first step",
    }  # fmt: skip
    rows = [["processes", "way", *names.values(), "whole"]]
    for way, by_size in entry["rounds"].items():
        for size, rounds in by_size.items():
            parts = [median(one[name] for one in rounds) for name in names]
            whole = median(sum(one.values()) for one in rounds)
            rows.append([str(size), way, *(f"{one:.2f}" for one in (*parts, whole))])
    return Table(title, [rows[0], *sorted(rows[1:], key=lambda row: int(row[0]))])


def _ratio(rounds: list[float], base: list[float]) -> float:
    return median(ours / theirs for ours, theirs in zip(rounds, base, strict=True))

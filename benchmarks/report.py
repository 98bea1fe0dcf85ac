"""Results as aligned text, as a list of targets, and as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import (
    data,
    long_history,
    remotes,
    report_history,
    report_hooks,
    report_loader,
    report_scale,
    report_sharded,
    small_files,
    values,
)
from benchmarks.children import QUIET_SHARE
from benchmarks.consistency import section as consistency
from benchmarks.tables import MIB, Table, Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Results = dict[str, Any]
    Rows = list[list[str]]

ABSENT = "not installed"
_RIVALS = ("dvc", "git-lfs", "oxen")
_STARTUP_LIMITS = {
    "mvc --help": 2.5,
    "mvc status": 1.6,
    "mvc log": 1.6,
    "mvc commit, after add": 2,
}
_SAVE = "safetensors save_file + fsync"


def list_targets(results: Results) -> list[Target]:
    """Return every target with its figure, None where its section did not run."""
    return list(_list_targets(results))


def _list_targets(results: Results) -> Iterator[Target]:
    sweep = results.get("sweep", {})
    record, restore = sweep.get("record", {}), sweep.get("restore", {})
    rivals = [name for name in _RIVALS if name in record]
    fastest = min(rivals, key=lambda name: record[name]["durable_seconds"], default=None)
    yield Target(
        f"add + commit, whole process, against {fastest or 'the fastest of ' + ', '.join(_RIVALS)}",
        0.4,
        _ratio(record, "mvc", fastest, "durable_seconds"),
        "times",
    )
    yield Target(
        "add + commit, whole process, against borg",
        0.75,
        _ratio(record, "mvc", "borg", "durable_seconds"),
        "times",
    )
    medians = results.get("inprocess", {})
    yield Target(
        f"add + commit in process, against {_SAVE}",
        1.2,
        medians["mvc add + commit"]["seconds"] / medians[_SAVE]["seconds"] if medians else None,
        "times",
    )
    for name, read in results.get("reads", {}).items():
        size = f"{read['size_bytes'] / MIB:.2f} MiB"
        yield Target(
            f"one tensor of {size} ({name}), warm, against safetensors",
            2.0,
            read["mvc"] / read["safetensors"],
            "times",
        )
    yield Target(
        "checkout, whole process, against git-lfs",
        1.0,
        _ratio(restore, "mvc", "git-lfs", "durable_seconds"),
        "times",
    )
    yield Target(
        "checkout, whole process, against cp + sync",
        1.5,
        _ratio(restore, "mvc", "cp + sync", "durable_seconds"),
        "times",
    )
    ratios = results.get("ratio", {})
    yield Target("bf16, stored of raw", 0.672, ratios.get("bf16"))
    yield Target("fp32, stored of raw", 0.835, ratios.get("fp32"))
    again = results.get("recommit", {}).get("bytes_outside_git_objects")
    yield Target("re-commit of identical files, outside Git objects", 4096, again, "B")
    for name, entry in results.get("memory", {"all": None}).items():
        verbs = {} if entry is None else entry["verbs"]
        peak = max((cost["peak_bytes"] for cost in verbs.values()), default=None)
        size = "" if entry is None else f" ({entry['bytes'] / 1e9:.1f} GB)"
        yield Target(f"peak memory, {name}{size}", 400, peak and peak / MIB, "MiB")
    status = results.get("status", {})
    opened = len(status["data_files_opened"]) if status else None
    yield Target("status, data files opened", 0, opened)
    yield from small_files.list_targets(results)
    diff = results.get("diff", {"tensors": 40_000, "chunks": 300_000, "seconds": {}})
    yield Target(
        f"diff --name-only, {diff['tensors']:,} tensors, {diff['chunks']:,} chunks",
        1.5,
        diff["seconds"].get("diff --name-only a b"),
        "s",
    )
    yield from values.list_targets(results)
    for dtype in ("BF16", "F32"):
        cost = results.get("health", {}).get(dtype, {}).get("ratio")
        name = f"storing {dtype} with its health measured, processor time, against without"
        yield Target(name, 1.03, cost, "times")
    startup = results.get("startup", {}).get("ratios", {})
    for name, limit in _STARTUP_LIMITS.items():
        yield Target(f"{name} against import rich.console", limit, startup.get(name), "times")
    for section in (
        report_history,
        remotes,
        report_hooks,
        report_sharded,
        report_scale,
        consistency,
        data,
        report_loader,
    ):
        yield from section.list_targets(results)


def _ratio(costs: Results, ours: str, theirs: str | None, field: str) -> float | None:
    if ours not in costs or theirs not in costs:
        return None
    return float(costs[ours][field] / costs[theirs][field])


def list_tables(results: Results) -> list[Table]:
    """Return the tables of the sections that ran."""
    builders = {
        "sweep": _sweep_tables,
        "inprocess": _inprocess_table,
        "ratio": _ratio_table,
        "memory": _memory_table,
        "status": _lookup_table,
        "merge": _merge_table,
        "small_files": small_files.small_file_table,
        "values": values.value_tables,
        "versions": report_history.version_tables,
        "training": report_history.training_tables,
        "upkeep": report_history.upkeep_tables,
        "commits": long_history.long_tables,
        "remotes": remotes.remote_tables,
        "hooks": report_hooks.hook_tables,
        "sharded": report_sharded.sharded_tables,
        "scale": report_scale.scale_tables,
        "consistency": consistency.consistency_tables,
        "data": data.data_tables,
        "loader": report_loader.loader_tables,
    }
    return [
        table for name, build in builders.items() if name in results for table in build(results)
    ]


def _sweep_tables(results: Results) -> Iterator[Table]:
    sweep = results["sweep"]
    titles = ("record the base: add + commit", "record"), ("restore the base: checkout", "restore")
    for title, key in titles:
        rows = [["tool", "process s", "on disk s", "cpu s", "peak MiB", "rounds s"]]
        for name, cost in sorted(sweep[key].items(), key=lambda item: item[1]["durable_seconds"]):
            rounds = " ".join(map(_round_cell, cost["rounds"]))
            rows.append([name, *_cost_cells(cost), rounds])
        missing = [name for name, version in results["peers"].items() if version == ABSENT]
        rows += [[name, ABSENT, "", "", "", ""] for name in missing]
        yield Table(title, rows)
    yield Table("bytes stored, MiB", list(_stored_rows(sweep)))
    rows = [["tool", *list(sweep["raw_bytes"])[1:]]]
    for name, costs in sweep["later_versions"].items():
        if name in sweep["stored_bytes"]:
            rows.append([name, *(f"{cost['durable_seconds']:.2f}" for cost in costs.values())])
    yield Table("record a later version, s on disk (once)", rows)


def _round_cell(cost: dict[str, float]) -> str:
    """Return one round's time; brackets where the machine was busy with something else."""
    text = f"{cost['durable_seconds']:.2f}"
    return text if cost["others_share"] < QUIET_SHARE else f"({text})"


def _cost_cells(cost: dict[str, float]) -> list[str]:
    return [
        f"{cost['seconds']:.2f}",
        f"{cost['durable_seconds']:.2f}",
        f"{cost['cpu_seconds']:.2f}",
        f"{cost['peak_bytes'] / MIB:.0f}",
    ]


def _stored_rows(sweep: Results) -> Iterator[list[str]]:
    raw = sweep["raw_bytes"]
    yield ["tool", *raw, "total", "of raw"]
    whole = sum(raw.values())
    for name, added in [("raw", raw), *sweep["stored_bytes"].items()]:
        total = sum(added.values())
        cells = [f"{added.get(version, 0) / MIB:.1f}" for version in raw]
        yield [name, *cells, f"{total / MIB:.1f}", f"{total / whole:.3f}"]


def _inprocess_table(results: Results) -> Iterator[Table]:
    rows = [["way", "s", f"of {_SAVE}", "rounds s"]]
    medians = results["inprocess"]
    for name, entry in sorted(medians.items(), key=lambda item: item[1]["seconds"]):
        rounds = " ".join(
            f"{seconds:.2f}" if others < QUIET_SHARE else f"({seconds:.2f})"
            for seconds, others in entry["rounds"]
        )
        share = entry["seconds"] / medians[_SAVE]["seconds"]
        rows.append([name, f"{entry['seconds']:.2f}", f"{share:.2f}", rounds])
    yield Table("save from a running process", rows)


def _ratio_table(results: Results) -> Iterator[Table]:
    rows = [["file", "stored of raw"]]
    rows += [[name, f"{ratio:.4f}"] for name, ratio in results["ratio"].items()]
    again = results.get("recommit", {})
    rows += [[f"re-commit, {name.replace('_', ' ')}", str(size)] for name, size in again.items()]
    yield Table("size", rows)


def _memory_table(results: Results) -> Iterator[Table]:
    rows = [["file", "verb", "process s", "on disk s", "cpu s", "peak MiB"]]
    for name, entry in results["memory"].items():
        rows += [[name, verb, *_cost_cells(cost)] for verb, cost in entry["verbs"].items()]
    yield Table("peak memory (ru_maxrss of the process)", rows)


def _lookup_table(results: Results) -> Iterator[Table]:
    rows = [["command", "s", "note"]]
    status = results["status"]
    note = (
        f"{len(status['data_files_opened'])} data files opened; {status['read_bytes']:,} bytes read "
        f"more than for a repository of one small file; model of {status['model_bytes']:,} bytes"
    )
    rows.append(["status, nothing changed", f"{status['seconds']:.2f}", note])
    for key, what in (("diff", "tensors"), ("log", "commits"), ("blame", "commits")):
        for name, seconds in results.get(key, {}).get("seconds", {}).items():
            peak = results[key]["peak_bytes"][name] / MIB
            rows.append([name, f"{seconds:.2f}", f"{results[key][what]:,} {what}, {peak:.0f} MiB"])
        if key == "log" and "log" in results:
            rows[-1][2] += f", {results['log']['read_bytes_per_commit']:.0f} bytes read per commit"
    for name, seconds in results.get("startup", {}).get("seconds", {}).items():
        rows.append([name, f"{seconds:.3f}", "median"])
    yield Table("commands that read no tensor", rows)


def _merge_table(results: Results) -> Iterator[Table]:
    found = results.get("merge")
    if found is None:
        return
    rows = [["method", "mvc s", "torch s", "mvc MiB", "torch MiB", "time", "memory"]]
    for method, ways in found["ways"].items():
        ours, theirs = ways["mvc"], ways["torch"]
        rows.append([
            method, f"{ours['seconds']:.1f}", f"{theirs['seconds']:.1f}",
            f"{ours['peak_bytes'] / MIB:.0f}", f"{theirs['peak_bytes'] / MIB:.0f}",
            f"{ours['seconds'] / theirs['seconds']:.2f}", f"{ours['peak_bytes'] / theirs['peak_bytes']:.2f}",
        ])  # fmt: skip
    yield Table(f"merging two models of {found['model_bytes']:,} bytes", rows)


def target_table(results: Results) -> Table:
    """Return the targets as a table."""
    rows = [["target", "at most", "measured", ""]]
    for target in list_targets(results):
        measured = "-" if target.measured is None else _figure(target.measured, target.unit)
        rows.append([target.name, _figure(target.limit, target.unit), measured, target.verdict])
    return Table("targets", rows)


def _figure(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3f}"
    return f"{text} {unit}".rstrip()


def describe(results: Results) -> list[str]:
    """Return lines on where, with what and on which data."""
    machine, packages = results["machine"], results["packages"]
    peers = ", ".join(f"{name}: {text}" for name, text in results.get("peers", {}).items())
    used = ", ".join(f"{name} {version}" for name, version in packages.items())
    place = (
        f"{machine['memory_bytes'] / 2**30:.0f} GiB, {machine['system']}, {machine['file_system']}"
    )
    return [
        f"machine: {machine['processor']}, {machine['cores']} cores, {place}",
        f"date {machine['date']}, commit {results['commit']}, Python {machine['python']}, {used}",
        f"peers: {peers or 'none'}",
        f"donor of the weights: {results.get('donor', 'none')}",
        f"training states: {results.get('training', {}).get('note', 'none')}",
        f"load before and after: {machine['load_before']}, {results.get('load_after')}",
    ]


def as_text(results: Results) -> str:
    """Return everything as text for a terminal."""
    tables = [*list_tables(results), target_table(results)]
    parts = ["\n".join([table.title, *_aligned(table.rows)]) for table in tables]
    return "\n\n".join(["\n".join(describe(results)), *parts])


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *rest = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(_pad(cell, width) for cell, width in rest)]
        yield f"  {'  '.join(cells)}".rstrip()


def _pad(cell: str, width: int) -> str:
    is_number = cell[:1].isdigit() and " " not in cell
    return cell.rjust(width) if is_number else cell.ljust(width)


def as_markdown(results: Results) -> str:
    """Return everything as Markdown, to be pasted into docs/performance.md and its log."""
    parts = ["\n".join(f"- {line}" for line in describe(results))]
    for table in [target_table(results), *list_tables(results)]:
        head, *body = [f"| {' | '.join(row)} |" for row in table.rows]
        rule = "|" + " --- |" * len(table.rows[0])
        parts.append(
            "\n".join([f"### {table.title[:1].upper()}{table.title[1:]}", "", head, rule, *body])
        )
    return "\n\n".join(parts) + "\n"

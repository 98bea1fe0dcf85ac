"""Targets and tables of what makes long histories cheap: deltas, repack, gc, prune.

Bytes and times stand in tables of their own: bytes are the same in every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.abilities import NOT_YET
from benchmarks.children import QUIET_SHARE
from benchmarks.file_codecs import ZIPNN
from benchmarks.stopwatch import middle_ratio, middle_seconds
from benchmarks.tables import MIB, Table, Target
from benchmarks.versions import DEFAULT, INSISTING, PLAIN, REPACKED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Results = dict[str, Any]
    Rows = list[list[str]]

_WAYS = (PLAIN.name, DEFAULT.name, INSISTING.name)
_STORED_LIMITS = {PLAIN.name: 0.42, INSISTING.name: 0.25, REPACKED: 0.23}
_SERIES = {"versions": "five versions", "gentle": "five versions, the 4th moved by 2 %"}
_DEFAULT_LIMITS = {"versions": 0.30, "gentle": 0.24}
_SLOWER_LIMIT = 1.6
_DEEP_LIMIT = 2.5


def list_targets(results: Results) -> Iterator[Target]:
    """Yield every target with its figure, None where it was not measured."""
    for key, title in _SERIES.items():
        series = results.get(key, {})
        for way, limit in {**_STORED_LIMITS, DEFAULT.name: _DEFAULT_LIMITS[key]}.items():
            yield Target(f"{title}, {way}, stored of raw", limit, _stored_share(series, way))
        slower = list(_slower(series, DEFAULT.name).values())
        yield Target(
            f"{title}, add + commit, default against deltas off, slowest of the later versions",
            _SLOWER_LIMIT,
            max(slower[1:], default=None),  # the first has nothing to differ from
            "times",
        )
    runs = results.get("training", {}).get("runs", {"all": {}})
    for title, run in runs.items():
        yield Target(
            f"commit_state, default against deltas off, states {title}",
            _SLOWER_LIMIT,
            _commit_ratio(run, DEFAULT.name),
            "times",
        )
        for way in (INSISTING.name, REPACKED):
            yield Target(
                f"load of the slowest commit, {way} against deltas off, states {title}",
                _DEEP_LIMIT,
                max(_load_ratios(run, way), default=None),
                "times",
            )


def _stored_bytes(series: Results) -> dict[str, int]:
    found = {way: sum(sizes.values()) for way, sizes in series.get("stored_bytes", {}).items()}
    if "repacked_bytes" in series:
        found[REPACKED] = series["repacked_bytes"]
    return found


def _stored_share(series: Results, way: str) -> float | None:
    stored = _stored_bytes(series)
    return stored[way] / sum(series["raw_bytes"].values()) if way in stored else None


def _slower(series: Results, way: str) -> dict[str, float]:
    """Return version → how many times longer it took that way than without deltas."""
    record = series.get("record", {})
    if way not in record:
        return {}
    return {
        version: middle_ratio(_rounds(cost), _rounds(record[PLAIN.name][version]))
        for version, cost in record[way].items()
    }


def _rounds(cost: Results) -> list[tuple[float, float]]:
    return [(one["durable_seconds"], one["others_share"]) for one in cost["rounds"]]


def _commit_ratio(run: Results, way: str) -> float | None:
    """Return the median quotient of all commits but the first, which has nothing to differ from."""
    commits = run.get("commit", {})
    return middle_ratio(commits[way][1:], commits[PLAIN.name][1:]) if way in commits else None


def _load_ratios(run: Results, way: str) -> list[float]:
    """Return, for every commit, how many times longer it loads than where it is stored whole."""
    loads = run.get("load", {})
    if way not in loads:
        return []
    return [
        middle_ratio(ours, whole) for ours, whole in zip(loads[way], loads[PLAIN.name], strict=True)
    ]


def version_tables(results: Results) -> Iterator[Table]:
    """Yield the tables of the five versions, and of those with a gentler fourth one."""
    for key, title in _SERIES.items():
        if key in results:
            yield from _series_tables(results[key], title)


def _series_tables(series: Results, title: str) -> Iterator[Table]:
    names, raw = list(series["raw_bytes"]), sum(series["raw_bytes"].values())
    rows: Rows = [["way", *names, "total", "of raw"]]
    known = {"raw": series["raw_bytes"], **series["stored_bytes"]}
    for way in ("raw", *_WAYS):
        if way in known:
            total = sum(known[way].values())
            cells = [f"{known[way][name] / MIB:.1f}" for name in names]
            rows.append([way, *cells, f"{total / MIB:.1f}", f"{total / raw:.3f}"])
        else:
            rows.append(_absent(way, len(rows[0])))
    if "repacked_bytes" in series:
        total = series["repacked_bytes"]
        rows.append([REPACKED, *("" for _ in names), f"{total / MIB:.1f}", f"{total / raw:.3f}"])
    else:
        rows.append(_absent(REPACKED, len(rows[0])))
    yield Table(f"{title}, bytes stored, MiB", rows)
    yield Table(f"{title}, add + commit, s on disk", list(_record_rows(series, names)))
    rows = [["way", *names]]
    for way, costs in series["restore"].items():
        rows.append([way, *(f"{costs[name]['durable_seconds']:.2f}" for name in names)])
    yield Table(f"{title}, checkout, s on disk (once)", rows)
    if "repack" in series:
        yield _repack_table(f"{title}, repack", {title: series["repack"]})


def _absent(name: str, columns: int) -> list[str]:
    return [name, NOT_YET, *("" for _ in range(columns - 2))]


def _record_rows(series: Results, names: Sequence[str]) -> Iterator[list[str]]:
    yield ["way", *names, "all"]
    for way in _WAYS:
        if way not in series["record"]:
            yield _absent(way, len(names) + 2)
            continue
        seconds = [middle_seconds(_rounds(series["record"][way][name])) for name in names]
        yield [way, *(f"{one:.2f}" for one in seconds), f"{sum(seconds):.2f}"]
    for way in (DEFAULT.name, INSISTING.name):
        times = _slower(series, way)
        if times:
            cells = [f"{times[name]:.2f}" for name in names]
            yield [f"{way}, times {PLAIN.name}", *cells, ""]


def _repack_table(title: str, costs: dict[str, Results]) -> Table:
    rows: Rows = [["history", "process s", "on disk s", "cpu s", "peak MiB"]]
    rows += [[name, *_cost_cells(cost)] for name, cost in costs.items()]
    return Table(title, rows)


def _cost_cells(cost: Results) -> list[str]:
    return [
        f"{cost['seconds']:.2f}",
        f"{cost['durable_seconds']:.2f}",
        f"{cost['cpu_seconds']:.2f}",
        f"{cost['peak_bytes'] / MIB:.0f}",
    ]


def training_tables(results: Results) -> Iterator[Table]:
    """Yield the tables of the training states."""
    training = results["training"]
    for title, run in training["runs"].items():
        yield Table(f"training states {title}, bytes", list(_size_rows(training, run)))
    rows: Rows = [["states", "way", "commit_state s", f"times {PLAIN.name}", "slowest s"]]
    for title, run in training["runs"].items():
        for way in _WAYS:
            rows.append(_commit_row(title, run, way))
    yield Table("training states, commit from memory (median of all but the first)", rows)
    rows = [["states", "way", "newest", "oldest", "random", "slowest", "slowest, times deltas off"]]
    for title, run in training["runs"].items():
        for way in (PLAIN.name, DEFAULT.name, INSISTING.name, REPACKED):
            rows.append(_load_row(title, run, way))
    yield Table("training states, load_state, s (median)", rows)
    costs = {title: run["repack"] for title, run in training["runs"].items() if "repack" in run}
    if costs:
        yield _repack_table("training states, repack", costs)


def _size_rows(training: Results, run: Results) -> Iterator[list[str]]:
    raw = run["raw_bytes"]
    yield ["way", "first commit MiB", "later commits MiB each", "later, of raw", "all, of raw"]
    listed = {f"mvc, {way}": run["bytes"].get(way) for way in _WAYS}
    for name, sizes in {"raw": raw, **listed}.items():
        yield _absent(name, 5) if sizes is None else _size_cells(name, sizes, raw)
    if "repacked_bytes" in run:
        share = f"{run['repacked_bytes'] / sum(raw):.3f}"
        each = f"{run['repacked_bytes'] / len(raw) / MIB:.2f} (mean of all)"
        yield [f"mvc, {REPACKED}", "", each, "", share]
    else:
        yield _absent(f"mvc, {REPACKED}", 5)
    for name, sizes in run["other_bytes"].items():
        yield _size_cells(name, sizes, raw)
    if training[ZIPNN] is None:
        yield [ZIPNN, "not installed", "", "", ""]


def _size_cells(name: str, sizes: list[int], raw: list[int]) -> list[str]:
    later = sizes[1:]
    return [
        name,
        f"{sizes[0] / MIB:.2f}",
        f"{sum(later) / len(later) / MIB:.2f}",
        f"{sum(later) / sum(raw[1:]):.3f}",
        f"{sum(sizes) / sum(raw):.3f}",
    ]


def _commit_row(title: str, run: Results, way: str) -> list[str]:
    if way not in run["commit"]:
        return [title, *_absent(way, 4)]
    later = run["commit"][way][1:]
    slowest = max(_quiet_seconds(later))
    ratio = _commit_ratio(run, way)
    return [title, way, f"{middle_seconds(later):.3f}", f"{ratio:.2f}", f"{slowest:.3f}"]


def _quiet_seconds(rounds: Sequence[Sequence[float]]) -> list[float]:
    quiet = [seconds for seconds, others in rounds if others < QUIET_SHARE]
    return quiet or [seconds for seconds, _ in rounds]


def _load_row(title: str, run: Results, way: str) -> list[str]:
    if way not in run["load"]:
        return [title, *_absent(way, 6)]
    seconds = [middle_seconds(rounds) for rounds in run["load"][way]]
    chosen = [seconds[-1], seconds[0], seconds[run["random"]], max(seconds)]
    return [
        title,
        way,
        *(f"{one:.3f}" for one in chosen),
        f"{max(_load_ratios(run, way)):.2f}",
    ]


def upkeep_tables(results: Results) -> Iterator[Table]:
    """Yield the tables of the commands that clean up."""
    upkeep = results["upkeep"]
    histories = upkeep["histories"]
    if not histories:
        yield Table("upkeep of a history", [["command", ""], ["gc, repack, prune", NOT_YET]])
        return
    size = f"states of {upkeep['state_bytes'] / 1e6:.1f} MB"
    heads = [f"{int(commits):,} commits" for commits in histories]
    entries = list(histories.values())
    rows: Rows = [["after", *heads]]
    rows.append(["made", *(f"{entry['made_bytes'] / MIB:.1f}" for entry in entries)])
    for name in upkeep["commands"]:
        cells = [entry["left_bytes"].get(name) for entry in entries]
        rows.append([name, *(NOT_YET if one is None else f"{one / MIB:.1f}" for one in cells)])
    yield Table(f"upkeep, bytes of the repository, MiB ({size})", rows)
    for title, field, scale, form in (
        ("upkeep, time of the whole process, s on disk", "durable_seconds", 1, ".2f"),
        ("upkeep, peak memory, MiB", "peak_bytes", MIB, ".0f"),
    ):
        rows = [["command", *heads, "growth"]]
        for name in (*upkeep["commands"], "fsck --data"):
            cells = [entry["costs"].get(name) for entry in entries]
            if None in cells:
                rows.append(_absent(name, len(heads) + 2))
                continue
            figures = [cost[field] / scale for cost in cells]
            growth = f"{figures[-1] / figures[0]:.1f} times"
            rows.append([name, *(format(one, form) for one in figures), growth])
        yield Table(title, rows)

"""Loaders of data as tables and targets."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.passes import BATCH, OURS, PLAIN
from benchmarks.stopwatch import middle_ratio, middle_seconds
from benchmarks.tables import Table, Target

if TYPE_CHECKING:
    from collections.abc import Iterator

    Results = dict[str, Any]

_LIMIT = 0.97


def find_rate(row: Results) -> float:
    """Return our samples a second as a multiple of the plain loader's."""
    return 1 / middle_ratio(row["times"][OURS], row["times"][PLAIN])


def list_targets(results: Results) -> Iterator[Target]:
    """Yield the targets: a sample may take as long as 0.97 of the plain loader's rate allows."""
    found = results.get("loader")
    if found is None:
        yield Target(
            "a sample of ConsistentDataLoader against the plain loader's", 1 / _LIMIT, None
        )
        return
    for row in [*found["passes"], *found["streams"]]:
        name = f"loader, a sample of {row['name']}, {row['workers']} workers, against the plain loader's"
        yield Target(name, 1 / _LIMIT, 1 / find_rate(row), "times")


def loader_tables(results: Results) -> Iterator[Table]:
    """Yield the tables."""
    found = results["loader"]
    for key, title in (
        ("passes", "loader, samples a second"),
        ("streams", "loader, samples a second of streams, seconds to resume at 90 % of a pass"),
    ):
        head = ["dataset", "workers", OURS, PLAIN, "mvc of plain", "by processor time"]
        rows = [[*_rate_cells(row), *_resume_cells(row, key)] for row in found[key]]
        extra = ["resume", "draw and drop"] if key == "streams" else []
        yield Table(title, [[*head, *extra], *rows])
    rows = [["samples", "workers", f"{OURS} ms", f"{PLAIN} ms", "times"]]
    for row in found["start"]:
        ours, plain = (median(row["times"][way]) for way in (OURS, PLAIN))
        cells = f"{1e3 * ours:.1f}", f"{1e3 * plain:.1f}", f"{ours / plain:.2f}"
        rows.append([f"{row['samples']:,}", str(row["workers"]), *cells])
    yield Table("loader, until the first batch", rows)
    yield _resume_table(found["resume"])


def _rate_cells(row: Results) -> list[str]:
    ours, plain = ([row["times"][way], row["cpu_s"][way]] for way in (OURS, PLAIN))
    rates = [row["samples"] / middle_seconds(times) for times, _ in (ours, plain)]
    cpu_ratio = median(two / one for one, two in zip(ours[1], plain[1], strict=True))
    cells = *(f"{rate:,.0f}" for rate in rates), f"{find_rate(row):.2f}", f"{cpu_ratio:.2f}"
    return [row["name"], str(row["workers"]), *cells]


def _resume_cells(row: Results, key: str) -> list[str]:
    if key != "streams":
        return []
    times = row.get("resume_s", {})
    return [f"{median(times[way]):.3f}" if times else "" for way in (OURS, PLAIN)]


def _resume_table(found: list[Results]) -> Table:
    rows = [["way", "workers", "ms", "of draw and drop"]]
    for row in found:
        *_, base = row["times"].values()
        for way, times in row["times"].items():
            ratio = median(one / other for one, other in zip(times, base, strict=True))
            rows.append([way, str(row["workers"]), f"{1e3 * median(times):.1f}", f"{ratio:.4f}"])
    return Table(f"loader, resume after {found[0]['batches']:,} batches of {BATCH}", rows)

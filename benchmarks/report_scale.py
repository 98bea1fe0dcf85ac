"""What was simulated for many ranks, as tables and targets."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.tables import Table, Target

if TYPE_CHECKING:
    from collections.abc import Iterator

    Results = dict[str, Any]

_LARGEST = 10_240
_RATE = "Llama 3"


def list_targets(results: Results) -> Iterator[Target]:
    """Yield the goals at the largest size."""
    sizes = {int(ranks): one for ranks, one in results.get("scale", {}).get("sizes", {}).items()}
    entry = sizes.get(_LARGEST)
    name = f"{_LARGEST:,} ranks, simulated"
    yield Target(f"{name}: blocked by a commit", 1.0, entry and entry["blocked_s"], "s")
    worst_s = None if entry is None else max(entry["recovery_s"].values())
    yield Target(f"{name}: recovery by the slowest tier", 30.0, worst_s, "s")
    useful = None if entry is None else entry["rates"][_RATE]["share"]["useful"]
    lost = None if useful is None else 100 * (1 - useful)
    yield Target(f"{name}: time that is not training, at the rate of {_RATE}", 1.0, lost, "%")


def scale_tables(results: Results) -> Iterator[Table]:
    """Yield the tables."""
    entry = results["scale"]
    yield _part_table(entry["parts"])
    yield from _size_tables(entry)
    yield _rate_table(entry)
    rows = [["store GB/s", "commit durable s", "recovery from the store alone s"]]
    for bytes_s, one in entry["stores"].items():
        figures = (one["durable_s"], one["recovery_s"])
        rows.append([f"{float(bytes_s) / 1e9:,.0f}", *(f"{value:.1f}" for value in figures)])
    yield Table("scale, what the store makes of the largest size", rows)
    yield from _real_tables(entry)


def _part_table(parts: Results) -> Table:
    rows = [["part", "median", "5 %", "95 %", "unit", "measured"]]
    per_byte = ("copy", "hash", "encode", "decode", "write", "read")
    for name, values in parts.items():
        if name == "cores":
            continue
        scale, unit = (1e9, "ns/B") if name in per_byte else (1e3, "ms")
        scale, unit = (1.0, "of a byte") if name == "stored" else (scale, unit)
        ordered = sorted(values)
        ends = ordered[len(ordered) // 20], ordered[-1 - len(ordered) // 20]
        figures = (f"{scale * one:.4g}" for one in (median(values), *ends))
        rows.append([name, *figures, unit, f"{len(values)} times"])
    return Table(f"scale, parts measured on {parts['cores']} cores", rows)


def _size_tables(entry: Results) -> Iterator[Table]:
    sizes = entry["sizes"]
    rows = [["ranks", "blocked s", "durable s", "GB stored", "GB/s until durable"]]
    for ranks, one in sizes.items():
        gigabytes = one["stored_bytes"] / 1e9
        rate = gigabytes / one["durable_s"]
        cells = (f"{one['blocked_s']:.3f}", f"{one['durable_s']:.1f}")
        rows.append([f"{int(ranks):,}", *cells, f"{gigabytes:,.0f}", f"{rate:,.0f}"])
    yield Table(f"scale, a commit of {entry['state_bytes'] / 1e12:.1f} TB, simulated", rows)
    tiers = list(next(iter(sizes.values()))["recovery_s"])
    rows = [["ranks", *(f"{tier} s" for tier in tiers)]]
    for ranks, one in sizes.items():
        rows.append([f"{int(ranks):,}", *(f"{one['recovery_s'][tier]:.1f}" for tier in tiers)])
    yield Table("scale, from a failure to the next step, by where the state comes from", rows)
    stages = next(iter(next(iter(sizes.values()))["stages"].values()))
    rows = [["from", *(f"{stage} s" for stage in stages)]]
    for tier, one in list(sizes.values())[-1]["stages"].items():
        rows.append([tier, *(f"{value:.2f}" for value in one.values())])
    yield Table("scale, stages of a recovery of the largest size", rows)


def _rate_table(entry: Results) -> Table:
    head = ["ranks", "failures", "MTTF h", "Young s", "Daly s", "best s", "useful %"]
    rows = [[*head, "blocked %", "lost %", "recovering %"]]
    for ranks, size in entry["sizes"].items():
        for name, one in size["rates"].items():
            times = (f"{one[key]:,.0f}" for key in ("young_s", "daly_s", "best_s"))
            shares = (f"{100 * value:.2f}" for value in one["share"].values())
            cells = (f"{int(ranks):,}", name, f"{one['mttf_s'] / 3600:.1f}")
            rows.append([*cells, *times, *shares])
    return Table("scale, time that is training at the best interval, simulated", rows)


def _real_tables(entry: Results) -> Iterator[Table]:
    rows = [["processes", "what", "predicted s", "measured s", "error %"]]
    for size, found in entry["real"].items():
        rows += [[str(size), name, *_pair_cells(one)] for name, one in found.items()]
    yield Table("scale, predictions beside real runs on this machine", rows)
    head = ["processes", "latency us", "GB/s", "predicted s", "measured s", "error %"]
    rows = [head]
    for size, one in entry["gloo"].items():
        fitted = (f"{one['latency_s'] * 1e6:.0f}", f"{one['bandwidth_bytes_s'] / 1e9:.2f}")
        rows.append([str(size), *fitted, *_pair_cells(one)])
    yield Table("scale, gloo's all_reduce of 1 MiB from fits to 4 KiB and 8 MiB", rows)


def _pair_cells(pair: dict[str, float]) -> list[str]:
    predicted_s, measured_s = pair["predicted_s"], pair["measured_s"]
    error = 100 * (predicted_s / measured_s - 1)
    return [f"{predicted_s:.4f}", f"{measured_s:.4f}", f"{error:+.0f}"]

"""``diff --stats`` beside the same figures made with torch on loaded state dicts, and its arithmetic.

``python -m benchmarks.values torch OLD NEW`` and ``... arithmetic BYTES`` are the children measured here.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from benchmarks.sweep import fresh_folder
from benchmarks.tables import MIB, Table, Target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.children import Cost, Runner
    from mvc.numbers.statistics import TensorStatistics

Results = dict[str, Any]
_ROOT = Path(__file__).parent.parent
_PIECE_BYTES = 4 << 20


def measure_values(
    runner: Runner, folder: Path, mvc: Path, models: dict[str, Path], rounds: int, data_bytes: int
) -> dict[str, object]:
    """Return what comparing each model with the first costs, in turn by mvc and by torch."""
    place = fresh_folder(folder / "values")
    (old_name, old), *others = models.items()
    pairs: dict[str, object] = {}
    for name, new in others:
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(runner.measure(place, [mvc, "diff", "--stats", "--by", "kind", old, new]))
            theirs.append(_run(runner, "torch", old, new))
        paths = old.stat().st_size + new.stat().st_size
        pairs[f"{old_name} to {name}"] = {
            "bytes": paths,
            "mvc": [asdict(one) for one in ours],
            "torch": [asdict(one) for one in theirs],
        }
    # As in the process of mvc: without threads of BLAS, beside which nothing is forked.
    command = ["env", "OPENBLAS_NUM_THREADS=1", sys.executable, "-m", "benchmarks.values"]
    command += ["arithmetic", str(data_bytes)]
    rates = json.loads(runner.output(_ROOT, command))
    shutil.rmtree(place)
    return {"pairs": pairs, "arithmetic": rates}


def _run(runner: Runner, *words: str | Path) -> Cost:
    return runner.measure(_ROOT, [sys.executable, "-m", "benchmarks.values", *words])


def compare_with_torch(old: str, new: str) -> dict[str, dict[str, float]]:
    """Return name → the figures of ``diff --stats``, made the plain way on two state dicts."""
    import torch  # noqa: PLC0415
    from safetensors.torch import load_file  # noqa: PLC0415

    first, second = load_file(old), load_file(new)
    figures = {}
    for name in first.keys() & second.keys():
        a, b = first[name], second[name]
        if a.shape != b.shape or torch.equal(a, b):
            continue
        x, y = a.double().reshape(-1), b.double().reshape(-1)
        delta = (y - x).abs()
        width = {2: torch.int16, 4: torch.int32}[a.element_size()]
        places = []
        for side in (a, b):
            bits = side.view(width).reshape(-1).int()
            magnitudes = bits & (2 ** (8 * a.element_size() - 1) - 1)
            places.append(torch.where(bits < 0, -magnitudes, magnitudes))
        ulps = (places[0].long() - places[1].long()).abs()
        figures[name] = {
            "sigma": (delta.sum() / (x.abs().sum() + y.abs().sum())).item(),
            "relative_l2": (delta.norm() / x.norm()).item(),
            "cosine": (x.dot(y) / x.norm() / y.norm()).item(),
            "max": delta.max().item(),
            "max_index": delta.argmax().item(),
            "changed": (a != b).double().mean().item(),
            "ulp_50": ulps.kthvalue(len(ulps) // 2 + 1).values.item(),
            "ulp_99": ulps.kthvalue(len(ulps) * 99 // 100 + 1).values.item(),
            "ulp_max": ulps.max().item(),
            "norm_old": x.norm().item(),
            "norm_new": y.norm().item(),
            "zeros": (x == 0).sum().item() + (y == 0).sum().item(),
            "bad": (~x.isfinite()).sum().item() + (~y.isfinite()).sum().item(),
            "histogram": delta[delta > 0].log2().histc(64, -48, 16).sum().item(),
        }
    return figures


def measure_arithmetic(data_bytes: int) -> dict[str, float]:
    """Return GB/s of both sides together, on all cores, for data in memory."""
    from mvc.chunkstore.forks import compute_each  # noqa: PLC0415
    from mvc.dtypes import get_dtype  # noqa: PLC0415
    from mvc.numbers.pieces import compare_pieces  # noqa: PLC0415

    rng, dtype = np.random.default_rng(0), get_dtype("BF16")
    wide = rng.standard_normal(data_bytes // 4).astype(np.float32) * 0.02
    noise = rng.standard_normal(wide.size).astype(np.float32) * 0.0002
    old = wide.astype(ml_dtypes.bfloat16).view(np.uint8)
    sides = {
        "every element changed": wide + noise,
        "one in 25 changed": np.where(np.arange(wide.size) % 25 == 0, wide + noise, wide),
        "equal": wide,
    }
    cores, rates = os.cpu_count() or 1, {}
    for name, values in sides.items():
        new = values.astype(ml_dtypes.bfloat16).view(np.uint8)

        def compare(at: int, new: np.ndarray = new) -> TensorStatistics:
            end = at + _PIECE_BYTES
            return compare_pieces(old[at:end], dtype, new[at:end], dtype, at // 2)

        times = []
        for _ in range(5):
            began = time.perf_counter()
            pieces = range(0, old.size, _PIECE_BYTES)
            compute_each(pieces, compare, _take, size_bytes=2 * old.size, threads=cores)
            times.append(time.perf_counter() - began)
        rates[name] = 2 * old.size / median(times) / 1e9
    return rates


def _take(_: int, statistics: TensorStatistics) -> int:
    return 2 * statistics.elements


def value_tables(results: Results) -> Iterator[Table]:
    """Yield the tables of this section."""
    rows = [["models", "bytes", "tool", "process s", "cpu s", "GB/s", "peak MiB"]]
    for name, pair in results["values"]["pairs"].items():
        for tool in ("mvc", "torch"):
            seconds, cpu = (_middle(pair[tool], key) for key in ("seconds", "cpu_seconds"))
            rate, peak = pair["bytes"] / seconds / 1e9, _middle(pair[tool], "peak_bytes") / MIB
            cells = [f"{seconds:.2f}", f"{cpu:.2f}", f"{rate:.2f}", f"{peak:.0f}"]
            rows.append([name, f"{pair['bytes']:,}", tool, *cells])
    yield Table("diff --stats beside torch on two state dicts, the same figures", rows)
    rates = results["values"]["arithmetic"].items()
    yield Table(
        "arithmetic of diff --stats, bf16 in memory, all cores",
        [["data", "GB/s of both sides"], *([name, f"{rate:.2f}"] for name, rate in rates)],
    )


def list_targets(results: Results) -> Iterator[Target]:
    """Yield the promises of this section."""
    section = results.get("values")
    pairs = [] if section is None else list(section["pairs"].values())
    for field, what, limit in (("seconds", "time", 0.5), ("peak_bytes", "peak memory", 0.5)):
        ratios = [_middle(one["mvc"], field) / _middle(one["torch"], field) for one in pairs]
        name = f"diff --stats against torch on loaded state dicts, {what}"
        yield Target(name, limit, max(ratios, default=None), "times")
    rates = {} if section is None else section["arithmetic"]
    slowest = min(rates.values(), default=None)
    yield Target(
        "diff --stats, arithmetic per GB of bf16, both sides", 0.67, slowest and 1 / slowest, "s"
    )


def _middle(costs: list[dict[str, float]], field: str) -> float:
    return median(cost[field] for cost in costs)


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    found = compare_with_torch(*rest) if kind == "torch" else measure_arithmetic(int(rest[0]))
    print(json.dumps(found))

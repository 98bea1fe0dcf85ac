"""The section ``data``: a map of shards beside ``sha256sum``, alone and on all cores, and DVC."""

from __future__ import annotations

import os
import shutil
import subprocess
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.stopwatch import middle_ratio, take_time
from benchmarks.tables import Table, Target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SHARDS = 16
_OURS, _ALL_CORES = "mvc data add", "sha256sum, all cores"
_OPENSSL = "openssl dgst -sha256, all cores"


def measure_data(folder: Path, mvc: str, *, rounds: int, is_quick: bool) -> dict[str, Any]:
    """Return what it takes to hash the same shards in the page cache, round by round side by side."""
    work = folder / "data"
    shutil.rmtree(work, ignore_errors=True)
    (work / "train").mkdir(parents=True)
    size_bytes = (1 if is_quick else 128) << 20
    for number in range(_SHARDS):
        (work / "train" / f"part-{number:02d}.bin").write_bytes(os.urandom(size_bytes))
    cores = len(os.sched_getaffinity(0))
    ways = {
        _OURS: f"rm -f .mvc/shards.db *.shards; {mvc} data add train",
        f"{_OURS}, again": f"{mvc} data add train",
        "sha256sum": "sha256sum train/*",
        _ALL_CORES: f"ls train/* | xargs -P {cores} -n 1 sha256sum",
    }
    if shutil.which("openssl"):  # coreutils may be built without the instructions for SHA-256
        ways[_OPENSSL] = f"ls train/* | xargs -P {cores} -n 1 openssl dgst -sha256"
    if shutil.which("dvc"):
        ways["dvc add (MD5, copies)"] = (
            "rm -rf .dvc train.dvc; dvc init --no-scm -f; dvc add train; rm -rf .dvc/cache"
        )
    _run(f"{mvc} init", work)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, command in ways.items():
            times[name].append(take_time(lambda command=command: _run(command, work)))
    shutil.rmtree(work)
    return {"bytes": _SHARDS * size_bytes, "cores": cores, "times": times}


def _run(command: str, folder: Path) -> None:
    subprocess.run(["bash", "-ec", command], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def list_targets(results: dict[str, Any]) -> Iterator[Target]:
    """Yield the target: as fast as a program that does nothing but hash, on all cores."""
    times = results.get("data", {}).get("times", {})
    base = times.get(_OPENSSL, times.get(_ALL_CORES))
    ratio = None if base is None else middle_ratio(times[_OURS], base)
    yield Target("mvc data add against openssl dgst -sha256 on all cores", 1.25, ratio, "times")


def data_tables(results: dict[str, Any]) -> Iterator[Table]:
    """Yield the table."""
    found = results["data"]
    size = found["bytes"]
    rows = [["", "s", "MB/s", "against sha256sum on all cores"]]
    for name, rounds in found["times"].items():
        seconds = median(one[0] for one in rounds)
        ratio = middle_ratio(rounds, found["times"][_ALL_CORES])
        rows.append([name, f"{seconds:.2f}", f"{size / 1e6 / seconds:,.0f}", f"{ratio:.2f}"])
    title = (
        f"data, {_SHARDS} shards, {size / 1e6:,.0f} MB in the page cache, {found['cores']} cores"
    )
    yield Table(title, rows)

"""A run of thousands of small commits: what each costs, early and late, and in how many files they lie.

``python -m benchmarks.long_history FOLDER COMMITS`` makes the history in one process, as a training run
would: states of 640 KB of which one of eight tensors changes. It prints what it measured as JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import mvc
from benchmarks.sweep import fresh_folder
from benchmarks.tables import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.children import Runner

COMMANDS: dict[str, tuple[str, ...]] = {
    "log -1": ("log", "-n", "1"),
    "status": ("status",),
    "commit": ("commit", "--allow-empty", "-m", "more"),
    "fsck": ("fsck",),
    "gc --dry-run": ("gc", "--dry-run"),
    "repack": ("repack",),
    "repack, nothing to do": ("repack",),
}
_TENSORS = 8
_VALUES = 20_000
_WINDOWS = 5


def measure_long(
    runner: Runner, folder: Path, program: Path, commits: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return what commits cost as the history grows, and then what the commands cost."""
    say(f"making a history of {commits:,} commits")
    place = fresh_folder(folder / "commits")
    root = Path(__file__).parent.parent
    child: list[str | Path] = [sys.executable, "-m", "benchmarks.long_history", place, str(commits)]
    windows = json.loads(runner.output(root, child))
    costs = {
        name: asdict(runner.measure(place, [program, *words])) for name, words in COMMANDS.items()
    }
    left = count_files(place / ".mvc")
    fresh_folder(place)
    return {"commits": commits, "windows": windows, "costs": costs, "files_after": left}


def count_files(folder: Path) -> int:
    """Return how many files lie below a folder."""
    return sum(path.is_file() for path in folder.rglob("*"))


def make(folder: Path, commits: int) -> list[dict[str, float]]:
    """Make the history; return what commits cost in each of its parts, gathering included."""
    repo = mvc.Repo.init(folder)
    rng = np.random.default_rng(0)
    state = {f"layer.{n}": rng.standard_normal(_VALUES, np.float32) for n in range(_TENSORS)}
    windows, times, busy_s = list[dict[str, float]](), list[float](), time.process_time()
    for step in range(commits):
        state[f"layer.{step % _TENSORS}"] = rng.standard_normal(_VALUES, np.float32)
        began_s = time.perf_counter()
        repo.commit_state({"model": state, "step": step}, message=f"step {step}", step=step)
        times.append(time.perf_counter() - began_s)
        if len(times) == max(1, commits // _WINDOWS):
            cpu_s = (time.process_time() - busy_s) / len(times)
            files = count_files(folder / ".mvc")
            windows.append(
                {
                    "commits": step + 1,
                    "median_s": statistics.median(times),
                    "longest_s": max(times),
                    "cpu_s": cpu_s,
                    "files": files,
                }
            )
            times, busy_s = [], time.process_time()
    return windows


def long_tables(results: dict[str, Any]) -> Iterator[Table]:
    """Yield the tables of a long history."""
    long = results["commits"]
    rows = [["up to commit", "median s", "longest s", "cpu s each", "files"]]
    rows += [
        [
            f"{one['commits']:,}",
            *(f"{one[name]:.3f}" for name in ("median_s", "longest_s", "cpu_s")),
            f"{one['files']:,}",
        ]
        for one in long["windows"]
    ]
    yield Table("commit_state of 640 KB as a history grows", rows)
    rows = [["command", "process s", "cpu s"]]
    rows += [
        [name, f"{cost['seconds']:.2f}", f"{cost['cpu_seconds']:.2f}"]
        for name, cost in long["costs"].items()
    ]
    yield Table(
        f"after {long['commits']:,} commits; {long['files_after']:,} files at the end", rows
    )


if __name__ == "__main__":
    print(json.dumps(make(Path(sys.argv[1]), int(sys.argv[2]))))

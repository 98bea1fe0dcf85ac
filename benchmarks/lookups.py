"""Commands that must not read tensors: status, diff, log, blame, help."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.peers import MODEL
from benchmarks.sweep import fresh_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.children import Runner

    Command = list[str | Path]

_WATCH_OPENS = """
import json, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
import mvc
status = mvc.Repo.open(".").status()
json.dump(opened, sys.stdout)
"""
_CLOCK_TICK_S = 0.05


def measure_status(runner: Runner, folder: Path, mvc: Path, model: Path) -> dict[str, object]:
    """Return what ``status`` reads where nothing changed.

    Two methods: Python's audit events of a process that calls ``Repo.status`` name every file it
    opens, so the model and every pack must not be among them; and the kernel counts the bytes
    that the whole ``mvc status`` process reads, here and in a repository of one small file.
    """
    place, small = fresh_folder(folder / "status"), fresh_folder(folder / "small")
    os.link(model, place / MODEL)
    (small / MODEL).write_bytes(b"small")
    time.sleep(_CLOCK_TICK_S)  # else the file may be as young as the index, and "racy" for Git
    for where in (place, small):
        runner.run(where, [mvc, "init"], [mvc, "add", MODEL], [mvc, "commit", "-m", "base"])
    opened = json.loads(runner.output(place, [sys.executable, "-c", _WATCH_OPENS]))
    data = [path for path in opened if path.endswith(MODEL) or "/chunks/" in path]
    status = runner.measure(place, [mvc, "status"])
    nothing = runner.measure(small, [mvc, "status"])
    fresh_folder(place)
    fresh_folder(small)
    return {
        "model_bytes": model.stat().st_size,
        "data_files_opened": data,
        "read_bytes": max(0, status.read_bytes - nothing.read_bytes),
        "seconds": status.seconds,
    }


def measure_diff(runner: Runner, folder: Path, mvc: Path, tensors: int) -> dict[str, object]:
    """Return seconds of ``diff`` over two versions of a checkpoint with very many tensors."""
    place = _make(runner, folder, "wide", tensors)
    commands: dict[str, Command] = {
        "diff --name-only a b": [mvc, "diff", "--name-only", "a", "b"],
        "diff a b (a tenth changed)": [mvc, "diff", "a", "b"],
        "diff a c (all changed)": [mvc, "diff", "a", "c"],
        "diff --json a c": [mvc, "diff", "--json", "a", "c"],
    }
    costs = {name: runner.measure(place, command) for name, command in commands.items()}
    fresh_folder(folder / "wide")
    return {
        "tensors": tensors,
        "chunks": sum(7 + number % 2 for number in range(tensors)),
        "seconds": {name: cost.seconds for name, cost in costs.items()},
        "peak_bytes": {name: cost.peak_bytes for name, cost in costs.items()},
    }


def measure_log(runner: Runner, folder: Path, mvc: Path, commits: int) -> dict[str, object]:
    """Return seconds of ``log`` over many commits, and what it reads per commit."""
    place = _make(runner, folder, "long", commits)
    commands: dict[str, Command] = {
        "log --oneline": [mvc, "log", "--oneline"],
        "log --json": [mvc, "log", "--json"],
        "log -n 10": [mvc, "log", "-n", "10"],
        "log --oneline main@17": [mvc, "log", "--oneline", "main@17"],
    }
    costs = {name: runner.measure(place, command) for name, command in commands.items()}
    nothing = runner.measure(place, [mvc, "--help"])
    read = max(0, costs["log --oneline"].read_bytes - nothing.read_bytes)
    manifest = sorted(
        path.stat().st_size for path in (place / ".mvc" / "objects").rglob("*") if path.is_file()
    )
    fresh_folder(folder / "long")
    return {
        "commits": commits,
        "seconds": {name: cost.seconds for name, cost in costs.items()},
        "peak_bytes": {name: cost.peak_bytes for name, cost in costs.items()},
        "read_bytes_per_commit": read / commits,
        "manifest_bytes": manifest[-1],
    }


def measure_blame(runner: Runner, folder: Path, mvc: Path, commits: int) -> dict[str, object]:
    """Return seconds of what looks through all of a history: its tensors, or its metrics."""
    place = _make(runner, folder, "blamed", commits)
    tensor, half = "model.layers.7.block.0.weight", f"{3 - 0.5:.1f}"
    commands: dict[str, Command] = {
        "blame": [mvc, "blame"],
        "blame of one module": [mvc, "blame", "model.layers.7"],
        "bisect start --tensors": [
            mvc, "bisect", "start", "--no-checkout", "--tensors", tensor, "HEAD", "main@0",
        ],
        "bisect --metric": [mvc, "bisect", "--metric", "loss", "--below", half],
        "log --plot": [mvc, "log", "--metric", "loss", "--plot"],
    }  # fmt: skip
    costs = {name: runner.measure(place, command) for name, command in commands.items()}
    fresh_folder(folder / "blamed")
    return {
        "commits": commits,
        "seconds": {name: cost.seconds for name, cost in costs.items()},
        "peak_bytes": {name: cost.peak_bytes for name, cost in costs.items()},
    }


def _make(runner: Runner, folder: Path, kind: str, number: int) -> Path:
    place = fresh_folder(folder / kind)
    root = Path(__file__).parent.parent
    runner.run(root, [sys.executable, "-m", "benchmarks.synthetic", kind, place, str(number)])
    return place


def measure_startup(runner: Runner, folder: Path, mvc: Path, rounds: int) -> dict[str, object]:
    """Return medians of start-up times, interleaved, and as ratios to ``import rich.console``."""
    place = fresh_folder(folder / "startup")
    runner.run(place, [mvc, "init"])
    commands: dict[str, Sequence[str | Path]] = {
        "import rich.console": [sys.executable, "-c", "import rich.console"],
        "mvc --help": [mvc, "--help"],
        "mvc status": [mvc, "status"],
        "mvc log": [mvc, "log", "-n", "10"],
        "mvc commit, after add": [mvc, "commit", "-m", "one more"],
        "bare python": [sys.executable, "-c", "pass"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        np.save(place / "model.npy", np.random.default_rng(number).standard_normal(2**16))
        runner.run(place, [mvc, "add", "."])
        # The commit goes first, so that the others have one to look at.
        for name in sorted(commands, key=lambda name: "commit" not in name):
            cost = runner.measure(place, list(commands[name]))
            if number:
                seconds[name].append(cost.seconds)
    medians = {name: median(values) for name, values in seconds.items()}
    ratios = {name: value / medians["import rich.console"] for name, value in medians.items()}
    return {"seconds": medians, "ratios": ratios}

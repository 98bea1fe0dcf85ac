"""Peak resident memory of add, commit and checkout, for a small and a large file."""

from __future__ import annotations

import filecmp
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from benchmarks.peers import MODEL
from benchmarks.sweep import fresh_folder

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.children import Cost, Runner


def measure_memory(
    runner: Runner, folder: Path, mvc: Path, models: dict[str, Path]
) -> dict[str, object]:
    """Return file → bytes and, for each verb, what it cost (``ru_maxrss`` of the process).

    The figure counts every resident page, the interpreter and its libraries included. Each file
    is brought back and compared.
    """
    result: dict[str, object] = {}
    for name, model in models.items():
        place = fresh_folder(folder / "memory")
        os.link(model, place / MODEL)
        runner.run(
            place,
            [mvc, "init"],
            [mvc, "commit", "--allow-empty", "-m", "start"],
            [mvc, "branch", "empty"],
        )
        costs: dict[str, Cost] = {
            "add": runner.measure(place, [mvc, "add", MODEL]),
            "commit": runner.measure(place, [mvc, "commit", "-m", "base"]),
        }
        runner.run(place, [mvc, "checkout", "empty"])
        costs["checkout"] = runner.measure(place, [mvc, "checkout", "main"])
        if not filecmp.cmp(place / MODEL, model, shallow=False):
            raise AssertionError("checkout did not bring the same bytes back")
        result[name] = {
            "bytes": model.stat().st_size,
            "verbs": {verb: asdict(cost) for verb, cost in costs.items()},
        }
        fresh_folder(folder / "memory")
    return result


def measure_recommit(runner: Runner, folder: Path, mvc: Path, model: Path) -> dict[str, int]:
    """Return bytes that a re-commit of an identical, touched file adds."""
    from benchmarks.sweep import folder_bytes  # noqa: PLC0415

    place = fresh_folder(folder / "again")
    os.link(model, place / MODEL)
    runner.run(place, [mvc, "init"], [mvc, "add", MODEL], [mvc, "commit", "-m", "base"])
    store = place / ".mvc"
    whole, outside = folder_bytes(store), folder_bytes(store, without="objects")
    (place / MODEL).touch()
    runner.run(place, [mvc, "add", MODEL], [mvc, "commit", "--allow-empty", "-m", "again"])
    added = {
        "bytes": folder_bytes(store) - whole,
        "bytes_outside_git_objects": folder_bytes(store, without="objects") - outside,
    }
    fresh_folder(folder / "again")
    return added

"""Histories of real training states: bytes per commit, commit time, load time."""

from __future__ import annotations

import json
import random
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.file_codecs import ZIPNN, find_zipnn, measure_files, measure_zipnn
from benchmarks.sweep import folder_bytes, fresh_folder
from benchmarks.training_run import TRAININGS, Run, state_path
from benchmarks.versions import PLAIN, REPACKED, list_ways, repack

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from benchmarks.children import Runner

    Command = list[str | Path]

_ROOT = Path(__file__).parent.parent
_LEAST_LOADS = 5


def measure_training(
    runner: Runner,
    folder: Path,
    mvc: Path,
    abilities: Collection[str],
    *,
    size: str,
    rounds: int,
    pythons: Sequence[Path],
    say: Callable[[str], None],
) -> dict[str, object]:
    """Return, of both runs, bytes of every commit, seconds of commits, seconds of loads.

    Args:
        runner: starts commands.
        folder: where to work; the states are made there, or found.
        mvc: the program.
        abilities: what it knows.
        size: ``full`` or ``quick``.
        rounds: how often every commit is loaded; five times at least where ``full``.
        pythons: where to look for ZipNN.
        say: told what is going on.
    """
    training = TRAININGS[size]
    states = training.folder(folder)
    say(f"training, unless its states are in {states}")
    words: Command = [sys.executable, "-m", "benchmarks.training_run", folder, size]
    note = runner.output(_ROOT, words).strip()
    zipnn = find_zipnn(runner, pythons)
    loads = rounds if size == "quick" else max(rounds, _LEAST_LOADS)
    runs: dict[str, dict[str, Any]] = {}
    for run in training.runs:
        say(f"states {run.title}")
        ask = _Child(runner, states, size, run.name, loads)
        result = _measure_mvc(ask, folder / "training", mvc, abilities)
        paths = [state_path(states, run, number) for number in range(training.commits)]
        result["raw_bytes"] = [path.stat().st_size for path in paths]
        result["other_bytes"] = measure_files(paths)
        if zipnn is not None:
            result["other_bytes"][ZIPNN] = measure_zipnn(runner, zipnn[0], paths)
        runs[run.title] = result | {"random": _pick(run, training.commits)}
    fresh_folder(folder / "training")
    return {"note": note, ZIPNN: zipnn and zipnn[1], "runs": runs}


def _pick(run: Run, commits: int) -> int:
    """Return one commit, neither first nor last where there is another; always the same."""
    return random.Random(run.name).randrange(min(1, commits - 1), max(1, commits - 1))  # noqa: S311


class _Child:
    """Asks the process that commits and loads."""

    def __init__(self, runner: Runner, states: Path, size: str, run: str, loads: int) -> None:
        self.runner = runner
        self._words: Command = [states, size, run]
        self._loads = loads

    def __call__(self, verb: str, places: dict[str, Path]) -> dict[str, Any]:
        listed = json.dumps({name: str(place) for name, place in places.items()})
        more = [listed, str(self._loads), str(self.runner.patience_s)]
        words: Command = [sys.executable, "-m", "benchmarks.training_child", verb, *self._words]
        answer: dict[str, Any] = json.loads(self.runner.output(_ROOT, [*words, *more]))
        return answer


def _measure_mvc(
    ask: _Child, folder: Path, mvc: Path, abilities: Collection[str]
) -> dict[str, Any]:
    fresh_folder(folder)
    places = {way.name: folder / f"way-{number}" for number, way in enumerate(list_ways(abilities))}
    committed = ask("commit", places)
    places = {name: places[name] for name in committed}
    result: dict[str, Any] = {
        "bytes": {name: entry["bytes"] for name, entry in committed.items()},
        "commit": {name: entry["seconds"] for name, entry in committed.items()},
    }
    if "repack" in abilities:
        places[REPACKED] = folder / "repacked"
        shutil.copytree(places[PLAIN.name], places[REPACKED], symlinks=True)
        result["repack"] = asdict(repack(ask.runner, mvc, places[REPACKED]))
        change = folder_bytes(places[REPACKED] / ".mvc") - folder_bytes(places[PLAIN.name] / ".mvc")
        result["repacked_bytes"] = sum(result["bytes"][PLAIN.name]) + change
    return result | {"load": ask("load", places)}

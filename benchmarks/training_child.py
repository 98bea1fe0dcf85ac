"""Committing and loading training states in process: ``python -m benchmarks.training_child``.

Arguments: ``commit`` or ``load``, the folder of the states, ``full`` or ``quick``, the name of the
run, a JSON object of the repositories, how often to repeat loads, and the patience. Prints JSON.

* ``commit`` gives every state to every repository (way → folder), side by side and in turning
  order, through ``Repo.commit_state``; bytes that each commit adds are counted, too.
* ``load`` loads every commit from every repository, side by side; each load opens the
  repository again, since a process that remembers its last load would be faster. What comes
  back is compared with the state, bit for bit, in the round before the first that counts, which
  also brings everything into the page cache.
"""

from __future__ import annotations

import inspect
import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import mvc
from benchmarks import launch, training_run
from benchmarks.stopwatch import take_time
from benchmarks.sweep import folder_bytes, fresh_folder
from benchmarks.versions import INSISTING, list_ways

if TYPE_CHECKING:
    from benchmarks.stopwatch import Round
    from benchmarks.training_run import Run


def commit_states(
    states: Path, run: Run, commits: int, places: dict[str, Path], patience_s: float
) -> dict[str, dict[str, list[Any]]]:
    """Return way → ``seconds`` and ``bytes`` of every commit."""
    settings = {way.name: way.setting for way in list_ways({"delta"})}
    repos: dict[str, mvc.Repo] = {}
    for name, place in places.items():
        repos[name] = mvc.Repo.init(fresh_folder(place))
        if settings[name] is not None:
            repos[name].set_config("mvc.delta", settings[name])
    found: dict[str, dict[str, list[Any]]] = {name: {"seconds": [], "bytes": []} for name in places}
    for number in range(commits):
        state = training_run.read_state(training_run.state_path(states, run, number), run, number)
        for name in list(places) if number % 2 == 0 else list(reversed(places)):
            more: Any = {"delta": True} if name == INSISTING.name else {}
            store = places[name] / ".mvc"
            before = folder_bytes(store)
            message = f"state {number}"
            step = (number + 1) * run.steps
            commit = partial(repos[name].commit_state, state, message=message, step=step, **more)
            found[name]["seconds"].append(take_time(commit, patience_s=patience_s))
            found[name]["bytes"].append(folder_bytes(store) - before)
    return found


def load_states(
    states: Path, run: Run, commits: int, places: dict[str, Path], rounds: int, patience_s: float
) -> dict[str, list[list[Round]]]:
    """Return repository → for every commit, oldest first, what each load took."""
    taken: dict[str, list[list[Round]]] = {name: [[] for _ in range(commits)] for name in places}
    for turn in range(rounds + 1):
        launch.wait_until_quiet(patience_s)
        for number in range(commits):
            for name in list(places) if turn % 2 else list(reversed(places)):
                if turn:
                    load = partial(_load, places[name], commits - 1 - number)
                    taken[name][number].append(take_time(load, synced=False))
                else:
                    _compare(states, run, number, _load(places[name], commits - 1 - number))
    return taken


def _load(place: Path, back: int) -> dict[str, Any]:
    return mvc.Repo.open(place).load_state(f"HEAD~{back}")


def _compare(states: Path, run: Run, number: int, found: dict[str, Any]) -> None:
    path = training_run.state_path(states, run, number)
    if not _is_equal(training_run.read_state(path, run, number), found):
        raise AssertionError(f"state {number} of run {run.name!r} did not come back bit-exact")


def _is_equal(left: object, right: object) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(_is_equal(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_is_equal, left, right))
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        words = left.view(torch.int32), right.view(torch.int32)
        return left.dtype == right.dtype and torch.equal(*words)
    return left == right


def has_delta_option() -> bool:
    """Whether ``commit_state`` can be told to make deltas."""
    return "delta" in inspect.signature(mvc.Repo.commit_state).parameters


def main() -> None:
    verb, states, size, name, listed, rounds, patience = sys.argv[1:]
    training = training_run.TRAININGS[size]
    run = next(run for run in training.runs if run.name == name)
    places = {way: Path(place) for way, place in json.loads(listed).items()}
    if not has_delta_option():
        places.pop(INSISTING.name, None)
    if verb == "commit":
        answer: object = commit_states(Path(states), run, training.commits, places, float(patience))
    else:
        answer = load_states(
            Path(states), run, training.commits, places, int(rounds), float(patience)
        )
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()

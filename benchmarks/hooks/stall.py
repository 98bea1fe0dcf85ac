"""How long a save makes the training stand still: ``python -m benchmarks.hooks.stall ...``.

Arguments: the folder to work in, the size of the run, the device, the rounds, the patience. Prints
JSON.

All ways save one run in one process, in an order that turns around every round, with an optimizer
step before each save, so that nothing can be saved twice. The first round is thrown away: it pays
for imports, for memory and for files that are made once. The yardsticks are copies of the state's
bytes into memory that was written to before.

On a CUDA device a second time is taken, from the save to the end of the next step, less that of a step
without a save: what is copied beside the training ends before the next ``optimizer.step``.
"""

from __future__ import annotations

import ctypes
import json
import logging
import sys
import time
import warnings
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.hooks.run import make_run
from benchmarks.hooks.ways import WAYS, leave_world, open_ways
from benchmarks.launch import sync_file_system
from benchmarks.stopwatch import take_time

if TYPE_CHECKING:
    from benchmarks.hooks.run import Run
    from benchmarks.hooks.ways import Way
    from benchmarks.stopwatch import Round

MEMMOVE = "memmove of the state, one thread"
COPY = "copy_ of the state, torch's threads"
PINNED = "copy_ of the state into pinned memory"
_WARM_STEPS = 4


class Yardstick:
    """A copy of the state's bytes and nothing else."""

    is_durable = True

    def __init__(self, run: Run, *, is_plain: bool) -> None:
        self._run, self._is_plain = run, is_plain
        pin = run.device != "cpu"
        self._memory = torch.ones(run.state_bytes // 4, pin_memory=pin)

    def save(self) -> None:
        at = 0
        for tensor in self._run.tensors():
            target = self._memory[at : at + tensor.numel()]
            if self._is_plain:
                ctypes.memmove(target.data_ptr(), tensor.data_ptr(), 4 * tensor.numel())
            else:
                target.copy_(tensor.view(-1), non_blocking=True)
            at += tensor.numel()
        settle(self._run.device)

    def finish(self) -> None:
        pass

    def count_bytes(self) -> int:
        return 0

    clear = close = finish


def settle(device: str) -> None:
    """Wait for the device."""
    if device != "cpu":
        torch.cuda.synchronize()


def list_yardsticks(run: Run) -> dict[str, Way]:
    """Return name → copy."""
    if run.device != "cpu":
        return {PINNED: Yardstick(run, is_plain=False)}
    return {MEMMOVE: Yardstick(run, is_plain=True), COPY: Yardstick(run, is_plain=False)}


def measure(
    run: Run, ways: dict[str, Way], folder: Path, rounds: int, patience_s: float
) -> dict[str, dict[str, list[Any]]]:
    """Return way → ``stall`` (rounds), ``durable`` (s), ``bytes``, ``lost`` (s) of every round."""
    found: dict[str, dict[str, list[Any]]] = {
        name: {"stall": [], "durable": [], "bytes": [], "lost": []} for name in ways
    }
    bare = _take_bare_steps(run)
    for number in range(rounds + 1):
        for name in list(ways) if number % 2 else list(reversed(ways)):
            run.step()
            settle(run.device)
            entry = _measure_one(run, ways[name], folder, patience_s, bare)
            if number:
                for key, value in entry.items():
                    found[name][key].append(value)
    return found


def _measure_one(
    run: Run, way: Way, folder: Path, patience_s: float, bare_s: float
) -> dict[str, Any]:
    stall: Round = take_time(way.save, patience_s=patience_s)
    began = time.perf_counter()
    lost_s = 0.0
    if run.device != "cpu":
        run.step()
        settle(run.device)
        lost_s = stall[0] + time.perf_counter() - began - bare_s
    way.finish()
    if not way.is_durable:
        sync_file_system(folder)
    durable_s = stall[0] + time.perf_counter() - began
    entry = {"stall": stall, "durable": durable_s, "bytes": way.count_bytes(), "lost": lost_s}
    way.clear()
    return entry


def _take_bare_steps(run: Run) -> float:
    """Return the median seconds of a step without a save."""
    taken = []
    for _ in range(_WARM_STEPS):
        began = time.perf_counter()
        run.step()
        settle(run.device)
        taken.append(time.perf_counter() - began)
    return median(taken)


def main() -> None:
    place, size, device, rounds, patience = sys.argv[1:]
    quieten()
    folder = Path(place)
    run = make_run(folder.parent, size, device)
    run.step()
    ways = open_ways(run, folder, list(WAYS))
    found = measure(run, ways | list_yardsticks(run), folder, int(rounds), float(patience))
    for way in ways.values():
        way.close()
    leave_world()
    absent = [name for name in WAYS if name not in ways]
    answer = {"state_bytes": run.state_bytes, "ways": found, "absent": absent}
    answer["has_cuda"] = torch.cuda.is_available()
    print(json.dumps(answer))


def quieten() -> None:
    """Keep frameworks from announcing things."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


if __name__ == "__main__":
    main()

"""One process of a sharded run that is measured: ``torchrun -m benchmarks.sharded.child VERB WAY FOLDER MB ROUNDS``.

``save`` measures the stall and the time until all is durable; ``load`` brings the last save back. Rank 0
prints one line of JSON.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import torch
from torch import distributed

from benchmarks.sharded.run import WAYS, Run, folder_files, load, slowest, time_memmove


def measure_saves(way: str, folder: Path, state_mb: int, rounds: int) -> dict[str, object]:
    """Return seconds of each round, and the bytes of a first and a further save."""
    run = Run(state_mb)
    run.step()
    saver = WAYS[way](run, folder)
    found: dict[str, list[float]] = {"stall": [], "durable": [], "memmove": [], "bytes": []}
    before = 0
    for number in range(rounds + 1):
        run.step()
        saver.step()
        distributed.barrier()
        copied_s, began_s = time_memmove(run), time.perf_counter()
        saver.save()
        stall_s = time.perf_counter() - began_s
        saver.wait()
        durable_s = time.perf_counter() - began_s
        distributed.barrier()
        size_bytes = sum(path.stat().st_size for path in folder_files(folder))
        figures = slowest(stall_s), slowest(durable_s), slowest(copied_s), size_bytes - before
        before = size_bytes
        if number or rounds == 0:  # the first one allocates, starts and plans
            for name, value in zip(found, figures, strict=True):
                found[name].append(value)
    saver.close()
    return {"state_bytes": sum(one.nbytes for one in run.locals()), **found}


def measure_load(way: str, folder: Path, state_mb: int, rounds: int) -> dict[str, object]:
    """Return seconds until the last save is back."""
    seconds = []
    for _ in range(rounds):
        run = Run(state_mb)
        distributed.barrier()
        began_s = time.perf_counter()
        close = load(run, folder, way)
        seconds.append(slowest(time.perf_counter() - began_s))
        close()
    return {"load": seconds}


def main() -> None:
    """Measure, and let rank 0 tell."""
    verb, way, folder, state_mb, rounds = sys.argv[1:]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    if verb == "save" and distributed.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
        Path(folder).mkdir(parents=True)
    distributed.barrier()
    measure = measure_saves if verb == "save" else measure_load
    result = measure(way, Path(folder), int(state_mb), int(rounds))
    if distributed.get_rank() == 0:
        print(json.dumps(result), flush=True)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

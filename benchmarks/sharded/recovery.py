"""A run whose last rank is killed once: ``torchrun --max-restarts 1 -m benchmarks.sharded.recovery WAY FOLDER MB``.

Each process notes in FOLDER/times-RANK-ATTEMPT.json when it came how far, in seconds since 1970.
"""

from __future__ import annotations

import time

_BEGAN_S = time.time()

import json  # noqa: E402  what is imported first is not measured
import logging  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
from torch import distributed  # noqa: E402

from benchmarks.sharded.run import WAYS, Run, load  # noqa: E402

_STEPS = 3


class Times:
    """When this process came how far."""

    def __init__(self, folder: Path) -> None:
        rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
        self._path = folder / f"times-{rank}-{attempt}.json"
        self._found = {"process": _find_start_s(), "python": _BEGAN_S}

    def note(self, name: str) -> None:
        """Note that it has come to something."""
        self._found[name] = time.time()
        self._path.write_text(json.dumps(self._found))


def _find_start_s() -> float:
    """Return when the kernel started this process."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    up_s = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - up_s + ticks / os.sysconf("SC_CLK_TCK")


def begin(run: Run, way: str, folder: Path, times: Times) -> None:
    """Save a few steps, and then take one in which the last rank is killed."""
    saver = WAYS[way](run, folder)
    for _ in range(_STEPS):
        run.step()
        saver.step()
    saver.save()
    saver.wait()
    distributed.barrier()
    if distributed.get_rank() == distributed.get_world_size() - 1:
        times.note("killed")
        os.kill(os.getpid(), signal.SIGKILL)
    run.step()
    distributed.barrier()  # waits for the one that is dead


def main() -> None:
    """Begin, or go on after the kill."""
    way, root, state_mb = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    times = Times(Path(root))
    torch.set_num_threads(1)
    times.note("imports")
    distributed.init_process_group("gloo")
    times.note("group")
    run = Run(int(state_mb))
    distributed.barrier()
    times.note("model")
    folder = Path(root, "saved")
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        begin(run, way, folder, times)
        return
    close = load(run, folder, way)
    times.note("load")
    run.step()
    distributed.barrier()
    times.note("step")
    close()


if __name__ == "__main__":
    main()

"""What saving takes of memory: ``python -m benchmarks.hooks.memory peak|growth ...``.

* ``peak FOLDER SIZE WAY``: the peak of resident memory of a training that saves three times, above that
  of the same training without a save, in this process and in all processes together (shared
  memory counted once). Each way needs a process of its own.
* ``growth FOLDER SIZE COMMITS``: resident memory of the trainer and of the writer after a quarter of
  that many commits of mvc, and after all of them.

Prints JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Self

from benchmarks.hooks.run import make_run
from benchmarks.hooks.stall import quieten
from benchmarks.hooks.ways import MvcWay, leave_world, open_ways

_SAVES = 3
_PAUSE_S = 0.05


def list_children(pid: int) -> list[int]:
    """Return the processes that a process started, and theirs."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found.append(int(path.parent.name))
    return [*found, *(more for child in found for more in list_children(child))]


def read_field(pid: int, file: str, name: str) -> int:
    """Return a size of a process in bytes; 0 where it is gone."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)


class Watch:
    """Peaks of memory within a block.

    Attributes:
        own_bytes: largest resident memory of this process.
        all_bytes: largest memory of it and all its children, as sampled, shared pages counted once.
    """

    def __init__(self) -> None:
        self.own_bytes = self.all_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on)

    def _go_on(self) -> None:
        while not self._ended.wait(_PAUSE_S):
            self.sample()

    def sample(self) -> None:
        """Look at all processes now."""
        own = os.getpid()
        now = sum(read_field(pid, "smaps_rollup", "Pss:") for pid in [own, *list_children(own)])
        self.all_bytes = max(self.all_bytes, now)

    def __enter__(self) -> Self:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.sample()
        self.own_bytes = read_field(os.getpid(), "status", "VmHWM:")


def measure_peak(folder: Path, size: str, name: str) -> dict[str, int]:
    """Return ``state_bytes``, ``own_bytes`` and ``all_bytes``, the latter above a plain training's."""
    run = make_run(folder.parent, size)
    run.step()
    with Watch() as plain:
        for _ in range(2):
            run.step()
    with Watch() as saving:
        way = open_ways(run, folder, [name])[name]
        for _ in range(_SAVES):
            run.step()
            way.save()
            run.step()
            way.finish()
            way.clear()
    way.close()
    leave_world()
    return {
        "state_bytes": run.state_bytes,
        "own_bytes": saving.own_bytes - plain.own_bytes,
        "all_bytes": saving.all_bytes - plain.all_bytes,
    }


def measure_growth(folder: Path, size: str, commits: int) -> dict[str, object]:
    """Return resident memory of trainer and writer after a quarter of the commits and at the end."""
    run = make_run(folder.parent, size)
    run.step()
    way = MvcWay(run, folder / "mvc")
    found: dict[str, list[int]] = {"trainer": [], "writer": []}
    marks = (commits // 4, commits)
    for number in range(1, commits + 1):
        run.step()
        way.save()
        way.finish()
        if number in marks:
            pids = {"trainer": [os.getpid()], "writer": list_children(os.getpid())}
            for name, ones in pids.items():
                found[name].append(sum(read_field(pid, "status", "VmRSS:") for pid in ones))
    way.close()
    return {"state_bytes": run.state_bytes, "commits": marks, "resident_bytes": found}


def main() -> None:
    verb, place, size, what = sys.argv[1:]
    quieten()
    folder = Path(place)
    if verb == "peak":
        answer: object = measure_peak(folder, size, what)
    else:
        answer = measure_growth(folder, size, int(what))
    print(json.dumps(answer))


if __name__ == "__main__":
    main()

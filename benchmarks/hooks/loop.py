"""What saving every 50 steps takes from a training's speed: ``python -m benchmarks.hooks.loop ...``.

Arguments: the folder to work in, the size of the run, the steps of a block, the blocks. Prints JSON.

One training goes on through all of it. It is cut into blocks, and ways take turns with them: a block
begins with a step, then a save, then the other steps while the save goes on beside them, and ends when
that has ended. Between two blocks everything dirty is written to the disk, outside of the times,
which is to the advantage of those that leave it to the kernel. The first block of every way is
thrown away.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.hooks.run import make_run
from benchmarks.hooks.stall import quieten
from benchmarks.hooks.ways import (
    DCP_PROCESS,
    DCP_THREAD,
    MVC,
    TORCH_SAVE,
    MvcWay,
    leave_world,
    open_ways,
)
from benchmarks.launch import sync_file_system
from mvc_hooks import skip_step

if TYPE_CHECKING:
    from benchmarks.hooks.run import Run
    from benchmarks.hooks.ways import Way

NOTHING = "no saves"
_NAMES = [TORCH_SAVE, DCP_THREAD, DCP_PROCESS]


class LoopWay(MvcWay):
    """mvc as a loop uses it: ``step`` after every step, with the loss and all detectors.

    Batches of one piece of text make a wild loss; alarms are answered with nothing, so that the
    run stays that of the other ways.
    """

    def __init__(self, run: Run, folder: Path) -> None:
        ladder = [skip_step(limit=1_000_000)]
        super().__init__(run, folder, every=None, detectors=None, ladder=ladder)

    def save(self) -> None:
        self.checkpointer.commit("block")


def run_block(run: Run, way: Way | None, steps: int) -> float:
    """Return the seconds of one block."""
    began = time.perf_counter()
    for number in range(steps):
        loss = run.step()
        if isinstance(way, LoopWay):
            way.checkpointer.step(loss=loss)
        if number == 0 and way is not None:
            way.save()
    if way is not None:
        way.finish()
    return time.perf_counter() - began


def measure(run: Run, folder: Path, steps: int, blocks: int) -> dict[str, list[float]]:
    """Return way → seconds of its blocks."""
    ways: dict[str, Way | None] = {NOTHING: None, MVC: LoopWay(run, folder / "mvc")}
    ways |= open_ways(run, folder, _NAMES)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(blocks + 1):
        for name in list(ways) if turn % 2 else list(reversed(ways)):
            way = ways[name]
            sync_file_system(folder)
            seconds = run_block(run, way, steps if turn else 2)
            if turn:
                taken[name].append(seconds)
            if way is not None:
                way.clear()
    for way in ways.values():
        if way is not None:
            way.close()
    leave_world()
    return taken


def main() -> None:
    place, size, steps, blocks = sys.argv[1:]
    quieten()
    folder = Path(place)
    run = make_run(folder.parent, size)
    taken = measure(run, folder, int(steps), int(blocks))
    answer = {"state_bytes": run.state_bytes, "steps": int(steps), "ways": taken}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()

"""Kill a training run without warning, start it again, and compare every bit.

The same run is trained twice: once in one go, and once killed with SIGKILL in the middle of a step
(nothing can catch that) and started again with the same command. Both end in the same bits: model,
optimizer, scheduler, random numbers, position in the data. Run it from the root of the project:

    python examples/resume_after_kill.py --folder kill-run
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from plain_loop import build

from mvc import Repo
from mvc_hooks import Checkpointer

STEPS, KILLED_AT = 60, 37


def train(folder: Path, killed_at: int | None) -> None:
    """Train to the end, or until the process kills itself in the middle of a step."""
    training = build(damage=range(0))
    with Checkpointer(folder, every=25, parts=training.parts) as ckpt:
        print(f"process {os.getpid()} begins at step {ckpt.step_count}", flush=True)
        for step in ckpt.steps(STEPS):
            readings = training.train_step(ckpt)
            if step == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            ckpt.step(**(readings or {}))


def start(folder: Path, killed_at: int | None = None) -> int:
    """Train in another process; return its exit status, negative if a signal ended it."""
    words = [sys.executable, __file__, "--folder", str(folder), "--child"]
    if killed_at is not None:
        words += ["--killed-at", str(killed_at)]
    return subprocess.run(words, check=False).returncode


def prove(killed: Path, whole: Path) -> None:
    """Compare the last commits of both runs, tensor by tensor."""
    ours, theirs = ({one.path: one.blob for one in Repo.open(x).ls()} for x in (killed, whole))
    assert ours == theirs, "the runs ended differently"
    print(f"both runs end in the same bits: {', '.join(sorted(ours))}")


def main() -> None:
    """Train twice and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("kill-run"))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--killed-at", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        train(options.folder, options.killed_at)
        return
    shutil.rmtree(options.folder, ignore_errors=True)
    killed, whole = options.folder / "killed", options.folder / "whole"
    assert start(killed, KILLED_AT) == -signal.SIGKILL
    assert start(killed) == 0
    assert start(whole) == 0
    prove(killed, whole)


if __name__ == "__main__":
    main()

"""Training programs that write down what each rank saw: started with any number of ranks, killed at a step.

A program is called as ``PROGRAM FOLDER STEPS ...``, and writes ``FOLDER/seen/STEP-RANK``, a list in JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_LAUNCH = (sys.executable, "-m", "torch.distributed.run", "--standalone")
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(Path(__file__).parents[1]),
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}


class SeeingRuns:
    """Runs of one program."""

    def __init__(self, program):
        self._program = program

    def train(self, folder, size, *words):
        """Run it with so many ranks to its end; return what it said."""
        done = subprocess.run(
            self._command(folder, size, words),
            capture_output=True, text=True, timeout=200, check=False, env=os.environ | _ENVIRONMENT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stderr

    def kill(self, folder, step, *words, size=1):
        """Run it with so many ranks, and kill all of them and their workers once a step is complete."""
        process = subprocess.Popen(
            self._command(folder, size, words),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env=os.environ | _ENVIRONMENT,
        )  # fmt: skip
        while not all((folder / "seen" / f"{step}-{rank}").exists() for rank in range(size)):
            assert process.poll() is None
            time.sleep(0.01)
        # The launcher gives each rank a session of its own.
        for group in [*_list_children(process.pid), process.pid] if size > 1 else [process.pid]:
            os.killpg(group, signal.SIGKILL)
        process.wait()

    def _command(self, folder, size, words):
        launch = [sys.executable] if size == 1 else [*_LAUNCH, "--nproc-per-node", str(size)]
        return [*launch, str(self._program), str(folder), *map(str, words)]


def _list_children(pid):
    return map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def list_ranks(folder, step):
    """Return the files of a step, rank after rank."""
    return sorted((folder / "seen").glob(f"{step}-*"))


def read_seen(folder, step):
    """Return what was seen in a step, rank after rank."""
    return [one for file in list_ranks(folder, step) for one in json.loads(file.read_text())]


def note_seen(folder, step, rank, seen):
    """Write down what a rank saw in a step."""
    (folder / "seen" / f"{step}-{rank}").write_text(json.dumps(seen))

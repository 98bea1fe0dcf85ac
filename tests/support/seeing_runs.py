"""Training programs that write down what each rank saw: started with any number of ranks, killed at a step.

A program is called as ``PROGRAM FOLDER STEPS ...``, and writes ``FOLDER/seen/STEP-RANK``, a list in JSON.
"""

from __future__ import annotations

import json
import os
import signal
import time

from support.programs import run_ranks, started_ranks


class SeeingRuns:
    """Runs of one program."""

    def __init__(self, program):
        self._program = program

    def train(self, folder, size, *words):
        """Run it with so many ranks to its end; return what it said."""
        done = run_ranks(self._program, size, folder, *words)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def kill(self, folder, step, *words, size=1):
        """Run it with so many ranks, and kill all of them and their workers once a step is complete."""
        with started_ranks(self._program, size, folder, *words) as ranks:
            while not all((folder / "seen" / f"{step}-{rank}").exists() for rank in range(size)):
                assert all(rank.poll() is None for rank in ranks)
                time.sleep(0.01)
            for rank in ranks:
                os.killpg(rank.pid, signal.SIGKILL)


def list_ranks(folder, step):
    """Return the files of a step, rank after rank."""
    return sorted((folder / "seen").glob(f"{step}-*"))


def read_seen(folder, step):
    """Return what was seen in a step, rank after rank."""
    return [one for file in list_ranks(folder, step) for one in json.loads(file.read_text())]


def note_seen(folder, step, rank, seen):
    """Write down what a rank saw in a step."""
    (folder / "seen" / f"{step}-{rank}").write_text(json.dumps(seen))

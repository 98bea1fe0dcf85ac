"""A run goes on with other numbers of ranks and workers, and is killed anywhere: real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mvc import Repo

pytestmark = pytest.mark.torch

PROGRAM = Path(__file__).with_name("ordered_training.py")
LAUNCH = (sys.executable, "-m", "torch.distributed.run", "--standalone")
EPOCH_STEPS = 3


def prepare(folder):
    folder.mkdir()
    Repo.init(folder / "run")
    return folder


def command(folder, size, steps, workers=0, micro=0, how="next"):
    words = [str(PROGRAM), str(folder), str(steps), str(workers), str(micro), how]
    launch = [sys.executable] if size == 1 else [*LAUNCH, "--nproc-per-node", str(size)]
    return [*launch, *words]


def train(*arguments, **options):
    environment = {
        **os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"
    }  # fmt: skip
    done = subprocess.run(
        command(*arguments, **options),
        capture_output=True, text=True, timeout=200, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr


def read(folder, step):
    """Return the samples of a step, rank after rank."""
    files = sorted((folder / "seen").glob(f"{step}-*"))
    return [row for file in files for row in json.loads(file.read_text())]


@pytest.mark.slow
def test_ranks_and_workers_change_within_epochs(tmp_path):
    plain, changing = prepare(tmp_path / "plain"), prepare(tmp_path / "changing")
    train(plain, 1, 12)
    train(changing, 2, 4, micro=4)
    train(changing, 4, 6, workers=2, how="own")
    train(changing, 3, 8, micro=3, how="own")
    told = train(changing, 1, 12, workers=2)
    assert "resumed at step 8" in told
    ranks = [len(list((changing / "seen").glob(f"{step}-*"))) for step in range(1, 13)]
    assert ranks == [2] * 4 + [4] * 2 + [3] * 2 + [1] * 4
    for step in range(1, 13):
        assert read(changing, step) == read(plain, step)
    for first in range(1, 13, EPOCH_STEPS):
        rows = [row for step in range(first, first + EPOCH_STEPS) for row in read(plain, step)]
        assert sorted(int(row[0]) for row in rows) == list(range(60))


@pytest.mark.slow
def test_a_killed_run_goes_on_in_the_same_order(tmp_path):
    plain, killed = prepare(tmp_path / "plain"), prepare(tmp_path / "killed")
    train(plain, 1, 40)
    for kill_at in (3, 10, 24):
        process = subprocess.Popen(
            command(killed, 1, 40, workers=kill_at % 2 * 2, how="own"),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        while not (killed / "seen" / f"{kill_at}-0").exists():
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    train(killed, 1, 40)
    for step in range(1, 41):
        assert read(killed, step) == read(plain, step)

"""torchrun restarts a run of which a rank was killed: real processes, and a step that hangs in C."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mvc import Repo
from support.bounds import rest_nightly

pytestmark = pytest.mark.torch

PROGRAM = Path(__file__).with_name("restarted_training.py")
_LAUNCH = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1")


@pytest.mark.slow
@pytest.mark.parametrize("size", rest_nightly([2, 4]))
def test_a_killed_rank_costs_one_restart_and_no_step_of_a_commit(tmp_path, size):
    words = [*_LAUNCH, "--nproc-per-node", str(size), str(PROGRAM), str(tmp_path)]
    # torch keeps one store for all attempts, in which gloo may find the address of the killed rank.
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert f"rank {size - 1} is gone, so this step cannot end: SIGTERM ends it" in done.stderr
    assert "resumed at step 4 from " in done.stderr
    steps = [one.annotations.step for one in Repo.open(tmp_path / "run").log("main")]
    assert steps == [6, 4, 2, 0]

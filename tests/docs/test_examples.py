"""Every example runs, top to bottom, and what it claims holds."""

import subprocess
import sys
from pathlib import Path

import pytest

from mvc import Repo

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.torch


def start(name, folder):
    command = [sys.executable, str(EXAMPLES / name), "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_plain_loop_goes_back_and_can_be_replayed(tmp_path):
    said = start("plain_loop.py", tmp_path / "run")
    assert "diverged at step 231, rolled back to step 200" in said
    repo = Repo.open(tmp_path / "run")
    assert repo.show("main").annotations.step == 400
    assert repo.show("main@250").annotations.meta["skipped_batches"] == "201-240"
    (left,) = [one.name for one in repo.branches() if one.name != "main"]
    assert left == "diverged/main/231"
    assert repo.merge_base(left, "main") == repo.resolve("main@200")
    assert "spike" in repo.show(left).info.subject
    entry = f"{EXAMPLES / 'plain_loop.py'}:build"
    words = ["verify", "--replay", "50", "--entry", entry, "main@250"]
    done = subprocess.run(
        [sys.executable, "-m", "mvc", *words],
        cwd=tmp_path / "run", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exact for 50 steps" in done.stdout


def test_a_killed_run_ends_in_the_same_bits(tmp_path):
    said = start("resume_after_kill.py", tmp_path / "run")
    assert "both runs end in the same bits" in said
    assert "begins at step 75" in said

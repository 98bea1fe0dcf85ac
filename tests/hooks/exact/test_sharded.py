"""Trainings over several processes are the same bit by bit, whatever befell them, and commit what one process would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

PROGRAM = Path(__file__).with_name("sharded_training.py")
FAST = ["fsdp-tp", "fsdp-group-added"]


def launch(folder, names, size):
    store = folder / "store"
    commands = [
        [sys.executable, str(PROGRAM), str(rank), str(size), str(store), str(folder), json.dumps(names)]
        for rank in range(size)
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(PROGRAM.parents[2])}
    ranks = [
        subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) for command in commands
    ]
    for rank, process in enumerate(ranks):
        text = process.communicate(timeout=600)[1].decode()
        assert process.returncode == 0, f"rank {rank}: {text}"
    return [json.loads((folder / f"said-{rank}.json").read_text()) for rank in range(size)]


def test_sharded_trainings_are_the_same_bit_by_bit(tmp_path):
    for said in launch(tmp_path, FAST, 2):
        assert said == {name: {} for name in FAST}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "part", "parts"), [*((2, part, 6) for part in range(6)), (4, 0, 2), (4, 1, 2)]
)
def test_every_sharded_training_is_the_same_bit_by_bit(tmp_path, size, part, parts):
    from support.scenarios.sharded import BUILDERS

    names = [name for name, one in BUILDERS.items() if size in one.sizes][part::parts]
    for said in launch(tmp_path, names, size):
        assert said == {name: {} for name in names}

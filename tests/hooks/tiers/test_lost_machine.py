"""A machine is lost with its disk: the run goes on from the memory of the other one, and from the store."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path

import pytest

from mvc import Repo
from mvc_hooks.lingering import name_branch
from support.programs import start

PROGRAM = Path(__file__).with_name("lost_machine_training.py")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory does not outlive a run"),
]


def launch(folder, machines, number, total, dies, code):
    store = folder / f"store-{number}"
    ranks = [
        start(PROGRAM, rank, machine, folder, store, total, dies)
        for rank, machine in enumerate(machines)
    ]
    for rank in ranks:
        text = rank.communicate(timeout=300)[1].decode()
        assert rank.returncode == code, text


def test_a_run_goes_on_without_a_machine(tmp_path):
    launch(tmp_path, "ab", 1, 6, "dies", -signal.SIGKILL)
    shutil.rmtree(tmp_path / "a")
    name = f"{name_branch(str(tmp_path / 'b/.mvc'), 'main')}-1"
    while not (tmp_path / "runtime-b/mvc" / name).exists():
        pass  # its writer becomes what holds the memory; the test's timeout ends this
    assert not (tmp_path / "runtime-a/mvc").exists(), "with the machine its memory is gone"
    launch(tmp_path, "cb", 2, 9, "ends", 0)
    said = (tmp_path / "log0.txt").read_text()
    assert "resumed at step 6 from the memory of several machines" in said
    repo = Repo.open(tmp_path / "c")
    assert [entry.annotations.step for entry in repo.log()] == [9, 6, 3, 0]
    assert repo.upkeep.fsck(data=True).problems == ()

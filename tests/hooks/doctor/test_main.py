"""One rank of doctor --distributed, and several real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from mvc_lab.doctor.__main__ import examine, find_slurm, main

pytestmark = pytest.mark.torch


def test_one_rank_alone_says_what_is_here(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "no-such-interface")
    found = examine(None, 0, 1)
    assert (found["ranks"], found["link"]) == (1, None)
    (machine,) = found["machines"]
    assert (machine["ranks"], machine["where"]) == ([0], "rank 0")
    assert "nccl-interface-missing" in {one["rule"] for one in found["advice"]}


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"RANK": "x"}, "RANK='x' is not a number"),
        ({"RANK": "5", "WORLD_SIZE": "2"}, "RANK=5 is not below WORLD_SIZE=2"),
        ({"RANK": "1"}, "RANK=1 is not below WORLD_SIZE=1"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "cannot meet"),
    ],
)  # fmt: skip
def test_what_a_rank_cannot_do_is_one_error(monkeypatch, capsys, variables, text):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main([]) != 0
    error = json.loads(capsys.readouterr().out)["error"]
    assert text in error["message"]
    assert "\n" not in error["message"]


def test_a_step_of_slurm_is_a_group():
    environ = {
        "SLURM_STEP_NUM_TASKS": "16", "SLURM_PROCID": "9", "SLURM_LOCALID": "1",
        "SLURM_STEP_NODELIST": "gpu[017-018,031]", "SLURM_JOB_ID": "123456",
    }  # fmt: skip
    find_slurm(environ)
    assert (environ["RANK"], environ["WORLD_SIZE"], environ["LOCAL_RANK"]) == ("9", "16", "1")
    assert (environ["MASTER_ADDR"], environ["MASTER_PORT"]) == ("gpu017", "18456")


@pytest.mark.parametrize(
    "environ",
    [
        {}, {"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_NTASKS": "8", "SLURM_PROCID": "0"},
        {"SLURM_STEP_NUM_TASKS": "8", "RANK": "3"}, {"SLURM_STEP_NUM_TASKS": "x"},
    ],
)  # fmt: skip
def test_a_process_that_is_alone_waits_for_nobody(environ):
    before = dict(environ)
    find_slurm(environ)
    assert environ == before


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a1", "a1"), ("a1,b2", "a1"), ("rack-[3,7-9]", "rack-3"), ("n[01-02]x,m1", "n01")],
)
def test_the_first_machine_of_a_list(nodes, first):
    environ = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": nodes}
    find_slurm(environ)
    assert environ["MASTER_ADDR"] == first


@pytest.mark.slow
def test_ranks_that_are_set_up_differently_are_told_apart(tmp_path):
    processes = []
    for rank in range(3):
        environ = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "NCCL_DEBUG": "TRACE" if rank == 2 else "WARN",
        }
        options = (f"--meet={tmp_path}/meeting", f"--rank={rank}", "--size=3")
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "mvc_lab.doctor", *options],
                env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )
        )  # fmt: skip
    answers = [one.communicate()[0] for one in processes]
    assert [one.returncode for one in processes] == [0, 0, 0]
    assert answers[1:] == [b"", b""]
    found = json.loads(answers[0])
    texts = {one["rule"]: (one["text"], one["ranks"]) for one in found["advice"]}
    assert texts["nccl-trace"][1] == [2]
    differs, _ = texts["mixed-nccl-settings"]
    assert (
        differs == "NCCL_DEBUG is not the same on all ranks: WARN (ranks 0 and 1), TRACE (rank 2)"
    )
    assert found["link"]["backend"] == "gloo"
    assert 0 < found["link"]["latency_s"] <= found["link"]["latency_p99_s"]
    size, seconds = found["link"]["large_bytes"], found["link"]["large_s"]
    assert found["link"]["bus_bytes_per_s"] == pytest.approx(4 / 3 * size / seconds)

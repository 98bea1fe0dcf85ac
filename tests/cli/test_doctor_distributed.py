"""mvc doctor --distributed: alone, with ranks of its own, and as ranks of torchrun."""

import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch


def test_alone_it_reads_this_machine_and_needs_no_repository(bare, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "no-such-one")
    answer = bare("doctor", "--distributed")
    assert answer.code == 1
    assert answer.lines[0] == "ranks  1 on 1 machine"
    (line,) = [line for line in answer.lines if line.startswith("does not work:")]
    assert re.fullmatch(
        r"does not work: NCCL_SOCKET_IFNAME=no-such-one names no interface of this machine, "
        r"which has .*; name one of those, or unset it \(NCCL user guide, NCCL_SOCKET_IFNAME\)",
        line,
    )


def test_what_makes_no_sense(bare):
    for line, text in [
        (["--ranks", "2"], "--ranks needs --distributed"),
        (["--distributed", "--ranks", "0"], "--ranks 0 is not from 1 to 64"),
        (["--distributed", "--ranks", "65"], "--ranks 65 is not from 1 to 64"),
        (["--distributed", "--ranks", "two"], "'two' is not a whole number"),
        (["--distributed", "--shared"], "--shared and --distributed cannot be used together"),
    ]:
        answer = bare("doctor", *line)
        assert answer.code == 2
        assert text in answer.error


def test_a_rank_of_torchrun_starts_no_ranks(bare, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    answer = bare("doctor", "--distributed", "--ranks", "2")
    assert "this process is one: torchrun has started it" in answer.error


@pytest.mark.slow
def test_a_rank_that_fails_gives_one_line(bare, monkeypatch):
    for name, value in {"RANK": "x", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    answer = bare("doctor", "--distributed")
    assert answer.code == 2
    assert answer.error == "RANK='x' is not a number"


@pytest.mark.slow
def test_ranks_of_its_own(bare, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    lines = bare.ok("doctor", "--distributed", "--ranks", "2").lines
    assert lines[0] == "ranks      2 on 1 machine"
    assert "ranks 0 and 1" in lines[1]
    assert re.fullmatch(r"latency    .*: all_reduce of 4 B over gloo", lines[2])
    assert re.fullmatch(r"bandwidth  .*/s of the bus: all_reduce of 16 MiB", lines[3])
    assert any(line.startswith("slow or risky: OMP_NUM_THREADS is not set") for line in lines)


@pytest.mark.slow
def test_ranks_of_torchrun_tell_once_and_torchrun_does_not_report_a_failure(bare):
    environ = {**os.environ, "NCCL_SOCKET_IFNAME": "no-such-one", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         "-m", "mvc", "doctor", "--distributed"],
        env=environ, cwd=bare.folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("does not work: NCCL_SOCKET_IFNAME") == 1
    assert done.stdout.count("latency") == 1
    assert "Traceback" not in done.stderr

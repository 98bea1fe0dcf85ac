"""The example of a killed run does what it claims; the demo runs the plain loop."""

import json
import os
import socket
import subprocess
import sys

import pytest

from mvc import Repo
from support.commands import ROOT, run_python

EXAMPLES = ROOT / "examples"


@pytest.mark.slow
@pytest.mark.torch
def test_a_killed_run_ends_in_the_same_bits(tmp_path):
    done = run_python(EXAMPLES / "resume_after_kill.py", "--folder", tmp_path / "run")
    assert "both runs end in the same bits" in done.stdout
    assert "begins at step 25" in done.stdout


@pytest.mark.torch
def test_an_extension_goes_on_with_the_run(tmp_path):
    command = (EXAMPLES / "extension.py", "--folder", tmp_path)
    said = [run_python(*command).stdout.splitlines() for _ in range(2)]
    assert said[0][0] == "step 0: 0 records so far"
    assert said[1][0] == said[0][1]
    told = Repo(tmp_path).show("HEAD").annotations
    assert said[1][1] == f"step 40: {told.meta['records']} records so far"
    assert told.metrics["lr"] == pytest.approx(0.05 * 0.95**40)


@pytest.mark.slow
@pytest.mark.torch
def test_what_dcp_saves_goes_on_with_another_number_of_processes(tmp_path):
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / "dcp_loop.py")]
    command += ["--folder", str(tmp_path / "run"), "--every", "4"]

    def start(rank, size, steps):
        place = {"RANK": f"{rank}", "WORLD_SIZE": f"{size}", "MASTER_ADDR": "127.0.0.1"}
        return subprocess.Popen(
            [*command, "--steps", str(steps)],
            env={**os.environ, **place, "MASTER_PORT": str(port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    port = find_port()
    ranks = [start(rank, 2, 8) for rank in range(2)]
    said = [rank.communicate()[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    port = find_port()
    alone = start(0, 1, 9)
    said = alone.communicate()[0]
    assert alone.returncode == 0, said
    assert "begins at step 8" in said
    repo = Repo(tmp_path / "run")
    assert [entry.annotations.step for entry in repo.log()] == [8, 4]
    assert repo.load_state()["model"]["blocks.0.attend.weight"].shape == (192, 64)


@pytest.mark.slow
@pytest.mark.torch
def test_a_flipped_bit_is_found_and_mended(tmp_path):
    torchrun = ("-W", "ignore", "-m", "torch.distributed.run", "--standalone")
    example = (EXAMPLES / "watched_loop.py", "--folder", tmp_path / "run", "--flip")
    metrics = ("--metrics", tmp_path / "run.jsonl")
    done = run_python(*torchrun, "--nproc-per-node", "3", *example, *metrics)
    assert "model.head.weight differs on rank 2 at [17, 5]: 1 element, " in done.stderr
    assert "resync: " in done.stderr
    assert "1 found a difference" in done.stdout
    log = Repo(tmp_path / "run").log()
    assert [entry.annotations.step for entry in log] == [60, 50, 25, 0]
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert "alarm" in kinds


def find_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def test_the_page_shows_every_example_but_the_demo():
    page = (ROOT / "docs/examples.md").read_text()
    for path in EXAMPLES.glob("*.py"):
        if path.name != "demo.py":
            assert f'--8<-- "examples/{path.name}"' in page

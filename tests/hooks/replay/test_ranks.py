"""A run of several ranks trained once more: each rank compares what it has, and one report comes of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mvc import Repo, UnsupportedError, UsageError
from mvc_lab import replay_steps
from mvc_lab.replay.ranks import RankFailure, _choose
from support.bounds import rest_nightly
from support.programs import call_ranks

support = pytest.importorskip("support.replay_ranks")

pytestmark = pytest.mark.slow

ENTRY = Path(support.__file__)
EVERY = support.EVERY


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replays")
    (folder / "run").mkdir()
    return folder


@pytest.fixture(scope="module")
def run(root):
    """Return a function that runs a verb on all ranks, which say the same."""

    def run_ranks(verb, *, size=2, **options):
        results = call_ranks("support.replay_ranks", verb, size, root, **options)
        assert results == results[:1] * size
        return results[0]

    return run_ranks


@pytest.fixture(scope="module", autouse=True)
def runs(run):
    run("train", kind="fsdp", totals=[6, 9])
    run("train", kind="ddp", totals=[6])


class TestTheReport:
    def test_sharded_and_across_a_resume(self, run):
        report = run("replay", kind="fsdp", revision=f"main@{EVERY}", steps=6)
        assert report["trajectory_exact"] is True
        assert report["compared_steps"] == [6, 9]
        assert report["environment_changes"] == []
        assert report["lines"][1].startswith("trajectory  exact for 6 steps, ")

    def test_replicas_with_buffers_of_their_own(self, run):
        report = run("replay", kind="ddp", revision="HEAD", steps=3)
        assert (report["state_exact"], report["trajectory_exact"]) == (True, True)
        assert report["tensors"] > 20

    @pytest.mark.parametrize("kind", ["fsdp", "ddp"])
    def test_what_differs_on_one_rank_is_measured_once(self, run, kind):
        report = run("replay", kind=kind, revision=f"main@{EVERY}", steps=3, act="spoil")
        found = report["first_difference"]
        assert (found["name"], found["size"]) == ("model.0.weight", 96)
        assert 0 < found["elements"] <= 96
        assert 0.5 < found["largest"] < 2
        assert found["others"] > 3
        assert report["state_exact"] is True

    def test_what_one_rank_alone_has_names_it(self, run):
        report = run("replay", kind="fsdp", revision=f"main@{EVERY}", steps=3, act="draw")
        found = report["first_difference"]
        assert found["name"].startswith("rng.")
        assert found["name"].endswith(" of rank 1")
        assert found["others"] == 0

    def test_another_number_of_ranks_is_refused(self, run):
        said = run("replay", size=1, kind="fsdp", revision=f"main@{EVERY}", steps=3)
        assert said.startswith("UsageError: commit ")
        assert said.endswith("was made by 2 ranks, but the entry starts no process group")
        said = run("replay", size=3, kind="fsdp", revision=f"main@{EVERY}", steps=3)
        assert said.endswith("was made by 2 ranks, this replay has 3 ranks")

    def test_two_dimensions_of_four_ranks(self, run):
        run("train", size=4, kind="2d", totals=[6])
        told = {"size": 4, "kind": "2d", "revision": "HEAD", "steps": 3}
        assert run("replay", **told)["trajectory_exact"] is True
        report = run("replay", **told, act="spoil")
        assert report["first_difference"]["name"] == "model.0.weight"

    @pytest.mark.nightly
    def test_four_replicas_across_a_resume_and_from_the_start(self, run):
        run("train", size=4, kind="ddp of four", totals=[6, 9])
        for revision in ("main@0", f"main@{EVERY}"):
            report = run("replay", size=4, kind="ddp of four", revision=revision, steps=6)
            assert report["trajectory_exact"] is True


def test_one_process_is_told_that_it_is_too_few(root):
    with pytest.raises(UsageError, match="made by 2 ranks") as caught:
        replay_steps(root / "run" / "fsdp", "HEAD", 3, support.build_alone)
    assert "init_process_group" in caught.value.hint


def start(root, build, *options, **environment):
    command = [sys.executable, "-m", "mvc_lab.replay", str(root / "run" / "fsdp"), "HEAD", "3"]
    return subprocess.Popen(
        [*command, f"{ENTRY}:{build}", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONWARNINGS": "ignore", **environment},
        text=True,
    )


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class TestTheRanksThatItStarts:
    def test_report_on_standard_output_alone(self, root):
        process = start(root, "build", "--json")
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert json.loads(out)["trajectory_exact"] is True
        assert err.count("said by the training") == 2

    @pytest.mark.parametrize(
        ("build", "code", "text"),
        [
            pytest.param("build_failing", 2, "rank 1: the training failed: ValueError: no more", marks=pytest.mark.nightly),
            pytest.param("build_killed", 6, "rank 0 was killed by SIGKILL"),
            pytest.param("build_leaving", 2, "rank 1: the training failed: SystemExit: 0", marks=pytest.mark.nightly),
            pytest.param("build_alone", 2, "starts no process group", marks=pytest.mark.nightly),
            pytest.param("build_nothing", 3, "has no function 'build_nothing'", marks=pytest.mark.nightly),
        ],
    )  # fmt: skip
    def test_one_line_names_the_rank_that_failed(self, root, build, code, text):
        process = start(root, build)
        out, err = process.communicate(timeout=120)
        assert (out, process.returncode) == ("", code), err
        (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
        assert text in line
        assert "Traceback" not in err

    @pytest.mark.parametrize("number", rest_nightly([signal.SIGKILL, signal.SIGINT]))
    def test_no_rank_is_left(self, root, tmp_path, number):
        process = start(root, "build_endless", BEGUN=str(tmp_path))
        while len(list(tmp_path.iterdir())) < 2:
            assert process.poll() is None
        pids = [int(path.name) for path in tmp_path.iterdir()]
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode == (130 if number == signal.SIGINT else -9)
        for pid in pids:
            while is_alive(pid):
                pass


def test_the_first_failure_counts():
    late, first = (
        RankFailure(0, 9.5, "usage", "b", None),
        RankFailure(1, 9.0, "conflict", "a", "do"),
    )
    error = _choose([late, first], {0: 2, 1: 4}, 2)
    assert (error.message, error.hint, error.exit_code) == ("rank 1: a", "do", 4)
    assert _choose([late], {1: -9, 0: 2}, 2).message == "rank 1 was killed by SIGKILL"
    assert _choose([late], {1: -6, 0: 2}, 2).message == "rank 0: b"
    assert _choose([], {1: 3}, 2).message == "rank 1 ended with exit code 3 and said nothing"


def test_commits_of_another_number_of_ranks_end_it(root):
    repo = Repo.open(root / "run" / "ddp")
    repo.branches.create("later")
    state = repo.load_state("later")
    repo.commit_state({**state, "ranks": {"size": 3}}, message="x", step=9, branch="later")
    with pytest.raises(UnsupportedError, match=r"2 ranks made .* 6, 3 ranks that of step 9"):
        replay_steps(repo, "later@6", 3, dict)

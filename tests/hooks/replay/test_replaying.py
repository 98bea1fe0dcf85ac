"""A stretch of a run trained once more: exact, different, and everything that is in the way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mvc import NotFoundError, Repo, UsageError
from mvc_hooks import Checkpointer, Training, rollback, stop
from mvc_hooks.entry import load_entry
from mvc_lab import replay_steps
from mvc_lab.replay.__main__ import main

ENTRY = Path(__file__).with_name("replayed_training.py")
EVERY = 5


@pytest.fixture(scope="module")
def build():
    return load_entry(f"{ENTRY}:build")


def train(folder, build, total, *, bad=(), **options):
    training = build()
    with Checkpointer(
        folder, every=EVERY, healthy_after=2, **options, parts=training.parts
    ) as ckpt:
        for _ in ckpt.steps(total):
            said = training.train_step(ckpt)
            if ckpt.batch_index in bad:
                said["loss"] = float("nan")
            ckpt.step(**said)
    return ckpt


@pytest.fixture(scope="module")
def folder(tmp_path_factory, build):
    folder = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    train(folder, build, 12)
    train(folder, build, 20)
    return folder


def list_files(folder):
    return {
        (str(path.relative_to(folder)), path.stat().st_mtime_ns, path.stat().st_size)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_same_bits_come_out_again_across_a_resume(folder, build):
    before = list_files(folder)
    torch.manual_seed(5)
    report = replay_steps(folder, "main@5", 15, build)
    assert report.is_exact
    assert report.compared == (10, 12, 15, 20)
    assert report.tensors > 10
    assert report.environment_changes == ()
    assert list_files(folder) == before


def test_at_the_tip_the_steps_that_lead_there_are_replayed(folder, build):
    report = replay_steps(folder, "HEAD", 10, build)
    assert report.is_exact
    assert (report.stretch.start.step, report.stretch.points[-1].step) == (10, 20)


def test_the_first_step_and_tensor_that_differ_are_named(folder, build):
    torch.manual_seed(0)
    good = build()
    count = 0

    def train_step(run):
        nonlocal count
        said = good.train_step(run)
        count += 1
        if count == 6:  # the step after step 10
            with torch.no_grad():
                # Not before the batch norm, which takes out all but a rounding error.
                good.parts["model"][3].bias += 0.5
        return said

    report = replay_steps(folder, "main@5", 10, lambda: Training(good.parts, train_step))
    assert report.is_state_exact
    assert not report.is_exact
    found = report.difference
    assert (found.step, found.after_step) == (12, 10)
    assert found.name == "model.0.weight"
    assert 0 < found.elements <= found.size == 128
    assert found.largest > 0
    assert found.others > 3
    text = "\n".join(report.lines())
    assert "restored exactly" in text
    assert "DIFFERS at step 12: model.0.weight" in text


def test_another_place_in_the_data_is_a_difference_even_where_no_tensor_differs(folder, build):
    training = build()

    def train_step(run):
        said = training.train_step(run)
        if run.step_count == 9:
            run.next_batch()
        return said

    report = replay_steps(folder, "main@5", 5, lambda: Training(training.parts, train_step))
    assert report.difference.name.startswith("dataloader.")


def test_a_rollback_ends_what_can_be_compared(tmp_path, build):
    ladder = [rollback(to="last", min_steps_back=1, skip_batches=4), stop(after=2)]
    ckpt = train(tmp_path, build, 20, bad=(13,), ladder=ladder)
    assert [one.to_step for one in ckpt.rollbacks] == [10]
    report = replay_steps(tmp_path, "main@5", 15, build)
    assert report.is_exact
    assert report.compared == (10,)
    assert report.stretch.rollback == 10
    behind = replay_steps(tmp_path, "main@15", 5, build)
    assert behind.is_exact
    right_there = replay_steps(tmp_path, "main@10", 10, build)
    assert right_there.is_trajectory_exact is None
    assert right_there.is_state_exact


def test_skipped_steps_are_skipped_again(tmp_path):
    build = load_entry(f"{ENTRY}:build_checked")
    training = build()
    settings = {"detectors": training.detectors, "ladder": training.ladder}
    with Checkpointer(tmp_path, every=EVERY, **settings, parts=training.parts) as ckpt:
        for _ in ckpt.steps(15):
            ckpt.step(**training.train_step(ckpt))
    assert replay_steps(tmp_path, "main@5", 10, build).is_exact
    other = build()
    loose = replay_steps(tmp_path, "main@5", 10, lambda: Training(other.parts, other.train_step))
    assert loose.difference.step == 10


@pytest.mark.slow
def test_the_command_says_it_to_people_and_to_programs(folder):
    command = [sys.executable, "-m", "mvc_lab.replay", str(folder), "main@10", "10"]
    done = subprocess.run([*command, f"{ENTRY}:build", "--json"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["state_exact"] is True
    assert said["trajectory_exact"] is True
    assert said["compared_steps"] == [12, 15, 20]


def test_the_command_ends_with_1_where_something_differs(folder, capsys):
    entry = f"{ENTRY}:build_other_rate"
    assert main([str(folder), "10", "--entry", entry]) == 0  # the stored rate is restored
    assert main([str(folder), "10", "--entry", f"{ENTRY}:build_noisy"]) == 1
    out = capsys.readouterr().out
    assert "trajectory  exact for 10 steps" in out
    assert "trajectory  DIFFERS at step 12" in out


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["main@5", "4", f"{ENTRY}:build"], 3, "no commit of step 9 follows"),
        (["main@5", "0", f"{ENTRY}:build"], 2, "0 steps"),
        (["main@7", "5", f"{ENTRY}:build"], 3, "main@7"),
        (["30", f"{ENTRY}:build"], 3, "30 steps before"),
        (["5", f"{ENTRY}:nothing"], 3, "no function 'nothing'"),
        (["5", "nowhere.py:build"], 3, "does not exist"),
        (["5", str(ENTRY)], 3, "does not name a function"),
        (["5", f"{ENTRY}:build_nothing"], 2, "not a Training"),
        (["5", f"{ENTRY}:build_larger"], 4, "model.0.weight"),
        (["main@5"], 2, "not REPO"),
        (["main@5", "5", "x.py:build", "--quick"], 2, "--quick"),
    ],
)
def test_what_cannot_be_replayed_says_why(folder, capsys, arguments, code, text):
    assert main([str(folder), *arguments]) == code
    said = capsys.readouterr().err
    assert text in said
    assert said.startswith("error: ")


def test_a_step_that_is_none_is_refused(folder, build):
    parts = build().parts
    with pytest.raises(UsageError, match="returned a int"):
        replay_steps(folder, "main@5", 5, lambda: Training(parts, lambda _: 3))
    with pytest.raises(UsageError, match="called step"):
        replay_steps(folder, "main@5", 5, lambda: Training(parts, lambda run: run.step(loss=1)))


def test_a_commit_of_no_run_is_refused(tmp_path, build):
    repo = Repo.init(tmp_path)
    repo.commit_state({"a": 1}, message="x")
    with pytest.raises(NotFoundError, match="has no training step"):
        replay_steps(repo, "HEAD", 1, build)

"""Gates of a run: what its commits become when the weights are beyond a limit."""

from __future__ import annotations

import copy
import logging

import pytest
import torch

from mvc import Repo
from mvc_hooks import rollback, stop

pytestmark = pytest.mark.torch


@pytest.fixture
def repo(tmp_path):
    made = Repo.init(tmp_path / "run")
    made.set_config("gate.max", "100")
    return made


def _steps(repo, branch="main"):
    return [entry.step for entry in repo.log(branch)][::-1]


def _visit(run, value):
    """Take a step with one weight at a value, and put the model back."""
    before = copy.deepcopy(run.model.state_dict())
    with torch.no_grad():
        next(run.model.parameters())[0] = value
    run.step(loss=1.0)
    run.ckpt.wait()
    run.model.load_state_dict(before)


def test_a_refused_commit_is_left_out_and_the_run_goes_on(keep, repo, caplog):
    caplog.set_level(logging.WARNING, "mvc_hooks")
    run = keep(every=1, detectors=[]).steps(2)
    _visit(run, 1e6)
    run.steps(2)
    run.ckpt.close()
    assert _steps(repo) == [0, 1, 2, 4, 5]
    (refused,) = [report for report in run.ckpt.commits if report.is_refused]
    assert (refused.step, refused.commit) == (3, None)
    assert "commit of step 3 is refused: model.safetensors has the magnitude" in caplog.text
    assert "no_gate" not in caplog.text
    assert keep(every=1, detectors=[]).ckpt.step_count == 5


def test_a_marked_commit_is_made_and_never_healthy(keep, repo):
    repo.set_config("gate.mode", "mark")
    run = keep(every=2, detectors=[], healthy_after=1).steps(3)
    _visit(run, 1e6)
    run.steps(4)
    run.ckpt.close()
    entries = {entry.step: entry for entry in repo.log("main")}
    assert sorted(entries) == [0, 2, 4, 6, 8]
    assert [step for step, entry in entries.items() if entry.failed_gates] == [4]
    healthy = [step for step, entry in sorted(entries.items()) if entry.is_healthy]
    assert 4 not in healthy
    assert healthy[:2] == [0, 2]
    assert 6 in healthy
    assert [report.step for report in run.ckpt.commits if report.failed_gates] == [4]


def test_the_state_that_diverged_is_kept_as_it_is(keep, repo):
    ladder = [rollback(to="last", min_steps_back=1, skip_batches=0), stop(3)]
    run = keep(every=2, ladder=ladder).steps(3)
    with torch.no_grad():
        next(run.model.parameters())[0] = 1e6
    run.step(loss=float("nan"))
    run.ckpt.close()
    (kept,) = [one.name for one in repo.branches.list() if one.name.startswith("diverged/")]
    (entry,) = repo.log(kept, limit=1)
    assert entry.health[0].largest > 1e5


def test_no_commit_just_before_a_bad_state_becomes_healthy(keep, repo):
    run = keep(every=1, detectors=[], healthy_after=3).steps(2)
    _visit(run, 1e6)
    run.steps(6)
    run.ckpt.close()
    healthy = {entry.step for entry in repo.log("main") if entry.is_healthy}
    assert healthy.isdisjoint({1, 2, 3})
    assert 4 in healthy

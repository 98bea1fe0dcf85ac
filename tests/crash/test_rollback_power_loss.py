"""The power goes at every step of a rollback: at worst a branch is left over, never a commit lost.

As soon as the branch is back, the abandoned tip has its branch and its note, on both disks.
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from mvc import Identity, Repo
from support.forgetful import ForgetfulDisk, PowerLoss
from support.models import digests, write_model

pytestmark = pytest.mark.crash

_WHO = Identity("Ann", "ann@example.org")
_TIPS = {"here": "main", "elsewhere": "side"}


def _prepare(root):
    repo = Repo.init(root)
    repo.identity = _WHO
    for step in (1, 2, 3):
        write_model(root / "model.safetensors", norm=np.full(32, step, np.float32))
        if step == 3:
            (root / "extra.bin").write_bytes(b"extra" * 500)
        repo.commit(f"step {step}", paths=".", step=step)
        repo.branches.create("side", force=True)
    repo.runs.mark_healthy("main@1")


def _roll_back(root, branch):
    repo = Repo.open(root, identity=_WHO)
    repo.runs.rollback(repo.runs.plan_rollback(branch=branch), reason="loss is NaN")


def _state(root):
    repo = Repo.open(root)
    status = repo.status()  # finishes what was interrupted
    heads = {ref.name: ref.commit for ref in repo.branches.list()}
    return repo.head, heads, status.files, digests(root)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_every_step(where, tmp_path, monkeypatch):
    monkeypatch.setattr("mvc.history.values.time.time", lambda: 1_700_000_000)
    branch = _TIPS[where]
    origin, done = tmp_path / "origin", tmp_path / "done"
    origin.mkdir()
    _prepare(origin)
    before = _state(origin)
    tip = before[1][branch]
    shutil.copytree(origin, done)
    with ForgetfulDisk(done) as disk:
        _roll_back(done, branch)
    steps = disk.steps
    disk.close()
    after = _state(done)
    assert after[1] == {**before[1], branch: after[1][branch], f"diverged/{branch}/3": tip}
    assert (after[3] != before[3]) == (where == "here")
    seen = set()
    for step in range(steps):
        work, pessimist = tmp_path / "work", tmp_path / "pessimist"
        shutil.copytree(origin, work)
        with ForgetfulDisk(work, stop_at=step) as disk, pytest.raises(PowerLoss):
            _roll_back(work, branch)
        disk.survivors(pessimist)
        disk.close()
        for survivor in (pessimist, work):
            seen.add(_check(survivor, branch, before, after, f"step {step}, {survivor.name}"))
            shutil.rmtree(survivor)
    assert seen == {False, True}


def _check(root, branch, before, after, where):
    state = _state(root)
    repo = Repo.open(root, identity=_WHO)
    report = repo.upkeep.fsck(data=True)
    assert report.ok, f"{where}: {report.problems}"
    tip = before[1][branch]
    is_back = state[1][branch] != tip
    if is_back:
        assert state == after, where
        assert repo.show(tip).diverged.reason == "loss is NaN", where
        return True
    # At most a branch too many, and everything else as it was.
    spare = state[1].pop(f"diverged/{branch}/3", tip)
    assert (spare, *state) == (tip, *before), where
    _roll_back(root, branch)
    assert _state(root) == after, f"{where}, again"
    assert repo.show(tip).diverged.reason == "loss is NaN", where
    return False

"""A process dies, the next one does the same work again, then the power goes.

The second process finds things that are there but may not last: renamed files whose folder nobody
synced, packs without an index. Building upon them it must make them last, or a commit that was
reported as done is lost with the power.
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from mvc import ConflictError, Repo
from support.bounds import bounded
from support.forgetful import ForgetfulDisk, PowerLoss, count_steps
from support.models import digests, write_config, write_model

pytestmark = pytest.mark.crash

STATE = {"weights": {"w": np.arange(300, dtype=np.float32)}, "step": 7}


def _prepare(root):
    repo = Repo.init(root)
    for number in (1, 2):
        write_model(root / "model.safetensors", seed=number)
        write_config(root / "config.json", epoch=number)
        repo.add(".")
        repo.commit(f"number {number}", step=number)
    write_model(root / "model.safetensors", seed=3)


def _add_and_commit(root):
    repo = Repo.open(root)
    repo.add(".")
    try:
        repo.commit("third", step=3)
    except ConflictError as error:
        assert "nothing to commit" in str(error)  # the dead one had got that far
        return False
    return True


def _commit_state(root):
    return Repo.open(root).commit_state(STATE, message="state", step=7)


def _reset_hard(root):
    return Repo.open(root).reset("main@1", mode="hard")


def _move_branch(root):
    Repo.open(root).branches.create("side", "HEAD~1", force=True)
    return True


def _check(root, verb, wanted):
    repo = Repo.open(root)
    if verb is _commit_state:
        loaded = repo.load_state("HEAD", framework="numpy")
        assert loaded["weights"]["w"].tobytes() == STATE["weights"]["w"].tobytes()
    elif verb is _move_branch:
        assert repo.resolve("side") == repo.resolve("HEAD~1")
    else:
        assert repo.show("HEAD").step == (3 if verb is _add_and_commit else 1)
        assert repo.status().files == ()
        assert digests(root) == wanted


@pytest.mark.parametrize("verb", [_add_and_commit, _commit_state, _reset_hard, _move_branch])
def test_retry_then_power_loss(verb, tmp_path):
    origin, done = tmp_path / "origin", tmp_path / "done"
    origin.mkdir()
    _prepare(origin)
    shutil.copytree(origin, done, symlinks=True)
    steps = count_steps(verb, done)
    wanted = digests(done)
    for step in range(0, steps, bounded(3, 1)):
        work, survivor = tmp_path / "work", tmp_path / "survivor"
        shutil.copytree(origin, work, symlinks=True)
        disk = ForgetfulDisk(work, stop_at=step)
        with disk:
            with pytest.raises(PowerLoss):
                verb(work)
            disk.is_off, disk.stop_at = False, None  # only that process is gone
            is_done = verb(work)
        disk.survivors(survivor)
        disk.close()
        report = Repo.open(survivor).upkeep.fsck(data=True)
        assert report.ok, f"step {step} of {steps}: {report.problems}"
        if is_done:  # who has nothing to do promises nothing
            _check(survivor, verb, wanted)
        shutil.rmtree(work)
        shutil.rmtree(survivor)


def test_a_lost_index_is_written_again_by_whoever_builds_upon_its_pack(tmp_path):
    _prepare(tmp_path)
    repo = Repo.open(tmp_path)
    repo.add(".")
    indexes = {path: path.read_bytes() for path in (repo.git_dir / "chunks").rglob("*.idx")}
    for path in indexes:
        path.unlink()
    (tmp_path / "model.safetensors").touch()
    added = Repo.open(tmp_path).add(".")
    assert added.counts.new_chunks == 0
    assert {path: path.read_bytes() for path in indexes} == indexes

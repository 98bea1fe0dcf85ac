"""The power goes at every step of every verb: the old or the new state is there, never a mixture.

Two disks are looked at after each stop: the pessimist, which forgot all that was not synced, and
the optimist, which kept everything up to the stop (a killed process).
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from mvc import Repo
from support.bounds import rest_slow
from support.forgetful import ForgetfulDisk, PowerLoss
from support.models import digests, write_config, write_model

pytestmark = pytest.mark.crash


def _prepare(root: Path) -> None:
    repo = Repo.init(root)
    write_model(root / "model.safetensors", seed=1)
    write_config(root / "config.json", epoch=1)
    repo.add(".")
    repo.commit("first", step=1)
    write_model(root / "model.safetensors", seed=1, norm=np.zeros(32, np.float32))
    write_config(root / "config.json", epoch=2)
    (root / "extra.bin").write_bytes(bytes(range(256)) * 8)
    repo.add(".")
    repo.commit("second", step=2)


def _add_and_commit(root: Path) -> None:
    write_model(root / "model.safetensors", seed=3)
    repo = Repo.open(root)
    repo.add(".")
    repo.commit("third", step=3)


def _write_notes(root: Path) -> None:
    for number in range(50):
        (root / f"note{number}.txt").write_text(f"note {number}")


def _commit_many_files(root: Path) -> None:
    _write_notes(root)
    Repo.open(root).commit("many", paths=".", step=3)


def _checkout(root: Path) -> None:
    Repo.open(root).checkout("HEAD~1")


def _switch_to_new_branch(root: Path) -> None:
    Repo.open(root).switch("side", create=True)


def _reset_hard(root: Path) -> None:
    Repo.open(root).reset("HEAD~1", mode="hard")


def _commit_state(root: Path) -> None:
    state = {"model": {"w": np.arange(300, dtype=np.float32)}, "step": 7}
    Repo.open(root).commit_state(state, message="state", step=7)


def _branch_update(root: Path) -> None:
    repo = Repo.open(root)
    repo.branches.create("moved", "HEAD")
    repo.branches.create("moved", "HEAD~1", force=True)
    repo.tags.create("v1", "HEAD", message="one")
    repo.tags.create("v1", "HEAD~1", force=True)  # an alias, with a log


VERBS = [
    _add_and_commit,
    _commit_many_files,
    _checkout,
    _switch_to_new_branch,
    _reset_hard,
    _commit_state,
    _branch_update,
]


def _state(root: Path) -> tuple:
    """What a user sees: history, refs, staged content, files."""
    repo = Repo.open(root)
    status = repo.status()
    heads = tuple((ref.name, ref.commit) for ref in [*repo.branches.list(), *repo.tags.list()])
    return (repo.head.branch, repo.head.commit, heads, status.files, tuple(digests(root).items()))


def _history_state(root: Path) -> tuple:
    return _state(root)[:3]


@pytest.mark.parametrize("verb", rest_slow(VERBS), ids=lambda verb: verb.__name__.strip("_"))
def test_every_step(verb, tmp_path, monkeypatch):
    # The same clock for every run, so that the same commit has the same id.
    monkeypatch.setattr("mvc.history.values.time.time", lambda: 1_700_000_000)
    origin = tmp_path / "origin"
    origin.mkdir()
    _prepare(origin)
    before = _state(origin)

    done = tmp_path / "done"
    shutil.copytree(origin, done, symlinks=True)
    with ForgetfulDisk(done) as disk:
        verb(done)
    total_steps = disk.steps
    disk.close()
    after = _state(done)
    assert total_steps > 5

    for step in range(total_steps):
        work = tmp_path / "work"
        shutil.copytree(origin, work, symlinks=True)
        if verb is _add_and_commit:
            write_model(work / "model.safetensors", seed=3)
        elif verb is _commit_many_files:
            _write_notes(work)
        disk = ForgetfulDisk(work, stop_at=step)
        with disk:
            try:
                verb(work)
            except PowerLoss:
                pass
            else:
                pytest.fail(f"{verb.__name__} survived step {step} of {total_steps}")
        pessimist = tmp_path / "pessimist"
        disk.survivors(pessimist)
        disk.close()
        for survivor in (pessimist, work):
            _check_survivor(survivor, verb, step, before, after)
            shutil.rmtree(survivor)


def _check_survivor(root, verb, step, before, after):
    where = f"{verb.__name__}, step {step}, {root.name}"
    state = _state(root)  # finishes an interrupted checkout first
    report = Repo.open(root).upkeep.fsck(data=True)
    assert report.ok, f"{where}: {report.problems}"
    if verb is _branch_update:
        # Four updates, each whole: every ref is at one of the places it ever had.
        for name, commit in state[2]:
            assert commit in {value for _, value in (*before[2], *after[2])}, f"{where}: {name}"
        return
    if verb in (_add_and_commit, _commit_many_files):
        # The user's own edit of the file is not ours to undo; history is old or new.
        assert state[:3] in (before[:3], after[:3]), where
        assert dict(state[4]) == dict(after[4]), where
        return
    if verb is _commit_state:
        assert state[:3] in (before[:3], after[:3]), where
        assert state[4] == before[4], where
        if state[:3] == after[:3]:
            loaded = Repo.open(root).load_state("HEAD", framework="numpy")
            assert loaded["step"] == 7, where
        return
    if verb is _switch_to_new_branch:
        assert state[0] in (before[0], after[0]), where
        assert state[1] == before[1], where
        assert state[3:] == before[3:], where
        return
    assert state in (before, after), where

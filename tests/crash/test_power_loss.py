"""The power goes at every step of every verb: the old or the new state is there, never a mixture."""

from __future__ import annotations

import shutil
from functools import partial

import numpy as np
import pytest

from mvc import Identity, Repo
from support.bounds import rest_slow
from support.forgetful import count_steps, lose_power
from support.leftovers import find_locks
from support.models import contents, digests, write_config, write_model

pytestmark = pytest.mark.crash


@pytest.fixture(autouse=True)
def same_clock(monkeypatch):
    """The same commit has the same id in every run."""
    monkeypatch.setattr("mvc.history.values.time.time", lambda: 1_700_000_000)


def _prepare(root):
    repo = Repo.init(root)
    write_model(root / "model.safetensors", seed=1)
    write_config(root / "config.json", epoch=1)
    (root / "becomes-folder").write_text("a file")
    (root / "becomes-file").mkdir()
    (root / "becomes-file/inner.txt").write_text("inner")
    (root / "link").symlink_to("config.json")
    (root / "run.sh").write_text("#!/bin/sh\n")
    repo.commit("first", paths=".", step=1)
    write_model(root / "model.safetensors", seed=1, norm=np.zeros(32, np.float32))
    write_config(root / "config.json", epoch=2)
    (root / "becomes-folder").unlink()
    (root / "becomes-folder").mkdir()
    (root / "becomes-folder/a").write_text("a")
    shutil.rmtree(root / "becomes-file")
    (root / "becomes-file").write_text("a file now")
    (root / "link").unlink()
    (root / "link").symlink_to("run.sh")
    (root / "run.sh").chmod(0o755)
    (root / "extra.bin").write_bytes(bytes(range(256)) * 8)
    repo.commit("second", paths=".", step=2)


def _edit(root, verb):
    """Do what the user has done before the verb begins."""
    if verb is _add_and_commit:
        write_model(root / "model.safetensors", seed=3)
    elif verb is _commit_many_files:
        for number in range(50):
            (root / f"note{number}.txt").write_text(f"note {number}")


def _add_and_commit(root):
    repo = Repo.open(root)
    repo.add(".")
    repo.commit("third", step=3)


def _commit_many_files(root):
    Repo.open(root).commit("many", paths=".", step=3)


def _checkout(root):
    Repo.open(root).checkout("HEAD~1")


def _switch_to_new_branch(root):
    Repo.open(root).switch("side", create=True)


def _reset_hard(root):
    Repo.open(root).reset("HEAD~1", mode="hard")


def _commit_state(root):
    state = {"model": {"w": np.arange(300, dtype=np.float32)}, "step": 7}
    Repo.open(root).commit_state(state, message="state", step=7)


def _branch_update(root):
    repo = Repo.open(root)
    repo.branches.create("moved", "HEAD", force=True)
    repo.branches.create("moved", "HEAD~1", force=True)
    repo.tags.create("v1", "HEAD", message="one", force=True)
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


def _state(root):
    """What a user sees: history, refs, staged content, files."""
    repo = Repo.open(root)
    status = repo.status()  # finishes an interrupted checkout first
    heads = tuple((ref.name, ref.commit) for ref in [*repo.branches.list(), *repo.tags.list()])
    return (repo.head.branch, repo.head.commit, heads, status.files, contents(root))


@pytest.mark.parametrize("verb", rest_slow(VERBS), ids=lambda verb: verb.__name__.strip("_"))
def test_every_step(verb, tmp_path):
    origin, done = tmp_path / "origin", tmp_path / "done"
    origin.mkdir()
    _prepare(origin)
    before = _state(origin)
    _edit(origin, verb)
    shutil.copytree(origin, done, symlinks=True)
    total_steps = count_steps(verb, done)
    after = _state(done)
    assert total_steps > 5
    for where, survivor in lose_power(verb, origin, tmp_path, range(total_steps)):
        _check_survivor(survivor, verb, before, after, where)


def _check_survivor(root, verb, before, after, where):
    state = _state(root)
    report = Repo.open(root).upkeep.fsck(data=True)
    assert report.ok, f"{where}: {report.problems}"
    if verb is _branch_update:
        # Four updates, each whole: every ref is at one of the places it ever had.
        places = {value for _, value in (*before[2], *after[2])}
        assert {commit for _, commit in state[2]} <= places, where
        for ref in Repo.open(root).branches.list() if root.name == "work" else ():
            assert Repo.open(root).reflog(f"refs/heads/{ref.name}")[0].new == ref.commit, where
    elif verb in (_add_and_commit, _commit_many_files):
        # The user's own edit of the file is not ours to undo; history is old or new.
        assert state[:3] in (before[:3], after[:3]), where
        assert state[4] == after[4], where
    elif verb is _commit_state:
        assert state[:3] in (before[:3], after[:3]), where
        assert state[4] == before[4], where
        if state[:3] == after[:3]:
            assert Repo.open(root).load_state("HEAD", framework="numpy")["step"] == 7, where
    elif verb is _switch_to_new_branch:
        assert state[0] in (before[0], after[0]), where
        assert state[1] == before[1], where
        assert state[3:] == before[3:], where
    else:
        assert state in (before, after), where
    is_repeated = verb in (_add_and_commit, _commit_state) and state[1] == before[1]
    if is_repeated or verb is _branch_update:
        verb(root)
        assert _state(root)[3:] == after[3:], f"{where}, again"
        assert dict(_state(root)[2]).items() >= dict(after[2]).items(), f"{where}, again"
        assert find_locks(root) == [], where
    assert all(".mvc" in path.parts for path in root.rglob("*.mvc-tmp")), where
    assert not (root / ".mvc/transition.json").exists(), where


# A rollback: at worst a branch is left over, never a commit lost.

_WHO = Identity("Ann", "ann@example.org")


def _prepare_run(root):
    repo = Repo.init(root)
    repo.identity = _WHO
    for step in (1, 2, 3):
        write_model(root / "model.safetensors", norm=np.full(32, step, np.float32))
        if step == 3:
            (root / "extra.bin").write_bytes(b"extra" * 500)
        repo.commit(f"step {step}", paths=".", step=step)
        repo.branches.create("side", force=True)
    repo.runs.mark_healthy("main@1")


@pytest.mark.slow
@pytest.mark.parametrize("branch", ["main", "side"])
def test_every_step_of_a_rollback(branch, tmp_path):
    def roll_back(root):
        repo = Repo.open(root, identity=_WHO)
        repo.runs.rollback(repo.runs.plan_rollback(branch=branch), reason="loss is NaN")

    def look(root):
        branch, commit, heads, *rest = _state(root)
        return dict(heads), branch, commit, rest

    origin, done = tmp_path / "origin", tmp_path / "done"
    origin.mkdir()
    _prepare_run(origin)
    before = look(origin)
    tip, diverged = before[0][branch], f"diverged/{branch}/3"
    shutil.copytree(origin, done)
    steps = count_steps(roll_back, done)
    after = look(done)
    assert after[0] == {**before[0], branch: after[0][branch], diverged: tip}
    assert (after[3] != before[3]) == (branch == "main")
    ends = set()
    for where, root in lose_power(roll_back, origin, tmp_path, range(steps)):
        heads, *rest = look(root)
        report = Repo.open(root).upkeep.fsck(data=True)
        assert report.ok, f"{where}: {report.problems}"
        ends.add(heads[branch] == tip)
        if heads[branch] == tip:
            # At most a branch too many, and everything else as it was.
            assert heads.pop(diverged, tip) == tip, where
            assert (heads, *rest) == before, where
            roll_back(root)
        assert look(root) == after, where
        # As soon as the branch is back, the abandoned tip has its branch and its note.
        assert Repo.open(root).show(tip).diverged.reason == "loss is NaN", where
    assert ends == {False, True}


# A bisection: it can go on, or be ended.


def _bisect(root):
    repo = Repo.open(root)
    repo.bisect.start("HEAD", "HEAD~5")
    repo.bisect.mark("good" if _is_sound(root, None) else "bad")
    repo.bisect.reset()


def _is_sound(root, _step):
    return (root / "a").read_text() == "sound"


@pytest.mark.slow
def test_steps_of_a_bisection(tmp_path):
    origin, done = tmp_path / "origin", tmp_path / "done"
    repo, ids = Repo.init(origin), []
    for number in range(6):
        (origin / "a").write_text("sound" if number < 3 else "broken")
        (origin / "n").write_text(str(number))
        ids.append(repo.commit(f"c{number}", paths=".").id)
    shutil.copytree(origin, done, symlinks=True)
    steps = count_steps(_bisect, done)
    assert steps > 50
    for where, root in lose_power(_bisect, origin, tmp_path, range(0, steps, 7)):
        repo = Repo.open(root)
        step = repo.bisect.step()
        if step is None or step.status == "waiting":
            repo.bisect.start(ids[-1], ids[0])
        assert repo.bisect.run(partial(_is_sound, root)).commit == ids[3], where
        repo.bisect.reset()
        assert (repo.head.branch, repo.head.commit) == ("main", ids[-1]), where
        assert digests(root) == digests(origin), where
        assert repo.upkeep.fsck().ok, where
        assert not list(repo.git_dir.glob("BISECT_*")), where

"""``kill -9`` at random moments: the old or the new state is there, and the next process works.

Every child is killed at a moment drawn from the time its verb takes when it is left alone. Then
the files are looked at before any command of mvc is run, fsck reads every byte, and ``status``,
which finishes an interrupted checkout, must leave exactly the old or exactly the new state.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from mvc import Repo
from support import verbs
from support.bounds import bounded, rest_slow
from support.leftovers import find_locks
from support.models import write_config, write_model
from support.zygote import Zygote

_KILLS = bounded(10, 200)


@pytest.fixture(scope="module")
def zygote():
    with Zygote() as running:
        yield running


def _build(root):
    """Make two commits on two branches that differ in every way files can differ."""
    repo = Repo.init(root)
    repo.set_config("mvc.chunkbytes", "4096")
    repo.identity = verbs.WHO
    write_model(root / "model.safetensors", seed=1)
    write_config(root / "config.json", epoch=1)
    (root / "becomes-folder").write_text("a file")
    (root / "folder-becomes-file").mkdir()
    (root / "folder-becomes-file" / "inner.txt").write_text("inner")
    (root / "link").symlink_to("config.json")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "same.txt").write_text("the same in both")
    repo.add(".")
    repo.commit("old", step=1)
    repo.switch("new", create=True)
    write_model(root / "model.safetensors", seed=2)
    write_config(root / "config.json", epoch=2)
    (root / "becomes-folder").unlink()
    (root / "becomes-folder").mkdir()
    (root / "becomes-folder" / "a").write_text("a")
    (root / "becomes-folder" / "b").write_text("b")
    shutil.rmtree(root / "folder-becomes-file")
    (root / "folder-becomes-file").write_text("a file now")
    (root / "link").unlink()
    (root / "link").symlink_to("run.sh")
    (root / "run.sh").chmod(0o755)
    (root / "only-new.bin").write_bytes(bytes(range(256)) * 40)
    repo.add(".")
    repo.commit("new", step=2)
    repo.switch("main")


def _files(root):
    """Return path → what lies there: link text, or executable bit and bytes."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name.split("/")[0] == ".mvc":
            continue
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = (bool(path.stat().st_mode & 0o100), path.read_bytes())
    return found


def _place(root):
    head = Repo.open(root).head
    return head.branch, head.commit


def _check_sound(root, where):
    report = Repo.open(root).upkeep.fsck(data=True)
    assert report.ok, f"{where}: {report.problems}"


def _check_swept(root):
    """Nothing of the killed is left in the worktree, and nothing staged once all is finished."""
    assert not list(root.rglob("*.mvc-tmp")) or all(
        ".mvc" in path.parts for path in root.rglob("*.mvc-tmp")
    )
    assert not (root / ".mvc" / "transition.json").exists()
    assert find_locks(root) == []


def _usual_seconds(zygote, verb, root, **arguments):
    outcome = zygote.run(verb, root, **arguments)
    assert outcome.error is None, outcome.error
    return outcome.seconds


@pytest.mark.parametrize("verb", rest_slow(["switch", "reset_hard"]))
def test_checkout(verb, tmp_path, zygote):
    root = tmp_path / "work"
    _build(root)
    targets = ["new", "main"]
    states = []
    for target in targets:  # left alone once, both ways: what is to come, and how long it takes
        seconds = _usual_seconds(zygote, "switch", root, branch=target)
        states.append(((*_place(root), ()), _files(root)))
    commits = [place[1] for (place, _) in states]
    chooser = random.Random(9)
    for number in range(_KILLS):
        target = number % 2
        arguments = {"branch": targets[target]}
        before = _place(root)
        if verb == "reset_hard":
            arguments = {"revision": commits[target]}
        delay_s = chooser.uniform(0, 1.1 * seconds)
        outcome = zygote.run(verb, root, kill_after_s=delay_s, **arguments)
        where = f"{verb} to {targets[target]}, kill {number} after {delay_s * 1e3:.2f} ms"
        assert outcome.error is None, f"{where}: {outcome.error}"
        files = _files(root)
        for path in {*states[0][1], *states[1][1], *files}:
            allowed = [state[1].get(path) for state in states]
            assert files.get(path) in [*allowed, None], f"{where}: {path}"
            if None not in allowed:
                assert path in files, f"{where}: {path} is gone"
        place = _place(root)
        assert place[1] in commits, where
        _check_sound(root, where)
        status = Repo.open(root).status()
        assert status.files == (), f"{where}: {status.files}"
        after = _place(root)
        assert _files(root) == states[commits.index(after[1])][1], where
        assert after[0] in (before[0], targets[target]), where
        _check_swept(root)
        getattr(verbs, verb)(root, **arguments)  # and the next one finds nothing in its way
        assert _place(root)[1] == commits[target], where
    verbs.switch(root, "main")
    assert not list((root / ".mvc" / "tmp").iterdir())


def test_add_and_commit(tmp_path, zygote):
    root = tmp_path / "work"
    _build(root)
    _edit(root, 1000)
    seconds = _usual_seconds(zygote, "add_and_commit", root, message="alone")
    chooser = random.Random(10)
    for number in range(_KILLS):
        _edit(root, number)
        files, before = _files(root), _place(root)
        delay_s = chooser.uniform(0, 1.1 * seconds)
        outcome = zygote.run("add_and_commit", root, kill_after_s=delay_s, message=f"{number}")
        where = f"kill {number} after {delay_s * 1e3:.2f} ms"
        assert outcome.error is None, f"{where}: {outcome.error}"
        assert _files(root) == files, where  # add and commit never touch the user's files
        _check_sound(root, where)
        repo = Repo.open(root, identity=verbs.WHO)
        commit = repo.head.commit
        if commit != before[1]:
            assert [entry.info.id for entry in repo.log(limit=2)] == [commit, before[1]], where
            assert repo.status().files == (), where
        else:
            repo.add(".")
            repo.commit(f"again {number}")
        assert repo.status().files == (), where
        assert len(repo.changes("HEAD")) == 2, where
        _check_swept(root)
    assert len(list(Repo.open(root).log())) == _KILLS + 2


def _edit(root, number):
    write_model(root / "model.safetensors", seed=number)
    write_config(root / "config.json", number=number)


@pytest.mark.parametrize("branch", rest_slow([None, "side"]))
def test_commit_state(branch, tmp_path, zygote):
    root = tmp_path / "work"
    _build(root)
    Repo.open(root).branches.create("side")
    ref = branch or "main"
    seconds = _usual_seconds(zygote, "commit_state", root, number=1000, branch=branch)
    chooser = random.Random(11)
    files, landed = _files(root), 1000
    for number in range(_KILLS):
        delay_s = chooser.uniform(0, 1.1 * seconds)
        outcome = zygote.run(
            "commit_state", root, kill_after_s=delay_s, number=number, branch=branch
        )
        where = f"kill {number} after {delay_s * 1e3:.2f} ms"
        assert outcome.error is None, f"{where}: {outcome.error}"
        _check_sound(root, where)
        status = Repo.open(root).status()
        assert status.files == (), f"{where}: {status.files}"
        loaded = verbs.load_state(root, ref)
        assert loaded in (landed, number), where
        if loaded == landed:
            verbs.commit_state(root, number, branch=branch)
        landed = number
        assert _files(root) == files, where
        _check_swept(root)
    steps = [entry.annotations.step for entry in Repo.open(root).log(ref)]
    assert steps == [*reversed(range(_KILLS)), 1000, 1]


def test_names(tmp_path, zygote):
    """Branches and tags: each name is at one of the places it was sent to, and can move again."""
    root = tmp_path / "work"
    _build(root)
    seconds = _usual_seconds(zygote, "move_names", root, revision="main")
    commits = {Repo.open(root).resolve(name) for name in ("main", "new")}
    chooser = random.Random(12)
    for number in range(_KILLS):
        delay_s = chooser.uniform(0, 1.1 * seconds)
        target = ("new", "main")[number % 2]
        outcome = zygote.run("move_names", root, kill_after_s=delay_s, revision=target)
        where = f"kill {number} after {delay_s * 1e3:.2f} ms"
        assert outcome.error is None, f"{where}: {outcome.error}"
        repo = Repo.open(root)
        names = {ref.name: ref.commit for ref in [*repo.branches.list(), *repo.tags.list()]}
        assert set(names.values()) <= commits, where
        assert {"main", "new"} <= names.keys(), where
        _check_sound(root, where)
        for ref in repo.branches.list():
            moves = repo.reflog(f"refs/heads/{ref.name}")
            assert moves[0].new == ref.commit, f"{where}: the log of {ref.name} says otherwise"
        verbs.move_names(root, target)
        after = Repo.open(root)
        assert after.resolve("moved") == after.resolve("v1") == after.resolve(target), where
        _check_swept(root)


def test_the_others_go_on(tmp_path, zygote):
    """One of several that work at once is killed: the others do not wait for it, nor lose a thing."""
    root = tmp_path / "work"
    _build(root)
    Repo.open(root).branches.create("side")
    chooser = random.Random(14)
    landed = {}
    for number in range(1, bounded(12, 150) + 1):
        first = 1000 * number
        numbers = {"main": range(first + 100, first + 103), "side": range(first + 200, first + 203)}
        commands = [("commit_states", root, {"first": first, "count": 100, "attempts": 1000})]
        commands += [
            (
                "commit_states",
                root,
                {"first": steps[0], "count": len(steps), "branch": branch, "attempts": 1000},
            )
            for branch, steps in numbers.items()
        ]
        delay_s = chooser.uniform(0.001, 0.08)
        outcomes = zygote.run_all(commands, kill_after_s=delay_s, victims=1)
        where = f"kill {number} after {delay_s * 1e3:.2f} ms"
        assert outcomes[0].killed, where
        assert [outcome.error for outcome in outcomes[1:]] == [None, None], where
        _check_sound(root, where)
        repo = Repo.open(root)
        assert repo.status().files == (), where
        for branch, steps in numbers.items():
            landed.setdefault(branch, []).extend(steps)
            found = [entry.annotations.step for entry in repo.log(branch, first_parent=True)]
            wanted = [*reversed(landed[branch])]
            assert [step for step in found if step in set(wanted)] == wanted, where
        _check_swept(root)


@pytest.mark.slow
def test_the_command_itself(tmp_path):
    """The real command, killed a few times on a real disk."""
    root = tmp_path / "work"
    _build(root)
    rng = np.random.default_rng(3)
    chooser = random.Random(13)
    for number in range(4):
        (root / "weights.bin").write_bytes(rng.bytes(3_000_000))
        process = subprocess.Popen(
            [sys.executable, "-m", "mvc", "commit", "-m", f"commit {number}", "."],
            cwd=root,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(chooser.uniform(0.2, 0.6))
        process.send_signal(signal.SIGKILL)
        process.wait()
        _check_sound(root, f"commit {number}")
        repo = Repo.open(root, identity=verbs.WHO)
        if repo.status().files:
            repo.add(".")
            repo.commit(f"again {number}")
        assert repo.status().files == ()

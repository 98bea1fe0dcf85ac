"""Several processes in one repository: one winner, clear conflicts, nothing lost, nobody waits.

Where the moment matters, the second writer acts in the middle of the first one, from its progress
callback, so the race always happens. Where it does not, processes are let loose at once and only
what must hold in every order is asserted.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time

import numpy as np
import pytest

from mvc import ConflictError, Repo
from mvc.progress import reporting
from support import verbs
from support.bounds import bounded
from support.leftovers import find_locks
from support.models import digests, write_config, write_model
from support.stockgit import git

_ROUNDS = bounded(2, 60)
_PROCESSES = 4


@pytest.fixture
def root(tmp_path):
    repo = Repo.init(tmp_path)
    repo.identity = verbs.WHO
    write_config(tmp_path / "config.json", epoch=0)
    repo.add(".")
    repo.commit("base")
    return tmp_path


def _check_sound(root):
    report = Repo.open(root).upkeep.fsck(data=True)
    assert report.ok, report.problems


def _once(action):
    """Return a progress callback that acts when it is called first."""
    calls = []

    def progress(size_bytes):
        if not calls:
            calls.append(action())

    return progress


# One branch, the second writer in the middle of the first.


def test_commit_in_the_middle_of_another(root):
    first, second = Repo.open(root), Repo.open(root)
    (root / "a.bin").write_bytes(bytes(3000))
    (root / "b.bin").write_bytes(bytes(4000))

    def interfere():
        second.commit("second", paths=["b.bin"])

    with pytest.raises(ConflictError, match="HEAD moved") as caught:
        with reporting(_once(interfere)):
            first.commit("first", paths=["a.bin"])
    assert caught.value.hint is not None
    assert Repo.open(root).show().info.subject == "second"
    assert {file.path for file in first.ls()} == {"b.bin", "config.json"}
    first.commit("first")  # what was staged before the conflict is still staged
    assert {file.path for file in first.ls()} == {"a.bin", "b.bin", "config.json"}
    _check_sound(root)


def test_branch_switched_under_a_commit(root):
    """The commit must not land on another branch that stands at the same commit."""
    first, second = Repo.open(root), Repo.open(root)
    (root / "a.bin").write_bytes(bytes(3000))
    with pytest.raises(ConflictError, match="HEAD moved"):
        with reporting(_once(lambda: second.switch("side", create=True))):
            first.commit("first", paths=["a.bin"])
    assert first.resolve("main") == first.resolve("side")
    with pytest.raises(ConflictError):
        with reporting(_once(lambda: second.switch("main"))):
            first.commit_state(verbs.make_state(1), message="first")
    assert first.resolve("main") == first.resolve("side")


def test_state_of_another_branch_that_becomes_the_current_one(root):
    first, second = Repo.open(root), Repo.open(root)
    first.branches.create("side")
    with pytest.raises(ConflictError):
        with reporting(_once(lambda: second.switch("side"))):
            first.commit_state(
                verbs.make_state(1),
                message="first",
                branch="side",
            )
    assert Repo.open(root).status().files == ()
    assert first.resolve("main") == first.resolve("side")


@pytest.mark.parametrize("path", ["model.safetensors", "config.json"])
def test_edit_in_the_middle_of_a_checkout(root, path):
    """What is staged, or edited after it was found clean, is not overwritten; nothing is changed."""
    repo, other = Repo.open(root), Repo.open(root)
    repo.switch("new", create=True)
    write_model(root / "model.safetensors", seed=1)
    write_config(root / "config.json", epoch=1)
    repo.commit("new", paths=["."])
    repo.switch("main")
    head, before = repo.head, digests(root)

    def interfere():
        (root / path).write_bytes(b"mine")
        if path == "model.safetensors":
            other.add(path)

    with pytest.raises(ConflictError, match=path), reporting(_once(interfere)):
        repo.switch("new")
    assert repo.head == head
    assert (root / path).read_bytes() == b"mine"
    assert digests(root) == {**before, path: digests(root)[path]}
    expected = {"model.safetensors": "A ", "config.json": " M"}[path]
    assert [file.code for file in Repo.open(root).status().files] == [expected]


# Processes let loose at once.


def test_losers_that_try_again_all_land(root, zygote):
    numbers = list(range(1, 3 * _PROCESSES + 1))
    outcomes = zygote.run_all(
        [("commit_state", root, {"number": number, "attempts": 200}) for number in numbers]
    )
    assert [outcome.error for outcome in outcomes] == [None] * len(numbers)
    repo = Repo.open(root)
    steps = [entry.annotations.step for entry in repo.log(first_parent=True)]
    assert sorted(steps[:-1]) == numbers
    for number in numbers:
        assert verbs.load_state(root, f"main@{number}") == number
    assert repo.status().files == ()
    _check_sound(root)


def test_files_committed_at_once(root, zygote):
    """The index is shared, as in Git: a commit may take along what others have staged."""
    for number in range(_ROUNDS):
        commands = [
            ("write_and_commit", root, {"path": f"{one}.txt", "text": f"{number}", "attempts": 200})
            for one in range(_PROCESSES)
        ]
        outcomes = zygote.run_all(commands)
        assert [outcome.error for outcome in outcomes] == [None] * _PROCESSES
        repo = Repo.open(root)
        assert repo.status().files == ()
        for one in range(_PROCESSES):
            assert repo.read_file("HEAD", f"{one}.txt") == f"{number}".encode()
    _check_sound(root)


def test_many_files_beside_those_who_remove(root, zygote):
    """Packs of the objects of one command, in the making beside one who removes such packs."""
    names = ["a", "b"]
    commands = [("commit_many_files", root, {"name": name, "rounds": _ROUNDS}) for name in names]
    commands.append(("collect", root, {"rounds": 3 * _ROUNDS}))
    outcomes = zygote.run_all(commands)
    assert [outcome.error for outcome in outcomes] == [None] * len(commands)
    repo = Repo.open(root)
    assert repo.status().files == ()
    for name in names:
        read = repo.read_file("HEAD", f"{name}/39.txt")
        assert read == f"{name} 39 of round {_ROUNDS - 1}".encode()
    _check_sound(root)
    git(repo.git_dir, "fsck", "--strict", "--full")


@pytest.mark.parametrize("gathers", [False, True])
def test_reader_during_commits(root, zygote, gathers):
    verbs.commit_state(root, 0)
    rounds = (5 if gathers else 2) * _ROUNDS
    mine = {"first": 1, "count": rounds, "gathers": gathers}
    commands = [
        ("commit_states", root, mine),
        ("commit_states", root, {**mine, "first": 1001, "branch": "side"}),
        ("read_for_a_while", root, {"until": rounds}),
        ("fsck_until", root, {"until": rounds}),
    ]
    Repo.open(root).branches.create("side")
    outcomes = zygote.run_all(commands)
    assert [outcome.error for outcome in outcomes] == [None] * len(commands)
    _check_sound(root)
    assert (len(Repo.open(root)._context.store.packs()) < 2 * rounds) == gathers


def test_checkouts_during_commits_elsewhere(root, zygote):
    repo = Repo.open(root)
    repo.branches.create("side")
    write_model(root / "model.safetensors", seed=1)
    repo.commit("with a model", paths=["."])
    outcomes = zygote.run_all(
        [
            ("commit_states", root, {"first": 1, "count": _ROUNDS, "branch": "side"}),
            ("checkout_often", root, {"revisions": ["HEAD~1", "main"], "times": 2 * _ROUNDS}),
        ]
    )
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert Repo.open(root).status().files == ()
    assert verbs.load_state(root, "side") == _ROUNDS
    _check_sound(root)


@pytest.mark.parametrize("other", ["switch", "add_and_commit"])
def test_checkouts_at_once(other, root, zygote):
    """Whatever wins, what is there in the end is one state and no file is a mixture."""
    repo = Repo.open(root)
    wholes = {}
    for seed, branch in enumerate(("one", "two", "three")):
        repo.switch(branch, create=True, start="main")
        write_model(root / "model.safetensors", seed=seed)
        write_config(root / "config.json", branch=branch)
        repo.commit(branch, paths=["."])
        wholes[branch] = digests(root)
    for number in range(_ROUNDS):
        commands = [("switch", root, {"branch": branch}) for branch in ("one", "two")]
        if other == "switch":
            commands.append(("switch", root, {"branch": "three"}))
        else:
            (root / "extra.txt").write_text(f"{number}")
            commands.append(("write_and_commit", root, {"path": "extra.txt", "text": f"{number}"}))
        outcomes = zygote.run_all(commands)
        assert {outcome.kind for outcome in outcomes} <= {None, "ConflictError"}, outcomes
        _check_sound(root)
        status = Repo.open(root).status()
        assert {file.path for file in status.files} <= {"extra.txt"}, status.files
        found = digests(root)
        found.pop("extra.txt", None)
        if status.branch in wholes:
            assert found == wholes[status.branch]
        (root / "extra.txt").unlink(missing_ok=True)
        repo = Repo.open(root)
        repo.reset(mode="hard")
        if "extra.txt" in {file.path for file in repo.ls()}:
            repo.remove("extra.txt", force=True)
            repo.commit("without")


def test_tensor_and_export_of_an_old_commit_while_packs_appear(root):
    """An open reader finds what others published after it looked, and keeps what it knew."""
    write_model(root / "model.safetensors", seed=1)
    reader, writer = Repo.open(root), Repo.open(root)
    first = writer.commit("one", paths=["."]).commit
    before = reader.tensor(first, "model.safetensors", "embed")
    write_model(root / "model.safetensors", seed=2)
    second = writer.commit("two", paths=["."]).commit
    after = reader.tensor(second, "model.safetensors", "embed")
    assert not np.array_equal(before, after)
    assert np.array_equal(reader.tensor(first, "model.safetensors", "embed"), before)


# One is killed.


def test_the_others_go_on(root, zygote):
    """One of several that work at once is killed: the others do not wait for it, nor lose a thing."""
    Repo.open(root).branches.create("side")
    chooser = random.Random(14)
    landed = {}
    for number in range(1, bounded(12, 150) + 1):
        first = 1000 * number
        numbers = {"main": range(first + 100, first + 103), "side": range(first + 200, first + 203)}
        commands = [("commit_states", root, {"first": first, "count": 100, "attempts": 1000})]
        for branch, steps in numbers.items():
            options = {"first": steps[0], "count": len(steps), "branch": branch, "attempts": 1000}
            commands.append(("commit_states", root, options))
        delay_s = chooser.uniform(0.001, 0.08)
        outcomes = zygote.run_all(commands, kill_after_s=delay_s, victims=1)
        where = f"kill {number} after {delay_s * 1e3:.2f} ms"
        assert outcomes[0].killed, where
        assert [outcome.error for outcome in outcomes[1:]] == [None, None], where
        _check_sound(root)
        repo = Repo.open(root)
        assert repo.status().files == (), where
        for branch, steps in numbers.items():
            landed.setdefault(branch, []).extend(steps)
            kept = [entry.step for entry in repo.log(branch, first_parent=True)]
            assert [step for step in kept if step in landed[branch]] == landed[branch][::-1], where
        assert all(".mvc" in path.parts for path in root.rglob("*.mvc-tmp")), where
        assert find_locks(root) == [], where


@pytest.mark.slow
def test_the_command_itself(root):
    """``tests/crash`` stops each verb at each step; this is the real command, killed at any moment."""
    draw, chooser = np.random.default_rng(3), random.Random(13)
    for number in range(4):
        (root / "weights.bin").write_bytes(draw.bytes(3_000_000))
        process = subprocess.Popen(
            [sys.executable, "-m", "mvc", "commit", "-m", f"commit {number}", "."],
            cwd=root,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(chooser.uniform(0.2, 0.6))
        process.kill()
        process.wait()
        _check_sound(root)
        repo = Repo.open(root, identity=verbs.WHO)
        if repo.status().files:
            repo.add(".")
            repo.commit(f"again {number}")
        assert repo.status().files == ()

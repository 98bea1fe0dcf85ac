"""Local changes put aside and brought back; stock Git reads the same stack."""

import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mvc import ConflictError, NotFoundError
from support.models import digests
from support.opened_repo import write
from support.stockgit import git
from support.transitions import codes


def put(root, **changes):
    found = {name: np.full((4, 3), place, np.float32) for place, name in enumerate("ab")}
    found |= {name: np.full((4, 3), value, np.float32) for name, value in changes.items()}
    save_file(found, root / "m.safetensors")


def read(root):
    return {name: float(value.flat[0]) for name, value in load_file(root / "m.safetensors").items()}


@pytest.fixture
def work(repo, root):
    root.mkdir(exist_ok=True)
    put(root)
    write(root, "notes", "1\n2\n3\n4\n5\n")
    write(root, "gone", "x")
    repo.add(".")
    repo.commit("base")
    return repo


def test_push_leaves_a_clean_worktree_and_pop_brings_all_back(work, root):
    put(root, a=7)
    (root / "gone").unlink()
    write(root, "new", "staged")
    work.add("new")
    write(root, "untracked", "mine")
    before, clean = digests(root), work.head
    entry = work.stash()
    assert work.status().is_clean
    assert work.head == clean
    assert sorted(digests(root)) == ["gone", "m.safetensors", "notes", "untracked"]
    assert entry.message.startswith("WIP on main: ")
    listed = git(work.git_dir, "stash", "list")
    assert listed.strip() == f"stash@{{0}}: {entry.message}"
    assert work.stash_apply(pop=True).conflicts == ()
    assert digests(root) == before
    assert {file.path: file.code for file in work.status().files} == {
        "gone": " D", "m.safetensors": " M", "new": "A ", "untracked": "??",
    }  # fmt: skip
    assert work.stashes() == []


def test_untracked_files_too(work, root):
    write(root, "folder/new", "n")
    before = digests(root)
    assert work.stash() is None
    assert work.stash("with a name", untracked=True).message == "On main: with a name"
    assert not (root / "folder").exists()
    write(root, "folder/new", "other")
    with pytest.raises(ConflictError, match="in the way"):
        work.stash_apply(pop=True)
    os.unlink(root / "folder/new")
    work.stash_apply(pop=True)
    assert digests(root) == before
    assert [file.code for file in work.status().files] == ["??"]


def test_a_stash_is_merged_into_what_came_since(work, root):
    put(root, a=7)
    write(root, "notes", "one\n2\n3\n4\n5\n")
    work.stash()
    put(root, b=9)
    write(root, "notes", "1\n2\n3\n4\nfive\n")
    work.commit("later", everything=True)
    work.stash_apply(pop=True)
    assert read(root) == {"a": 7, "b": 9}
    assert (root / "notes").read_text() == "one\n2\n3\n4\nfive\n"
    assert {file.code for file in work.status().files} == {" M"}


def test_conflicts_keep_the_stash(work, root):
    put(root, a=7)
    work.stash()
    put(root, a=8)
    work.commit("later", everything=True)
    before = digests(root)
    result = work.stash_apply(pop=True)
    assert [one.tensor for one in result.conflicts] == ["a"]
    assert digests(root) == before
    assert [one.tensor for one in work.status().conflicts] == ["a"]
    assert len(work.stashes()) == 1
    work.reset(mode="hard")
    work.stash_apply(pop=True, strategy="theirs")
    assert read(root)["a"] == 7
    assert work.stashes() == []


def test_the_stack(work, root):
    for number in range(3):
        put(root, a=10 + number)
        work.stash(f"{number}")
    assert [entry.message for entry in work.stashes()] == ["On main: 2", "On main: 1", "On main: 0"]
    work.stash_drop(1)
    assert [entry.message for entry in work.stashes()] == ["On main: 2", "On main: 0"]
    work.stash_drop()
    assert git(work.git_dir, "stash", "list").strip() == "stash@{0}: On main: 0"
    assert work.resolve("stash") == work.stashes()[0].commit
    work.upkeep.gc(work.upkeep.plan_gc(grace_s=0))
    assert work.upkeep.fsck(data=True).ok
    work.stash_apply()
    assert read(root)["a"] == 10
    with pytest.raises(NotFoundError, match="no stash 1"):
        work.stash_drop(1)
    assert work.stash_clear() == 1
    with pytest.raises(NotFoundError, match="there is no stash"):
        work.stash_apply()


def test_one_that_stock_git_made(work, root):
    write(root, "notes", "1\n2\n3\n4\nfive\n")
    for name, value in (("user.name", "A"), ("user.email", "a@b")):
        work.set_config(name, value)
    git(work.git_dir, "--work-tree", str(root), "update-index", "-q", "--refresh")
    git(work.git_dir, "--work-tree", str(root), "stash", "push", "--", "notes")
    assert (root / "notes").read_text().endswith("5\n")
    work.stash_apply(pop=True)
    assert (root / "notes").read_text().endswith("five\n")


def test_some_paths_only(work, root):
    put(root, a=7)
    write(root, "notes", "staged\n")
    work.add("notes")
    write(root, "notes", "edited\n")
    (root / "gone").unlink()
    write(root, "folder/new", "n")
    write(root, "mine", "m")
    before, seen = digests(root), codes(work)
    entry = work.stash(paths=["notes", "folder"], untracked=True)
    assert codes(work) == {"m.safetensors": " M", "gone": " D", "mine": "??"}
    assert (root / "notes").read_text() == "1\n2\n3\n4\n5\n"
    assert not (root / "folder").exists()
    assert [file.path for file in work.diff(f"{entry.commit}^1", entry.commit)] == ["notes"]
    work.stash_apply(pop=True, index=True)
    assert (digests(root), codes(work)) == (before, seen)
    assert (work.read_file("HEAD", "notes"), codes(work)["notes"]) == (b"1\n2\n3\n4\n5\n", "MM")


@pytest.mark.parametrize("index", [True, False])
def test_index_comes_back_where_it_is_asked_for(work, root, index):
    write(root, "notes", "staged\n2\n3\n4\n5\n")
    write(root, "fresh", "staged")
    work.add(["notes", "fresh"])
    write(root, "notes", "staged\n2\n3\n4\nedited\n")
    write(root, "fresh", "edited")
    before, seen = digests(root), codes(work)
    assert seen == {"notes": "MM", "fresh": "AM"}
    work.stash()
    work.stash_apply(pop=True, index=index)
    assert digests(root) == before
    assert codes(work) == (seen if index else {"notes": " M", "fresh": "A "})
    if index:
        assert git(work.git_dir, "show", ":notes").strip() == "staged\n2\n3\n4\n5"
        assert git(work.git_dir, "show", ":fresh") == "staged"


def test_an_index_that_conflicts_is_refused_before_anything(work, root):
    write(root, "notes", "staged\n")
    work.add("notes")
    work.stash()
    write(root, "notes", "other\n")
    work.add("notes")
    work.commit("other")
    before = digests(root)
    with pytest.raises(ConflictError, match="the stashed index conflicts with the index: 'notes'"):
        work.stash_apply(pop=True, index=True)
    assert (digests(root), codes(work), len(work.stashes())) == (before, {}, 1)


def test_what_is_staged_may_stay(work, root):
    write(root, "notes", "staged\n")
    work.add("notes")
    write(root, "notes", "edited\n")
    put(root, a=7)
    entry = work.stash(keep_index=True)
    assert codes(work) == {"notes": "M "}
    assert (root / "notes").read_text() == "staged\n"
    assert work.read_file(entry.commit, "notes") == b"edited\n"
    assert read(root) == {"a": 0, "b": 1}

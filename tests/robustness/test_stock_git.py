"""Stock Git on ``.mvc`` after every kind of operation, and mvc after stock Git.

One story is told; after each of its steps Git must find the repository sound and see the same
commits, names, index and logs as mvc does.
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from mvc import ConflictError, Repo
from support import verbs
from support.models import digests, write_config, write_model
from support.stockgit import git, run_git


@pytest.fixture
def repo(tmp_path):
    repo = Repo.init(tmp_path)
    repo.identity = verbs.WHO
    repo.set_config("mvc.chunkbytes", "1024")
    write_model(tmp_path / "model.safetensors", seed=1)
    write_config(tmp_path / "config.json", epoch=1)
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "link").symlink_to("config.json")
    (tmp_path / "größe.txt").write_text("größe")
    repo.commit("base", paths=["."], step=1)
    return repo


def _check_as_git_sees_it(repo):
    at = repo.git_dir
    told = run_git(at, "fsck", "--strict", "--full", "--no-dangling")
    assert told.stdout + told.stderr == b"", told
    head = repo.head
    assert git(at, "rev-parse", "HEAD") == head.commit
    if head.branch is not None:
        assert git(at, "symbolic-ref", "HEAD") == f"refs/heads/{head.branch}"
    ours = {f"refs/heads/{ref.name}": ref.commit for ref in repo.branches.list()}
    ours |= {f"refs/tags/{ref.name}": ref.commit for ref in repo.tags.list()}
    lines = git(at, "for-each-ref", "--format=%(refname) %(objectname) %(*objectname)").split("\n")
    theirs = {line.split()[0]: line.split()[-1] for line in lines}
    assert ours == theirs
    log = git(at, "log", "--all", "--date-order", "--format=%H %P%n%s").split("\n")
    told = [(e.info.id, e.info.parents, e.info.subject) for e in repo.log(everything=True)]
    assert sorted(told) == sorted(
        (ids.split()[0], tuple(ids.split()[1:]), subject)
        for ids, subject in zip(log[::2], log[1::2], strict=True)
    )
    _check_index(repo)
    for file in repo.ls():
        shown = run_git(at, "cat-file", "blob", f"HEAD:{file.path}").stdout
        if file.format is None:
            assert shown == repo.read_file("HEAD", file.path)
        else:
            assert shown.startswith(b'{"mvc-manifest":1,')
            assert shown.count(b"\n") >= 1 + len(file.tensors)
    moves = git(at, "reflog", "show", "--format=%H %gs", "HEAD").split("\n")
    assert moves == [f"{entry.new} {entry.message}" for entry in repo.reflog()]


def _check_index(repo):
    staged = run_git(repo.git_dir, "ls-files", "--stage", "-z").stdout.decode().split("\0")[:-1]
    index = repo._context.history.read_index()
    assert staged == [
        f"{entry.mode:o} {entry.blob} 0\t{path}"
        for path, entry in sorted(index.entries.items(), key=lambda pair: pair[0].encode())
    ]
    flags = run_git(repo.git_dir, "ls-files", "-t", "-z").stdout.decode().split("\0")[:-1]
    assert flags == [
        f"{'S' if index.entries[path].skip_worktree else 'H'} {path}"
        for path in sorted(index.entries, key=str.encode)
    ]


def test_after_every_operation(repo):
    root = repo.worktree
    _check_as_git_sees_it(repo)
    write_model(root / "model.safetensors", seed=1, norm=np.zeros(32, np.float32))
    repo.add("model.safetensors")
    _check_as_git_sees_it(repo)
    repo.commit("tuned", step=2, metrics={"loss": 0.5}, meta={"host": "here"})
    _check_as_git_sees_it(repo)
    assert git(repo.git_dir, "log", "-1", "--format=%(trailers:key=Step,valueonly)").strip() == "2"
    repo.commit("tuned, again", amend=True)
    _check_as_git_sees_it(repo)
    repo.switch("side", create=True, start="HEAD~1")
    _check_as_git_sees_it(repo)
    repo.move("config.json", "settings.json")
    repo.remove("run.sh")
    repo.commit("moved and removed")
    _check_as_git_sees_it(repo)
    repo.commit_state(verbs.make_state(3), message="state", step=3)
    _check_as_git_sees_it(repo)
    repo.commit_state(verbs.make_state(4), message="state elsewhere", step=4, branch="main")
    _check_as_git_sees_it(repo)
    repo.checkout("HEAD~1")
    _check_as_git_sees_it(repo)
    repo.switch("main")
    repo.reset("HEAD~1", mode="soft")
    _check_as_git_sees_it(repo)
    repo.reset("HEAD", mode="hard")
    _check_as_git_sees_it(repo)
    repo.restore("config.json", source="HEAD~1", staged=True)
    _check_as_git_sees_it(repo)
    repo.tags.create("light")
    repo.tags.create("heavy", "side", message="with a message")
    repo.branches.create("old/name", "side")
    repo.branches.rename("old/name", "new/name")
    repo.branches.delete("new/name", force=True)
    repo.tags.delete("light")
    _check_as_git_sees_it(repo)
    assert repo.upkeep.fsck(data=True).ok
    # gc and pack-refs of stock Git change where objects and refs lie, not what they are.
    before = digests(root)
    for command in (["pack-refs", "--all"], ["gc", "--quiet", "--prune=now"], ["repack", "-adf"]):
        git(repo.git_dir, *command)
    for opened in (repo, Repo.open(root)):
        assert opened.upkeep.fsck(data=True).ok
        _check_as_git_sees_it(opened)
        opened.checkout("side")
        opened.switch("main")
        assert digests(root) == before
    write_config(root / "config.json", epoch=9)
    repo.commit("after", paths=["."])
    repo.branches.create("more")
    repo.branches.delete("more")
    _check_as_git_sees_it(repo)


def test_git_holds_a_lock(repo):
    """A Git at work is not disturbed, and said to be there."""
    (repo.worktree / "new.txt").write_text("new")
    for name, action in [
        ("index", lambda: repo.add("new.txt")),
        ("refs/heads/main", lambda: repo.commit("x", allow_empty=True)),
        ("HEAD", lambda: repo.checkout("HEAD", detach=True)),
    ]:
        lock = repo.git_dir / f"{name}.lock"
        lock.touch()
        before = repo.head
        with pytest.raises(ConflictError) as caught:
            action()
        assert str(lock) in caught.value.message
        assert "git" in caught.value.hint
        assert lock.exists()
        lock.unlink()
        assert repo.head == before
        Repo.open(repo.worktree).status()
        action()
    _check_as_git_sees_it(repo)


def test_a_clone_of_the_folder(repo, tmp_path):
    """The folder is all there is: a copy anywhere is the same repository."""
    copy = tmp_path / "copy"
    shutil.copytree(repo.git_dir, copy / ".mvc")
    other = Repo.open(copy)
    assert {file.code for file in other.status().files} == {" D"}
    other.reset(mode="hard")
    assert digests(copy) == {k: v for k, v in digests(tmp_path).items() if "copy" not in k}
    _check_as_git_sees_it(other)

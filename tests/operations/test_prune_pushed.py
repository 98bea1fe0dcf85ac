"""prune --pushed: what a remote has goes here, what it cannot give stays, and reads fetch it back."""

import pytest
from safetensors.numpy import load_file

from mvc import NotFoundError, Repo, StorageError, UsageError
from mvc.storage.local import LocalStorage
from support.remote_repos import commit_model, make_repo

NAME = "model.safetensors"


@pytest.fixture
def repo(linked):
    repo = linked
    for seed in range(4):
        commit_model(repo, seed=seed)
    repo.push()
    return repo


def files_of(repo):
    return {one.id: load(repo, one.id) for one in repo.log()}


def load(repo, commit):
    return {name: value.tobytes() for name, value in repo.tensors(commit)}


def used_bytes(repo):
    return sum(path.stat().st_size for path in (repo.git_dir / "chunks").rglob("*.pack"))


def test_what_the_remote_has_goes_and_comes_back(repo, store):
    before, used = files_of(repo), used_bytes(repo)
    plan = repo.upkeep.plan_prune(pushed=True)
    assert used_bytes(repo) == used
    assert [bool(one.paths) for one in plan.commits] == [False, True, True, True]
    done = repo.upkeep.prune(plan)
    assert used_bytes(repo) <= used / 3
    assert done.freed_bytes >= used / 2
    report = repo.upkeep.fsck(data=True)
    assert report.ok
    assert (report.released, report.promised > 0) == (0, True)
    assert files_of(repo) == before
    assert repo.upkeep.gc().removed_packs == 0
    repo.checkout("HEAD~3", detach=True)
    assert load_file(repo.worktree / NAME).keys()
    assert (
        repo.upkeep.prune(repo.upkeep.plan_prune(pushed="origin")).freed_bytes == 0
        or repo.upkeep.fsck().ok
    )


def test_what_is_not_pushed_stays(repo):
    used = used_bytes(repo)
    new = commit_model(repo, seed=9)
    commit_model(repo, seed=10)
    plan = repo.upkeep.plan_prune(pushed=True)
    assert {one.commit: one.reasons for one in plan.commits}[new] == ("not pushed",)
    repo.upkeep.prune(plan)
    repo.set_config("remote.origin.promisor", None)
    assert load(repo, new)
    assert load(repo, "HEAD")
    assert used_bytes(repo) < used


@pytest.mark.parametrize("harm", ["gone", "short", "no index"])
def test_what_the_remote_lost_stays(repo, store, harm):
    """What counts is what is there now, whatever was pushed."""
    for pack in (store / "packs").glob("*.pack"):
        pack.chmod(0o644)
        if harm == "gone":
            pack.unlink()
        elif harm == "short":
            pack.write_bytes(pack.read_bytes()[:-1])
        else:
            pack.with_suffix(".idx").unlink()
    before, used = files_of(repo), used_bytes(repo)
    assert repo.upkeep.prune(repo.upkeep.plan_prune(pushed=True)).freed_bytes <= 0
    assert used_bytes(repo) == used
    assert files_of(repo) == before
    assert repo.upkeep.fsck(data=True).ok


@pytest.mark.parametrize("last", [1, 2])
def test_it_is_promised_before_it_goes(repo, monkeypatch, last):
    """A kill between indexes and packs, or after both, loses nothing."""
    before = files_of(repo)
    delete, calls = LocalStorage.delete, []

    def die(storage, *keys):
        delete(storage, *keys)
        calls.append(keys)
        if len(calls) == last:
            raise KeyboardInterrupt

    monkeypatch.setattr(LocalStorage, "delete", die)
    with pytest.raises(KeyboardInterrupt):
        repo.upkeep.prune(repo.upkeep.plan_prune(pushed=True))
    monkeypatch.undo()
    repo = Repo(repo.worktree)
    assert {one.kind for one in repo.upkeep.fsck(data=True).problems} <= {"missing-index"}
    assert files_of(repo) == before
    repo.upkeep.gc()
    assert repo.upkeep.fsck(data=True).ok
    assert files_of(repo) == before


def test_what_is_here_needs_no_remote(repo, store):
    repo.upkeep.prune(repo.upkeep.plan_prune(pushed=True))
    repo.upkeep.gc(grace_s=0)
    known = (repo.git_dir / "remotes/origin/indexes/packs").glob("*.idx")
    assert {one.name for one in known} == {one.name for one in (store / "packs").glob("*.idx")}
    store.rename(store.with_name("away"))
    repo = Repo(repo.worktree)
    assert load(repo, "HEAD")
    assert repo.upkeep.fsck(data=True).ok
    with pytest.raises(StorageError, match="origin"):
        load(repo, "HEAD~")


def test_rules_say_what_else_stays(repo):
    plan = repo.upkeep.plan_prune(pushed=True, keep_last=3)
    assert [bool(one.paths) for one in plan.commits] == [False, False, False, True]


def test_a_remote_is_needed(repo, store, tmp_path):
    with pytest.raises(NotFoundError, match="nowhere"):
        repo.upkeep.plan_prune(pushed="nowhere")
    with pytest.raises(UsageError, match="name"):
        repo.upkeep.plan_prune(pushed=str(store))
    other = make_repo(tmp_path / "other", str(tmp_path / "empty"))
    commit_model(other)
    with pytest.raises(NotFoundError, match="nothing was pushed"):
        other.upkeep.plan_prune(pushed=True)

"""init --store: the content is on a store from the first commit on."""

import random
import shutil

import numpy as np
import pytest

from mvc import ConflictError, NotFoundError, Repo, StorageError, UsageError, clone
from mvc.remotes.root_store import RootStore
from mvc.storage.local import LocalStorage
from support.bounds import bounded
from support.remote_repos import commit_model
from support.verbs import WHO
from support.zygote import Zygote


def make(folder, store):
    return prepare(Repo.init(folder, store=store))


def join(store, folder):
    return prepare(clone(store, folder, store=True))


@pytest.fixture
def repo(tmp_path, store):
    return make(tmp_path / "a", store)


def read_root(store):
    return RootStore(LocalStorage(store)).read()


def state_of(seed):
    rng = np.random.default_rng(seed)
    return {"model": {"w": rng.normal(size=(64, 64)).astype(np.float32)}, "step": seed}


def here_bytes(repo):
    return sum(path.stat().st_size for path in repo.git_dir.glob("chunks/packs/*.pack"))


def test_each_commit_is_on_the_store_and_few_requests_bring_it(repo, store, asked):
    for seed in range(3):
        asked.clear()
        done = repo.commit_state(state_of(seed), message=f"step {seed}")
        assert done.unsent is None
        assert read_root(store).refs == {"refs/heads/main": done.commit}
        calls = [call for one in asked for call in one.calls]
        assert len(calls) <= 7, calls
    commit_model(repo)
    assert read_root(store).refs == {"refs/heads/main": repo.resolve("HEAD")}
    assert repo.resolve("origin/main") == repo.resolve("main@{u}") == repo.resolve("HEAD")
    assert repo.upkeep.fsck(remote="origin", data=True).problems == ()


def test_another_machine_goes_on_and_reads_what_it_needs(repo, store, tmp_path):
    repo.commit_state(state_of(1), message="one", step=1)
    other = join(store, tmp_path / "b")
    assert here_bytes(other) == 0
    np.testing.assert_array_equal(
        other.load_state("main@1")["model"]["w"], state_of(1)["model"]["w"]
    )
    done = other.commit_state(state_of(2), message="two", step=2)
    assert done.unsent is None
    assert read_root(store).refs["refs/heads/main"] == done.commit
    copy = clone(store, tmp_path / "c")
    assert copy.upkeep.fsck(data=True).problems == ()
    assert copy.load_state("HEAD")["step"] == 2


def test_a_branch_that_others_moved_is_a_clear_conflict_and_nothing_is_lost(repo, store, tmp_path):
    repo.commit_state(state_of(1), message="one")
    other = join(store, tmp_path / "b")
    theirs = other.commit_state(state_of(2), message="two").commit
    mine = repo.commit_state(state_of(3), message="three")
    assert "main" in mine.unsent
    assert "fetch" in mine.unsent
    assert repo.resolve("HEAD") == mine.commit
    repo.fetch()
    again = repo.commit_state(state_of(4), message="four")
    assert "diverged" in again.unsent  # to have heard of it is not to give it up
    assert read_root(store).refs["refs/heads/main"] == theirs
    repo.branches.create("mine")
    repo.switch("mine")
    last = repo.commit_state(state_of(5), message="five")
    assert last.unsent is None
    assert read_root(store).refs == {"refs/heads/main": theirs, "refs/heads/mine": last.commit}
    copy = clone(store, tmp_path / "c", branch="mine")
    assert copy.load_state(mine.commit)["step"] == 3


def test_a_commit_that_cannot_be_sent_stands_and_the_next_one_brings_it(
    repo, store, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:

        def fail(*_args, **_options):
            raise StorageError("cannot read root: the store does not answer")

        patch.setattr(LocalStorage, "read_tagged", fail)
        done = repo.commit_state(state_of(1), message="one")
    assert "does not answer" in done.unsent
    assert repo.load_state("HEAD")["step"] == 1
    assert not store.exists() or read_root(store) is None
    assert repo.commit_state(state_of(2), message="two").unsent is None
    copy = clone(store, tmp_path / "b")
    assert copy.load_state(done.commit)["step"] == 1


def test_a_rollback_moves_the_branch_there_too_and_keeps_what_was_left(repo, store):
    first = repo.commit_state(state_of(1), message="one", step=1).commit
    left = repo.commit_state(state_of(2), message="two", step=2).commit
    repo.runs.rollback(repo.runs.plan_rollback(first), reason="diverged")
    done = repo.commit_state(state_of(3), message="three", step=3)
    assert done.unsent is None
    refs = read_root(store).refs
    assert refs["refs/heads/main"] == done.commit
    assert [name for name, value in refs.items() if value == left] == ["refs/heads/diverged/main/2"]


def test_what_is_here_is_bounded_and_the_rest_is_read_from_the_store(repo, store):
    repo.set_config("cache.size", "40K")
    for seed in range(8):
        assert repo.commit_state(state_of(seed), message=f"{seed}", step=seed).unsent is None
        assert here_bytes(repo) <= 40 * 1024
    for seed in range(8):
        state = repo.load_state(f"main@{seed}")
        np.testing.assert_array_equal(state["model"]["w"], state_of(seed)["model"]["w"])
    assert repo.upkeep.fsck(data=True).problems == ()
    repo.upkeep.gc(grace_s=0)
    repo.upkeep.repack()
    assert repo.load_state("main@0")["step"] == 0
    assert repo.upkeep.fsck(remote="origin", data=True).problems == ()


def test_what_a_reset_leaves_keeps_its_content_and_a_new_message_leaves_nothing(repo, store):
    repo.set_config("cache.size", "20K")
    for seed in range(4):
        left = repo.commit_state(state_of(seed), message=f"{seed}", step=seed).commit
    repo.reset("main@1", mode="hard")
    assert repo.commit_state(state_of(9), message="9", step=9).unsent is None
    diverged = f"refs/heads/diverged/main/{left[:10]}"
    assert read_root(store).refs == {"refs/heads/main": repo.resolve("HEAD"), diverged: left}
    assert repo.commit("other words", amend=True).unsent is None
    assert read_root(store).refs == {"refs/heads/main": repo.resolve("HEAD"), diverged: left}
    repo.remotes.gc(grace_s=0)
    for commit, seed in ((left, 3), ("HEAD", 9), ("main@0", 0)):
        np.testing.assert_array_equal(
            repo.load_state(commit)["model"]["w"], state_of(seed)["model"]["w"]
        )
    assert repo.upkeep.fsck(data=True).problems == ()
    repo.upkeep.gc(grace_s=0)
    repo.upkeep.repack()


def test_what_init_refuses_leaves_nothing(repo, store, tmp_path):
    repo.commit_state(state_of(1), message="one")
    with pytest.raises(ConflictError, match="has a history already"):
        make(tmp_path / "b", store)
    assert not (tmp_path / "b").exists()
    with pytest.raises(UsageError, match="is a Git host"):
        make(tmp_path / "b", "https://git.invalid/model.git")
    with pytest.raises(UsageError):
        make(tmp_path / "b", "s3:/")
    with pytest.raises(ConflictError, match="remote 'origin' already"):
        Repo.init(repo.worktree, store=tmp_path / "elsewhere")
    with pytest.raises(NotFoundError, match="no remote 'orgin'"):
        repo.set_config("mvc.store", "orgin")


def test_a_repository_moves_to_a_store(tmp_path, store):
    repo = Repo.init(tmp_path / "a")
    repo.identity = WHO
    old = commit_model(repo)
    Repo.init(tmp_path / "a", store=store)
    repo.commit_state(state_of(1), message="one")
    copy = clone(store, tmp_path / "b")
    assert copy.upkeep.fsck(data=True).problems == ()
    assert copy.resolve("HEAD~") == old


def test_a_commit_that_is_killed_leaves_both_sides_sound(tmp_path, store):
    """Wherever it ends: what was acknowledged is there, and the next commit brings the rest."""
    with Zygote("support.remote_verbs") as zygote:
        repo = make(tmp_path / "a", store)
        repo.commit_state(state_of(1), message="one")
        calls, _ = zygote.run("commit_one", _copy(repo, store, tmp_path / "dry"), at=-1).result
        for at in sorted(random.Random(5).sample(range(calls), bounded(4, calls))):
            place = tmp_path / str(at)
            work = _copy(repo, store, place)
            outcome = zygote.run("commit_one", work, at=at)
            assert outcome.killed or not outcome.error, outcome.error
            before = clone(place / "store", place / "before")
            assert before.upkeep.fsck(data=True).problems == ()
            again = Repo.open(work, identity=WHO)
            assert again.commit_state(state_of(9), message="nine").unsent is None
            after = clone(place / "store", place / "after")
            assert after.upkeep.fsck(data=True).problems == ()
            assert after.resolve("HEAD") == again.resolve("HEAD")
            assert after.load_state("HEAD")["step"] == 9


def _copy(repo, store, place):
    shutil.copytree(store, place / "store")
    shutil.copytree(repo.worktree, place / "work")
    Repo.open(place / "work").remotes.set_url("origin", str(place / "store"))
    return place / "work"


def prepare(repo):
    repo.set_config("mvc.chunkbytes", "4096")
    repo.identity = WHO
    return repo

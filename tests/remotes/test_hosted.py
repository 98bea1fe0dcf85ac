"""Two places that change one after the other: what happens in between loses nothing."""

import shutil

import pytest

from mvc import ConflictError, Repo, clone
from mvc.history.hosts import GitHost
from mvc.remotes import hosted
from mvc.remotes.root_store import RootStore
from mvc.storage.local import LocalStorage
from support.bounds import bounded
from support.git_hosts import make_bare, stock
from support.remote_repos import commit_model, make_repo
from support.zygote import Zygote


@pytest.fixture
def host(tmp_path):
    return make_bare(tmp_path / "host.git")


@pytest.fixture
def repo(tmp_path, host, store):
    repo = make_repo(tmp_path / "a")
    repo.remotes.add("origin", str(host), str(store))
    return repo


@pytest.fixture
def meanwhile(monkeypatch):
    """Return a function that has something done just before refs move on the host."""
    real = GitHost.push

    def do(action):
        def push(self, *args):
            monkeypatch.setattr(GitHost, "push", real)
            action()
            real(self, *args)

        monkeypatch.setattr(GitHost, "push", push)

    return do


def test_content_is_named_before_refs_move_and_again_if_a_sweep_was_between(repo, store, meanwhile):
    roots = RootStore(LocalStorage(store), is_hosted=True)
    named = []

    def sweep():
        named.append(roots.read().listed.packs)
        roots.update(lambda root: roots.drop_packs(root, root.listed.packs))

    commit_model(repo)
    meanwhile(sweep)
    repo.push()
    assert named[0]
    assert roots.read().listed.packs == named[0]
    assert roots.read().hosts == (f"{repo.remotes.list()['origin'].url.identity}",)
    assert repo.upkeep.fsck(remote="origin", data=True).ok


def test_only_what_is_new_comes(repo, host, store, tmp_path, monkeypatch):
    commit_model(repo)
    for number in range(30):
        (repo.worktree / "notes.txt").write_text(f"{number}\n" * 500)
        repo.commit(f"notes {number}", paths=["notes.txt"])
    repo.push()
    copy = clone(f"git+file://{host}", tmp_path / "b", content_url=store)
    (repo.worktree / "notes.txt").write_text("new")
    repo.commit("new", paths=["notes.txt"])
    repo.push()
    packs = []
    real = hosted.receive_host_pack
    monkeypatch.setattr(
        hosted,
        "receive_host_pack",
        lambda objects, path: packs.append(path.read_bytes()) or real(objects, path),
    )
    copy.fetch()
    copy.fetch()
    assert [int.from_bytes(pack[8:12]) for pack in packs] == [3]  # commit, tree, file


def test_of_two_that_push_at_once_the_second_is_told(repo, host, store, meanwhile, tmp_path):
    commit_model(repo)
    repo.push()
    other = clone(f"git+file://{host}", tmp_path / "b", content_url=store)
    other.identity = repo.identity
    theirs = commit_model(other, seed=1)
    commit_model(repo, seed=2)
    meanwhile(lambda: other.push("origin", ["main"]))
    with pytest.raises(ConflictError, match="refs/heads/main moved on the remote meanwhile"):
        repo.push()
    assert stock("rev-parse", "main", cwd=host) == theirs
    assert clone(f"git+file://{host}", tmp_path / "c", content_url=store).upkeep.fsck(data=True).ok


def test_a_push_that_is_killed_is_done_by_the_next(repo, host, store, tmp_path):
    commit_model(repo)
    repo.push()
    commit_model(repo, seed=1, layers=4)
    repo.branches.create("side")

    def copy(place):
        for folder in (host, store, repo.worktree):
            shutil.copytree(folder, place / folder.name)
        work = Repo.open(place / repo.worktree.name)
        work.remotes.set_url("origin", str(place / host.name), str(place / store.name))
        return work.worktree

    with Zygote("support.remote_verbs") as zygote:
        calls, _ = zygote.run("push", copy(tmp_path / "dry"), at=-1).result
        for at in range(1, calls, max(1, calls // bounded(4, calls))):
            place = tmp_path / str(at)
            work = copy(place)
            outcome = zygote.run("push", work, at=at)
            assert outcome.killed or not outcome.error, outcome.error
            url = f"git+file://{place / host.name}"
            assert (
                clone(url, place / "seen", content_url=place / store.name).upkeep.fsck(data=True).ok
            )
            done = zygote.run("push", work, at=-1)
            assert done.error is None, done.error
            seen = clone(url, place / "again", content_url=place / store.name)
            assert seen.upkeep.fsck(data=True).ok
            assert seen.resolve("origin/side") == repo.resolve("side")

"""kill -9 at any point of push, fetch and clone: nothing is lost, and the next attempt goes on."""

import random
import shutil

import pytest

from mvc import Repo
from mvc import clone as make_clone
from mvc.remotes import sweeping
from mvc.remotes.root_store import RootStore
from mvc.storage.local import LocalStorage
from support.bounds import bounded
from support.remote_repos import commit_model
from support.zygote import Zygote


@pytest.fixture(scope="module")
def zygote():
    with Zygote("support.remote_verbs") as zygote:
        yield zygote


@pytest.fixture
def repo(linked):
    """Some branches, some packs of which only a part is missing on the remote."""
    repo = linked
    commit_model(repo)
    repo.push()
    for seed in range(1, 4):
        commit_model(repo, seed=seed, layers=4)
    repo.branches.create("side")
    return repo


def points(calls, usual=4):
    """Return some numbers of calls at which to kill."""
    count = bounded(usual, calls)
    return sorted(random.Random(calls).sample(range(calls), min(calls, count)))


def finished(folder):
    """Return the packs that are whole, with what changes if one is written again."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.pack")}


def check_sound(store, folder):
    copy = make_clone(store, folder)
    assert copy.upkeep.fsck(data=True).problems == ()
    return copy


def test_a_push_that_is_killed_leaves_the_remote_sound_and_sends_no_pack_twice(
    zygote, repo, store, tmp_path
):
    calls, _ = zygote.run("push", _copy(repo, store, tmp_path / "dry"), at=-1).result
    for number, at in enumerate(points(calls)):
        place = tmp_path / str(number)
        work = _copy(repo, store, place)
        outcome = zygote.run("push", work, at=at)
        assert outcome.killed or not outcome.error, outcome.error
        check_sound(place / "store", place / "seen")
        sent = finished(place / "store" / "packs")
        done = zygote.run("push", work, at=-1)
        assert done.error is None, done.error
        assert not list((work / ".mvc" / "remotes" / "origin").glob("push-*"))
        assert sent.items() <= finished(place / "store" / "packs").items()
        again = check_sound(place / "store", place / "again")
        assert again.resolve("HEAD") == repo.resolve("HEAD")
        assert again.resolve("origin/side") == repo.resolve("side")


def test_a_fetch_that_is_killed_goes_on_without_reading_a_pack_twice(zygote, repo, store, tmp_path):
    make_clone(store, tmp_path / "old")
    repo.push(all_branches=True)
    _try_fetches(zygote, repo, tmp_path, lambda place: _copy_tree(tmp_path / "old", place), "fetch")


def test_a_clone_that_is_killed_goes_on(zygote, repo, store, tmp_path):
    repo.push(all_branches=True)
    _try_fetches(zygote, repo, tmp_path, lambda place: place, "clone", url=str(store))


def test_a_sweep_that_is_killed_leaves_the_remote_sound_and_the_next_one_ends_it(
    zygote, repo, store, tmp_path, monkeypatch
):
    monkeypatch.setattr(sweeping, "LEASE_S", 0)
    base = repo.resolve("HEAD~3")
    repo.upkeep.repack(repo.upkeep.plan_repack())
    repo.push("origin", ["side"])
    repo.push("origin", [":side"])
    goal = None
    calls, _ = zygote.run("gc_remote", _copy(repo, store, tmp_path / "dry"), at=-1).result
    for at in points(calls):
        place = tmp_path / str(at)
        work = _copy(repo, store, place)
        outcome = zygote.run("gc_remote", work, at=at)
        assert outcome.killed or not outcome.error, outcome.error
        assert check_sound(place / "store", place / "seen").resolve("HEAD") == base
        Repo.open(work).remotes.gc(grace_s=0)
        left = {path.parent.name for path in place.glob("store/*/*")}
        root = RootStore(LocalStorage(place / "store")).read()
        assert (root.removed, root.deleting) == ({}, {})
        listing = root.listed
        assert len(list(place.glob("store/packs/*.pack"))) == len(listing.packs)
        assert len(list(place.glob("store/history/*.pack"))) == len(listing.history)
        goal = goal or left
        assert left == goal
        check_sound(place / "store", place / "again")


@pytest.mark.slow
def test_a_prune_of_what_is_pushed_that_is_killed_loses_nothing(zygote, repo, store, tmp_path):
    repo.push(all_branches=True)
    wanted = _read_all(repo)
    calls, _ = zygote.run("prune_pushed", _copy(repo, store, tmp_path / "dry"), at=-1).result
    left = len(list((tmp_path / "dry/work/.mvc/chunks/packs").iterdir()))
    for at in points(calls, 4):
        work = _copy(repo, store, tmp_path / str(at))
        assert zygote.run("prune_pushed", work, at=at).killed
        killed = Repo.open(work)
        assert {one.kind for one in killed.upkeep.fsck(data=True).problems} <= {"missing-index"}
        assert _read_all(killed) == wanted
        done = zygote.run("prune_pushed", work, at=-1)
        assert done.error is None, done.error
        assert len(list((work / ".mvc/chunks/packs").iterdir())) <= left
        assert Repo.open(work).upkeep.fsck(data=True).problems == ()
        assert _read_all(Repo.open(work)) == wanted


@pytest.mark.slow
def test_shallow_clones_that_are_killed_go_on_and_get_whole(zygote, repo, store, tmp_path):
    repo.push(all_branches=True)
    old = tmp_path / "old"
    shallow = {"url": str(store), "depth": 2}
    calls, _ = zygote.run("clone", old, at=-1, **shallow).result
    for at in points(calls, 4):
        place = tmp_path / f"clone-{at}"
        zygote.run("clone", place, at=at, **shallow)
        done = zygote.run("clone", place, at=-1, **shallow)
        assert done.error is None or "already exists" in done.error, done.error
        assert len(list(Repo.open(place).log())) == 2
        assert Repo.open(place).upkeep.fsck(data=True).problems == ()
    calls, _ = zygote.run("unshallow", _copy_tree(old, tmp_path / "dry"), at=-1).result
    for at in points(calls, 5):
        place = _copy_tree(old, tmp_path / f"whole-{at}")
        assert zygote.run("unshallow", place, at=at).killed
        seen = len(list(Repo.open(place).log()))
        assert seen in (2, 4)
        assert Repo.open(place).upkeep.fsck(data=True).problems == ()
        done = zygote.run("unshallow", place, at=-1)
        assert seen == 4 or done.error is None, done.error
        assert len(list(Repo.open(place).log())) == 4
        assert Repo.open(place).upkeep.fsck(data=True).problems == ()


def _read_all(repo):
    commits = [one.id for one in repo.log()]
    return [(name, value.tobytes()) for one in commits for name, value in repo.tensors(one)]


def _try_fetches(zygote, repo, tmp_path, make, verb, **more):
    calls, _ = zygote.run(verb, make(tmp_path / "dry"), at=-1, **more).result
    for at in points(calls):
        place = make(tmp_path / str(at))
        outcome = zygote.run(verb, place, at=at, **more)
        assert outcome.killed or not outcome.error, outcome.error
        landing = place / ".mvc" / "remotes" / "origin" / "incoming"
        there = {path.stem for path in landing.glob("packs/*.idx")}
        done = zygote.run(verb, place, at=-1, **more) if outcome.killed else outcome
        if "already exists" in (done.error or ""):
            assert (place / "model.safetensors").exists()  # it had been done
        else:
            assert done.error is None, done.error
            read = {call[1] for call in done.result[1] if call[0] == "read_ranges"}
            assert not outcome.killed or not {f"packs/{pack}.pack" for pack in there} & read
        assert not list(landing.rglob("*.mvc-tmp"))
        copy = Repo.open(place)
        assert copy.upkeep.fsck(data=True).problems == ()
        assert copy.resolve("origin/main") == repo.resolve("HEAD")
        if verb == "clone":
            assert copy.head.commit == repo.resolve("HEAD")
            assert not copy.status().files
            assert not (place / ".mvc-clone").exists()


def _copy(repo, store, place):
    """Copy a repository and its remote, so that each try begins alike."""
    _copy_tree(store, place / "store")
    work = _copy_tree(repo.worktree, place / "work")
    Repo.open(work).remotes.set_url("origin", str(place / "store"))
    return work


def _copy_tree(source, target):
    shutil.copytree(source, target)
    return target

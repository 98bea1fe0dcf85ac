"""gc of a remote: what nothing reaches goes, in two steps; nothing that is reached ever does."""

import os
import time
from dataclasses import replace

import pytest

from mvc import (
    ConflictError,
    CorruptionError,
    MvcError,
    NotFoundError,
    UnsupportedError,
    UsageError,
    clone,
)
from mvc.operations import sending
from mvc.remotes import sweeping
from mvc.remotes.root_store import RootStore
from mvc.storage.local import LocalStorage
from support.damage import flip
from support.remote_repos import commit_model, make_repo

WEEK_S = 7 * 24 * 3600


@pytest.fixture
def repo(linked):
    """A repository whose remote had a branch of its own content, which is gone."""
    repo = linked
    commit_model(repo)
    repo.push()
    repo.branches.create("side")
    repo.switch("side")
    commit_model(repo, seed=1)
    repo.push("origin", ["side"])
    repo.switch("main")
    repo.push("origin", [":side"])
    return repo


def read_root(store):
    return RootStore(LocalStorage(store)).read()


def files(store, folder="*"):
    return {str(path.relative_to(store)) for path in store.glob(f"{folder}/*")}


def make_older(store, by_s):
    """Let all that happened on a store have happened earlier."""
    for path in store.glob("*/*"):
        made_s = path.stat().st_mtime - by_s
        os.utime(path, (made_s, made_s))
    roots = RootStore(LocalStorage(store))

    def change(root):
        removed = {name: int(at - by_s) for name, at in root.removed.items()}
        deleting = {name: int(at - by_s) for name, at in root.deleting.items()}
        return replace(root, removed=removed, deleting=deleting)

    roots.update(change)


def check_whole(store, folder, branch="main"):
    copy = clone(store, folder, branch=branch)
    assert copy.upkeep.fsck(data=True).problems == ()
    assert copy.upkeep.fsck(remote="origin", data=True).problems == ()
    return copy


def test_garbage_leaves_the_root_and_later_the_store(repo, store, tmp_path):
    before = files(store)
    planned = repo.remotes.plan_gc()
    assert (planned.sweep.removed_packs, planned.history_packs) == (1, 1)
    assert (planned.delete_objects, planned.waiting_objects) == (0, 0)
    assert files(store) == before
    done = repo.remotes.gc()
    assert (done.left_packs, done.deleted_objects, done.waiting_objects) == (2, 0, 3)
    assert files(store) == before
    root = read_root(store)
    assert len(root.removed) == 2
    assert len(root.listed.packs) == len(root.listed.history) == 1
    make_older(store, WEEK_S)
    assert repo.remotes.gc().deleted_objects == 0
    make_older(store, WEEK_S + 60)
    last = repo.remotes.gc()
    assert (last.deleted_objects, last.waiting_objects) == (3, 0)
    assert last.freed_bytes == done.waiting_bytes > 0
    root = read_root(store)
    assert (root.removed, root.deleting, root.sweeps) == ({}, {}, 1)
    assert len(files(store)) == len(before) - 3
    assert repo.remotes.plan_gc().is_empty
    check_whole(store, tmp_path / "b")


def test_without_grace_it_goes_at_once_and_comes_back_with_a_push(repo, store, tmp_path):
    assert repo.remotes.gc(grace_s=0).deleted_objects == 3
    repo.push("origin", ["side"])
    check_whole(store, tmp_path / "b", "side")
    assert repo.remotes.gc(grace_s=0).deleted_objects == 0


def test_what_a_push_that_died_left_goes_after_the_grace(repo, store):
    repo.remotes.gc(grace_s=0)
    garbage = {f"packs/{'a' * 64}.pack", f"packs/{'a' * 64}.idx", f"packs/{'b' * 64}.pack"}
    for name in {*garbage, f"history/{'c' * 40}.pack", f"lists/{'d' * 64}", "packs/mine.txt"}:
        (store / name).parent.mkdir(exist_ok=True)
        (store / name).write_bytes(b"x")
    done = repo.remotes.gc()
    assert (done.deleted_objects, done.waiting_objects) == (0, 5)
    make_older(store, 3 * WEEK_S)
    assert repo.remotes.gc().deleted_objects == 5
    assert "packs/mine.txt" in files(store)


def test_a_pack_that_is_mostly_garbage_is_written_again(tmp_path, store):
    repo = make_repo(tmp_path / "a", str(store))
    base = commit_model(repo)
    commit_model(repo, seed=1, layers=16)
    repo.upkeep.repack(repo.upkeep.plan_repack())  # both are in one pack now
    repo.push()
    repo.push("origin", [f"+{base}:refs/heads/main"])
    (old,) = store.glob("packs/*.pack")
    old_bytes = old.stat().st_size
    done = repo.remotes.gc(grace_s=0)
    (new,) = store.glob("packs/*.pack")
    assert new != old
    assert new.stat().st_size < old_bytes / 2
    assert done.plan.sweep.rewritten_packs == 1
    assert done.new_packs_bytes == sum(one.stat().st_size for one in store.glob("*/*.pack"))
    assert check_whole(store, tmp_path / "c").resolve("HEAD") == base


def test_short_packs_and_git_packs_are_joined(tmp_path, store, monkeypatch):
    monkeypatch.setattr("mvc.operations.gc_remote.CROWD_PACKS", 8)
    monkeypatch.setattr("mvc.remotes.history.CROWD_PACKS", 8)
    repo = make_repo(tmp_path / "a", str(store))
    for seed in range(8):
        commit_model(repo, seed=seed)
        repo.push()
    assert len(list(store.glob("packs/*.pack"))) == 8
    tip = repo.resolve("HEAD")
    repo.remotes.gc(grace_s=0)
    assert len(list(store.glob("packs/*.pack"))) == 1
    assert len(list(store.glob("history/*.pack"))) <= 2
    assert check_whole(store, tmp_path / "b").resolve("HEAD") == tip


def test_what_is_published_and_tagged_stays(tmp_path, store):
    repo = make_repo(tmp_path / "a", str(store))
    base = commit_model(repo)
    repo.tags.create("v1", message="one")
    tagged = commit_model(repo, seed=1)
    repo.publish("prod", tagged)
    repo.push("origin", ["v1"])
    repo.push("origin", [f"+{base}:refs/heads/main"])
    before = files(store)
    assert repo.remotes.gc(grace_s=0).left_packs == 0
    assert files(store) == before
    assert read_root(store).channels["prod"].commit == tagged


def test_released_content_may_be_missing(tmp_path, store):
    repo = make_repo(tmp_path / "a", str(store))
    for seed in range(3):
        commit_model(repo, seed=seed)
    repo.upkeep.prune(repo.upkeep.plan_prune(keep_last=1))
    repo.push()
    before = files(store, "packs")
    assert repo.remotes.gc(grace_s=0).plan.sweep.is_empty
    assert files(store, "packs") == before
    check_whole(store, tmp_path / "b")


@pytest.mark.parametrize("what", ["packs/*.pack", "packs/*.idx", "history/*.pack"])
def test_nothing_is_removed_from_a_damaged_remote(repo, store, what):
    named = sorted(store.glob(what), key=lambda path: path.stat().st_mtime_ns)
    named[0].unlink()  # of main, that is
    before, root = files(store), read_root(store)
    with pytest.raises(MvcError, match="lacks"):
        repo.remotes.gc(grace_s=0)
    assert (files(store), read_root(store)) == (before, root)


def test_damage_is_not_carried_on(tmp_path, store):
    repo = make_repo(tmp_path / "a", str(store))
    for layers in (2, 16):
        commit_model(repo, layers=layers)
    repo.upkeep.repack(repo.upkeep.plan_repack())
    repo.push()
    repo.push("origin", [f"+{repo.resolve('HEAD~')}:refs/heads/main"])
    (pack,) = store.glob("packs/*.pack")
    flip(pack)
    with pytest.raises(CorruptionError, match="remote sent damaged"):
        repo.remotes.gc(grace_s=0)
    assert list(store.glob("packs/*.pack")) == [pack]
    assert list(read_root(store).listed.packs) == [pack.stem]


def test_pushes_that_built_upon_what_goes_plan_again(repo, store, tmp_path, monkeypatch):
    """The content is on the remote when the push looks, and gone when its refs are to move."""
    sweeper = clone(store, tmp_path / "sweeper")
    repo.push("origin", ["side"])
    repo.push("origin", [":side"])
    real, swept = sending.send_history, []

    def sweep_first(*args, **options):
        done = real(*args, **options)
        if not swept:
            swept.append(sweeper.remotes.gc(grace_s=0))
        return done

    monkeypatch.setattr(sending, "send_history", sweep_first)
    repo.push("origin", ["side"])
    assert swept[0].deleted_objects == 3
    check_whole(store, tmp_path / "b", "side")


def test_sweeps_that_find_their_garbage_used_plan_again(repo, store, tmp_path, monkeypatch):
    """A branch comes back after the sweep has looked, and before its root is there."""
    sweeper = clone(store, tmp_path / "sweeper")
    real, pushed = RootStore.update, []

    def push_first(self, change, **options):
        if not pushed:
            pushed.append(True)
            repo.push("origin", ["side"])
        return real(self, change, **options)

    monkeypatch.setattr(RootStore, "update", push_first)
    assert sweeper.remotes.gc(grace_s=0).left_packs == 0
    check_whole(store, tmp_path / "b", "side")


def test_uploads_of_before_that_are_swept_are_sent_again(repo, store, tmp_path, monkeypatch):
    """A push finds its pack there, from one that died; it is deleted before the refs move."""
    sweeper = clone(store, tmp_path / "sweeper")
    repo.remotes.gc()  # not named any more, and there for two weeks
    real, swept = sending.send_history, []

    def sweep_first(*args, **options):
        if not swept:
            swept.append(sweeper.remotes.gc(grace_s=0))
        return real(*args, **options)

    monkeypatch.setattr(sending, "send_history", sweep_first)
    repo.push("origin", ["side"])
    assert swept[0].deleted_objects == 3
    check_whole(store, tmp_path / "b", "side")


def test_what_is_being_deleted_is_not_built_upon(repo, store, tmp_path):
    """A sweep that was killed after it announced what goes holds that back for an hour."""
    repo.remotes.gc()
    roots = RootStore(LocalStorage(store))
    found = sweeping.list_unnamed(roots.storage, roots.read(), roots.read_listing(roots.read()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStorage, "delete", _die)
        with pytest.raises(KeyboardInterrupt):
            list(sweeping.delete_unnamed(roots, found, before_s=time.time() + 1))
    assert len(read_root(store).deleting) == 2
    with pytest.raises(ConflictError, match="is deleting"):
        repo.push("origin", ["side"])
    assert repo.remotes.gc(grace_s=0).deleted_objects == 0
    make_older(store, sweeping.LEASE_S + 1)
    assert repo.remotes.gc().deleted_objects == 3
    assert read_root(store).deleting == {}
    repo.push("origin", ["side"])
    check_whole(store, tmp_path / "b", "side")


def _die(*_):
    raise KeyboardInterrupt


def test_an_empty_remote_and_wrong_arguments(tmp_path, store):
    repo = make_repo(tmp_path / "a", str(store))
    with pytest.raises(NotFoundError, match="nothing was pushed"):
        repo.remotes.gc()
    with pytest.raises(UsageError, match="negative"):
        repo.remotes.gc(grace_s=-1)
    repo.remotes.add("host", "https://git.invalid/model.git", str(store))
    with pytest.raises(UnsupportedError, match="on a Git host"):
        repo.remotes.gc("host")

"""publish and follow: what a channel names is in a folder, whole and verified, whatever happens."""

import contextlib
import os
import random
import resource
import subprocess
import sys
import time

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import mvc
from mvc import ConflictError, FormatError, NotFoundError, StorageError, UsageError
from mvc.operations.follow import Follower
from mvc.operations.follow import follow as run_follow
from mvc.progress import reporting
from mvc.remotes import history
from mvc.remotes.root_store import RootStore
from mvc.storage.limited import RateLimit
from mvc.storage.local import LocalStorage
from support.bounds import bounded
from support.damage import flip
from support.models import digests
from support.remote_repos import CountedStorage, commit_model, make_repo


@pytest.fixture
def repo(linked):
    return linked


@pytest.fixture
def follower(store, tmp_path):
    return Follower(str(store), "prod", tmp_path / "serve")


def current(follower):
    return digests(follower.folder / "current")


def test_a_channel_moves_and_the_folder_follows(repo, follower):
    first = commit_model(repo, seed=1)
    done = repo.publish("prod")
    assert (done.number, done.previous, done.is_new) == (1, None, True)
    assert repo.publish("prod").is_new is False
    version = follower.step()
    assert (version.number, version.commit, version.previous) == (1, first, None)
    assert os.readlink(follower.folder / "current") == "weight_v000001"
    one = current(follower)
    assert follower.step() is None
    second = commit_model(repo, seed=2)
    repo.publish("prod")
    version = follower.step()
    assert (version.number, version.commit, version.previous) == (2, second, first)
    assert current(follower) != one
    assert repo.publish("prod", first).number == 3
    assert follower.step().received_bytes == 0
    assert current(follower) == one


def test_versions_before_the_newest_go(repo, store, tmp_path):
    follower = Follower(str(store), "prod", tmp_path / "serve", keep=1)
    for seed in range(5):
        commit_model(repo, seed=seed)
        repo.publish("prod")
        if seed != 1:  # what lies between is skipped
            follower.step()
    kept = {one.name for one in follower.folder.iterdir() if not one.name.startswith(".")}
    assert kept == {"weight_v000004", "weight_v000005", "current"}


def test_mistakes(repo, store, tmp_path, follower):
    with pytest.raises(NotFoundError, match="nothing is published"):
        follower.step()
    commit_model(repo)
    with pytest.raises(UsageError, match="channel"):
        repo.publish("a..b")
    with pytest.raises(NotFoundError):
        repo.publish("prod", "nope")
    repo.publish("prod")
    with pytest.raises(NotFoundError, match="'other'"):
        Follower(str(store), "other", tmp_path / "serve").step()
    with pytest.raises(ConflictError, match="follows"):
        Follower(str(tmp_path / "elsewhere"), "prod", tmp_path / "serve")


def test_damage_leaves_the_version_before(repo, store, follower):
    commit_model(repo, seed=1)
    repo.publish("prod")
    follower.step()
    before = current(follower)
    packs = set((store / "packs").glob("*.pack"))
    commit_model(repo, seed=2)
    repo.publish("prod")
    (new,) = set((store / "packs").glob("*.pack")) - packs
    flip(new)
    with pytest.raises(FormatError):
        follower.step()
    assert current(follower) == before
    flip(new)
    assert follower.step().number == 2


def test_a_channel_keeps_what_it_names_for_the_next_push(repo, store, tmp_path):
    commit_model(repo, seed=1)
    sent = repo.publish("prod").sent_bytes
    assert sent > 1000
    assert repo.push().sent_bytes == 0
    root = RootStore(LocalStorage(store)).read()
    assert root.channels["prod"].commit == root.refs["refs/heads/main"]


_STEP = """
import sys
from pathlib import Path
from mvc.operations.follow import Follower
from mvc.operations.follow import follow as run_follow
follower = Follower(sys.argv[1], "prod", Path(sys.argv[2]))
print("ready", flush=True)
follower.step()
"""


KILLS = int(os.environ.get("MVC_KILLS", "10"))  # a thousand take some minutes


@pytest.mark.slow
def test_a_kill_anywhere_leaves_a_whole_version(repo, store, tmp_path, follower):
    commits, wanted, longest_s = [], [], 0.0
    for seed in range(5):
        commits.append(commit_model(repo, seed=seed))
        repo.publish("prod")
        begun_s = time.perf_counter()
        follower.step()
        longest_s = max(longest_s, time.perf_counter() - begun_s)
        wanted.append(current(follower))
    moments = random.Random(0)
    for number in range(KILLS):
        before, target = follower.number, number % len(commits)
        published = repo.publish("prod", commits[target]).number
        child = subprocess.Popen(
            [sys.executable, "-c", _STEP, str(store), str(follower.folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert child.stdout.readline() == b"ready\n"
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(moments.uniform(0, 2 * longest_s))
        child.kill()
        child.communicate()
        assert follower.number in (before, published)
        last = target if follower.number == published else (number - 1) % len(commits)
        assert current(follower) == wanted[last]
        follower.step()
        assert current(follower) == wanted[target]
    assert not list(follower.folder.glob(".coming-*"))


def test_one_percent_of_the_weights_travels_as_about_that(tmp_path, store):
    """As steps of reinforcement learning: 1 % of the bf16 weights change each time, scattered."""
    repo = make_repo(tmp_path / "a", str(store))
    repo.set_config("mvc.chunkbytes", str(2**20))
    random = np.random.default_rng(0)
    weights = (random.standard_normal(2 * 2**20) * 0.02).astype(ml_dtypes.bfloat16)
    follower, words = Follower(str(store), "prod", tmp_path / "serve"), weights.view(np.uint16)
    for number in range(bounded(6, 100)):
        if number:
            places = random.choice(words.size, words.size // 100, replace=False)
            words[places] += random.choice(np.array([1, 2, 0xFFFF], np.uint16), places.size)
        save_file({"w": weights.reshape(2048, 1024)}, repo.worktree / "m.safetensors")
        repo.commit("step", paths=["m.safetensors"])
        sent = repo.publish("prod").sent_bytes
        received = follower.step().received_bytes
        assert not number or max(sent, received) <= 0.015 * weights.nbytes
        assert digests(follower.folder / "current") == digests(repo.worktree)


def test_released_content_is_not_published(repo):
    old = commit_model(repo, seed=0)
    commit_model(repo, seed=1)
    repo.upkeep.prune(repo.upkeep.plan_prune(keep_last=1))
    with pytest.raises(NotFoundError, match="lacks content"):
        repo.publish("prod", old)
    repo.push()
    with pytest.raises(NotFoundError, match="lacks content"):
        repo.publish("prod", old)
    assert repo.remotes.refs().channels == {}


def test_what_no_version_needs_is_not_kept(repo, follower):
    sizes = []
    for seed in range(12):
        commit_model(repo, seed=seed)
        repo.publish("prod")
        follower.step()
        packs = (follower.folder / ".mvc").rglob("chunks/packs/*.pack")
        sizes.append(sum(one.stat().st_size for one in packs))
    assert sizes[0] > 10_000
    assert max(sizes) <= 3 * sizes[0], "two versions, and what they are differences to"
    assert len(list((follower.folder / ".mvc/objects/pack").glob("*.pack"))) <= 10
    assert current(follower) == digests(repo.worktree)
    assert repo.publish("prod", "HEAD~4").number == 13
    assert follower.step().received_bytes > 0
    assert not list(follower.folder.glob(".*-*"))


def test_what_is_renamed_or_has_another_type_is_told(repo, store, tmp_path):
    def publish(**tensors):
        save_file(tensors, repo.worktree / "m.safetensors")
        repo.commit("next", paths=["m.safetensors"])
        repo.publish("prod")
        (update,) = mvc.follow(store, "prod", tmp_path / "serve", once=True)
        return update

    one, two, three = (np.full((4, 4), value, np.float32) for value in (1, 2, 3))
    first = publish(a=one, b=two, c=three, d=three)
    assert (first.changes().added, first.changes().removed) == (set("abcd"), set()) == first.names()
    assert len(dict(first.tensors())) == 4
    same = publish(a=one, b=two * 2, c=three, d=three)
    assert not same.changes()
    ((name, array),) = same.tensors()
    assert (name, (array == 4).all()) == ("b", True)
    assert list(mvc.follow(store, "prod", tmp_path / "serve", once=True)) == []
    update = publish(x=one, y=three, b=two.astype(np.float16), c=three.reshape(2, 8))
    changes = update.changes()
    assert (changes.added, changes.removed) == ({"x", "y"}, {"a", "d"}) == update.names()
    assert changes.renamed == {"a": "x", "d": "y"}
    assert changes.retyped == {
        "b": ("F32 [4, 4]", "F16 [4, 4]"),
        "c": ("F32 [4, 4]", "F32 [2, 8]"),
    }
    assert {name: array.dtype for name, array in update.tensors()}["b"] == np.float16


def test_a_poll_that_finds_nothing_new_is_one_tiny_request(repo, store, tmp_path):
    commit_model(repo, seed=1)
    repo.publish("prod")
    follower = Follower(str(store), "prod", tmp_path / "serve")
    counted = CountedStorage(LocalStorage(store))
    follower._there.roots.storage = counted
    assert follower.step().number == 1
    counted.calls.clear()
    for _ in range(3):
        assert follower.step() is None
    assert counted.calls == [("is_current", "root")] * 3
    repo.push()
    assert follower.step() is None, "the root moved, the channel did not"
    counted.calls.clear()
    assert follower.step() is None
    assert counted.calls == [("is_current", "root")]
    commit_model(repo, seed=2)
    repo.publish("prod")
    assert follower.step().number == 2


def test_a_store_that_stays_away_is_asked_less_and_less(repo, store, follower):
    commit_model(repo, seed=1)
    repo.publish("prod")
    root, pauses = (store / "root").read_bytes(), []
    (store / "root").write_bytes(b"not a root")

    def sleep(pause_s):
        pauses.append(pause_s)
        if len(pauses) == 8:
            (store / "root").write_bytes(root)

    updates = run_follow(follower, interval_s=4, once=False, sleep=sleep)
    assert next(updates).version.number == 1
    wanted = [8, 16, 32, 60, 60, 60, 60, 60]
    assert all(0.9 * one <= got <= 1.1 * one for got, one in zip(pauses, wanted, strict=True))
    commit_model(repo, seed=2)
    repo.publish("prod")
    next(updates)
    assert 3.6 <= pauses[8] <= 4.4


def test_a_store_that_vanishes_is_waited_for(repo, store, follower):
    """As a share that is not mounted for a while: no root, and no channel."""
    commit_model(repo, seed=1)
    repo.publish("prod")
    told, away = [], store.with_name("away")

    def wait(failure):
        told.append(str(failure))
        if failure is not None:
            away.rename(store)

    updates = run_follow(follower, interval_s=0, once=False, waiting=wait, sleep=lambda _: None)
    next(updates)
    commit_model(repo, seed=2)
    repo.publish("prod")
    store.rename(away)
    assert next(updates).version.number == 2
    assert told == ["nothing is published as 'prod'", "None"]


def test_a_full_disk_leaves_the_version_before_and_is_waited_out(repo, store, tmp_path, follower):
    """A limit on the length of files stands for it: the packs fit, the files do not."""
    commit_model(repo, seed=1)
    repo.publish("prod")
    follower.step()
    before = current(follower)
    save_file({"w": np.zeros(2**19, np.float32)}, repo.worktree / "model.safetensors")
    repo.commit("large", paths=["model.safetensors"])
    repo.publish("prod")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
    try:
        for _ in range(2):
            with pytest.raises(StorageError, match=r"cannot write .*file too large"):
                follower.step()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert current(follower) == before
    assert not list(follower.folder.glob(".coming-*")), "room is given back"
    version = follower.step()
    assert (version.number, version.received_bytes) == (2, 0), "what had come is used"
    assert current(follower) == digests(repo.worktree)


def test_rates_are_kept(repo, store, tmp_path, monkeypatch):
    taken = []
    monkeypatch.setattr(RateLimit, "take", lambda self, size: taken.append((self._bytes_s, size)))
    commit_model(repo, seed=1)
    sent = repo.publish("prod", limit_bytes_s=1000).sent_bytes
    assert sum(size for rate, size in taken if rate == 1000) >= sent
    (update,) = mvc.follow(store, "prod", tmp_path / "serve", once=True, limit_bytes_s=2000)
    came = sum(size for rate, size in taken if rate == 2000)
    assert came >= update.version.received_bytes > 0
    with pytest.raises(UsageError, match="not a valid rate"):
        repo.publish("prod", limit_bytes_s=0)


def test_publishing_a_series_sends_no_step_again(repo, store, monkeypatch):
    """Until it is long; a push joins the short packs of the steps."""
    monkeypatch.setattr(history, "CROWD_PACKS", 1)
    counts = []
    for seed in range(15):
        commit_model(repo, seed=seed)
        repo.publish("prod") if seed < 14 else repo.push()
        counts.append(len(RootStore(LocalStorage(store)).read().listed.packs))
    assert counts[:8] == [*range(1, 9)]
    assert counts[8] <= 2
    assert counts[-1] < counts[-2]


def test_progress_knows_what_is_to_come(repo, follower, bar):
    commit_model(repo)
    repo.publish("prod")
    with reporting(bar):
        follower.step()
    assert bar.done == bar.expected > 0

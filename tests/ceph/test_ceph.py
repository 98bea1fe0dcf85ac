"""On a real, replicated store: nothing acknowledged is lost, whatever is killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from dataclasses import replace

import pytest

from mvc import clone
from mvc.errors import StorageError, UnsupportedError
from mvc.operations.follow import Follower
from mvc.progress import reporting
from mvc.remotes import remote as remote_module
from mvc.remotes.root_store import RootStore
from mvc.storage.probe import probe_store
from support.remote_races import CLIENTS, race_pushes
from support.remote_repos import CountedStorage, commit_model, make_repo
from support.s3_server import make_bucket, new_prefix, open_s3
from support.storage_contract import SharedStorageContract

pytestmark = pytest.mark.slow

_NAME = "model.safetensors"
ROUNDS = int(os.environ.get("MVC_ROUNDS", 200 // CLIENTS))
"""How often each client pushes."""


class TestCeph(SharedStorageContract):
    @pytest.fixture
    def storage(self, cluster, tmp_path):
        return open_s3(cluster.endpoint, tmp_path)


def open_roots(cluster, tmp_path, url, **options):
    prefix = url.rpartition("/")[2]
    return RootStore(open_s3(cluster.endpoint, tmp_path, prefix=prefix, **options))


def with_ref(root, name):
    return replace(root, refs={**root.refs, f"refs/heads/{name}": "1" * 40})


def check_copy(repo, url, folder):
    """Clone into an empty folder: the same bytes, and nothing wrong on either side."""
    copy = clone(url, folder)
    assert copy.head.commit == repo.head.commit
    assert (copy.worktree / _NAME).read_bytes() == (repo.worktree / _NAME).read_bytes()
    for one in (repo, copy):
        assert one.upkeep.fsck(data=True).problems == ()
    assert copy.upkeep.fsck(remote="origin", data=True).problems == ()


def once(action):
    """Return a progress that does something the first time that bytes travel."""
    left = [action]
    return lambda _: left and left.pop()()


def test_what_it_keeps_of_its_promises(cluster, tmp_path):
    report = probe_store(open_s3(cluster.endpoint, tmp_path))
    assert report.ok
    assert report.tags == "bare"


def test_a_channel_is_followed(cluster, url, tmp_path):
    """Each poll that finds nothing new is one request, whatever form the store wants tags in."""
    repo = make_repo(tmp_path / "a", url)
    follower = Follower(url, "prod", tmp_path / "serve")
    counted = CountedStorage(follower._there.storage)
    follower._there.roots.storage = counted
    for seed in range(3):
        commit_model(repo, seed=seed)
        repo.publish("prod")
        assert follower.step().number == seed + 1
        served = tmp_path / "serve" / "current" / _NAME
        assert served.read_bytes() == (repo.worktree / _NAME).read_bytes()
    counted.calls.clear()
    assert [follower.step() for _ in range(5)] == [None] * 5
    assert counted.calls == [("is_current", "root")] * 5


def test_a_bucket_with_versions_is_refused(cluster, url, tmp_path):
    make_bucket(cluster.endpoint, "versioned", versioned=True)
    repo = make_repo(tmp_path / "a", f"s3://versioned/{new_prefix()}")
    commit_model(repo)
    with pytest.raises(UnsupportedError, match="turn the versions of the bucket off"):
        repo.push()
    assert list(open_s3(cluster.endpoint, tmp_path, bucket="versioned", prefix="x").list("")) == []


def test_push_and_clone_are_exact(cluster, url, tmp_path):
    repo = make_repo(tmp_path / "a", url)
    for seed in range(3):
        commit_model(repo, seed=seed, layers=8, width=64)
        repo.push()
    assert repo.config()["remote.origin.checked"].startswith("bare ")
    check_copy(repo, url, tmp_path / "b")


class Pushing:
    """Pushes one commit after the other in a thread, and notes what was acknowledged, and when."""

    def __init__(self, repo):
        self.repo = repo
        self.acknowledged = []
        self.failures = []
        self._stop = threading.Event()
        self._more = threading.Condition()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        seed = 0
        while not self._stop.is_set():
            commit = commit_model(self.repo, seed=seed)
            seed += 1
            started_s = time.monotonic()
            try:
                self.repo.push()
            except StorageError as error:
                self.failures.append(error)
                continue
            with self._more:
                self.acknowledged.append((commit, started_s, time.monotonic()))
                self._more.notify_all()

    def wait_for(self, count, since_s):
        """Wait until so many that began since then are acknowledged; return how long the first took."""

        def find():
            return [end_s for _, start_s, end_s in self.acknowledged if start_s >= since_s]

        with self._more:
            assert self._more.wait_for(lambda: len(find()) >= count, 120)
        return find()[0] - since_s

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc_info):
        self._stop.set()
        self._thread.join()


@pytest.mark.nightly
@pytest.mark.parametrize("victim", ["an OSD", "the leading monitor", "the gateway"])
def test_a_daemon_is_killed_during_pushes(cluster, url, tmp_path, victim, capsys):
    repo = make_repo(tmp_path / "a", url)
    leader = cluster.leader()
    with Pushing(repo) as pushing:
        pushing.wait_for(2, 0)
        failed_s = time.monotonic()
        if victim == "an OSD":
            cluster.kill("osd.1")
        elif victim == "the leading monitor":
            cluster.kill(f"mon.{leader}")
        else:
            cluster.kill("rgw")
            cluster.start_gateway()
        stall_s = pushing.wait_for(2, failed_s)
    with capsys.disabled():
        print(f"\n{victim} killed: the next push is accepted after {stall_s:.1f} s")
    tip = repo.head.commit
    acknowledged = [commit for commit, *_ in pushing.acknowledged]
    there = repo.remotes.refs().refs["refs/heads/main"]
    known = {entry.id for entry in repo.log(there)}
    assert set(acknowledged) <= known
    repo.push()
    assert repo.remotes.refs().refs["refs/heads/main"] == tip
    check_copy(repo, url, tmp_path / "b")


@pytest.mark.nightly
@pytest.mark.parametrize("victim", ["osd.2", "rgw"])
def test_a_daemon_is_killed_during_a_push_and_a_fetch(cluster, url, tmp_path, victim):
    repo = make_repo(tmp_path / "a", url)
    for seed in range(6):
        commit = commit_model(repo, seed=seed, layers=4, width=64)

    tries = 1 if victim == "osd.2" else 2
    strike = once(lambda: cluster.kill(victim))
    with reporting(strike):
        done = until_done(repo.push, tries, between=cluster.heal)
    assert done.refs[0].new == commit
    cluster.heal()
    strike = once(lambda: cluster.kill(victim))
    with reporting(strike):
        copy = until_done(lambda: clone(url, tmp_path / "b"), tries, between=cluster.heal)
    assert copy.head.commit == commit
    check_copy(repo, url, tmp_path / "c")
    assert read_model(copy) == read_model(repo)


def until_done(action, tries, between=lambda: None):
    """Do it; where the store does not answer in time, do something and try again."""
    for _ in range(tries - 1):
        with contextlib.suppress(StorageError):
            return action()
        between()
    return action()


def read_model(repo):
    return (repo.worktree / _NAME).read_bytes()


@pytest.mark.nightly
def test_two_osds_hang_and_one_comes_back(cluster, url, tmp_path, monkeypatch, capsys):
    """Writes below two replicas hang: our timeout speaks; then the push goes on where it was."""
    repo = make_repo(tmp_path / "a", url)
    repo.set_config("remote.origin.timeout", "2")
    commit_model(repo)
    repo.push()
    for seed in range(1, 9):
        commit = commit_model(repo, seed=seed, layers=4, width=64)
    longest = max(path.stat().st_size for path in repo.git_dir.glob("chunks/packs/*.pack"))
    travelled = []

    def hang(size_bytes):
        travelled.append(size_bytes)
        if sum(travelled) > 5 * longest:  # of eight, four at once: two at least are there
            for number in (1, 2):
                cluster.kill(f"osd.{number}", signal.SIGSTOP)

    with pytest.raises(StorageError) as caught:
        with reporting(hang):
            repo.push()
    assert re.match(rf"cannot .*: {url} does not answer \(waited \d+ s\)$", str(caught.value))
    cluster.kill("osd.1", signal.SIGCONT)
    start_s, opened, real = time.monotonic(), [], remote_module.open_store
    monkeypatch.setattr(
        remote_module,
        "open_store",
        lambda *args: opened.append(CountedStorage(real(*args))) or opened[-1],
    )
    until_done(repo.push, 30)
    with capsys.disabled():
        print(f"\ntwo OSDs hang: {caught.value}")
        print(f"one is back: the next push is accepted after {time.monotonic() - start_s:.1f} s")
    sent = {call[1] for one in opened for call in one.calls if call[0] == "upload"}
    assert len([key for key in sent if key.endswith(".pack") and key.startswith("packs/")]) <= 6
    assert repo.remotes.refs().refs["refs/heads/main"] == commit
    check_copy(repo, url, tmp_path / "b")


@pytest.mark.nightly
@pytest.mark.parametrize("branches", [1, CLIENTS])
def test_no_push_of_many_clients_is_lost(cluster, url, tmp_path, branches, capsys):
    start_s = time.monotonic()
    refused = race_pushes(tmp_path, url, branches=branches, rounds=ROUNDS)
    assert refused == 0 or branches == 1
    with capsys.disabled():
        seconds = time.monotonic() - start_s
        print(
            f"\n{CLIENTS * ROUNDS} pushes to {branches} branches: {refused} refused, {seconds:.0f} s"
        )

"""On a real, replicated store: nothing acknowledged is lost, whatever is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from mvc import clone
from mvc.errors import ConflictError, StorageError, UnsupportedError
from mvc.remotes.root_store import RootStore
from mvc.storage.probe import probe_store
from mvc.storage.testing.contract import SharedStorageContract
from support.remote_repos import commit_model, make_repo
from support.s3_server import make_bucket, new_prefix, open_s3

_NAME = "model.safetensors"
_IS_LONG = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


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
        assert one.fsck(data=True).problems == ()


def test_what_it_keeps_of_its_promises(cluster, tmp_path):
    report = probe_store(open_s3(cluster.endpoint, tmp_path))
    assert report.ok
    assert report.tags == "bare"


def test_a_bucket_with_versions_is_refused(cluster, url, tmp_path):
    make_bucket(cluster.endpoint, "versioned", versioned=True)
    repo = make_repo(tmp_path / "a", f"s3://versioned/{new_prefix()}")
    commit_model(repo)
    with pytest.raises(UnsupportedError, match="turn the versions of the bucket off"):
        repo.push()
    assert list(open_s3(cluster.endpoint, tmp_path, bucket="versioned", prefix="x").list("")) == []


def test_twenty_writers_lose_no_update(cluster, url, tmp_path):
    def write(name):
        roots = open_roots(cluster, tmp_path, url)
        for number in range(2):
            roots.update(lambda root, number=number: with_ref(root, f"{name}/{number}"))

    threads = [threading.Thread(target=write, args=(name,)) for name in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(open_roots(cluster, tmp_path, url).read().refs) == 40


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


def back_to_health(cluster):
    cluster.wait(lambda: cluster.count_up() == 3, "the OSDs")


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
    there = repo.list_remote().refs["refs/heads/main"]
    known = {entry.id for entry in repo.log(there)}
    assert set(acknowledged) <= known
    repo.push()
    assert repo.list_remote().refs["refs/heads/main"] == tip
    check_copy(repo, url, tmp_path / "b")
    if victim == "an OSD":
        cluster.start_osd(1)
        back_to_health(cluster)
    elif victim == "the leading monitor":
        cluster.start_mon(leader)


def test_the_gateway_is_killed_in_the_middle_of_ref_updates(cluster, url, tmp_path):
    """Some puts were done though their answer got lost: each update is there, and once."""
    stop, acknowledged = threading.Event(), []
    roots = open_roots(cluster, tmp_path, url)
    roots.update(lambda root: root)

    def write(name):
        mine = open_roots(cluster, tmp_path, url)
        for number in range(10**6):
            if stop.is_set():
                return
            with contextlib.suppress(StorageError):
                mine.update(lambda root, number=number: with_ref(root, f"{name}/{number}"))
                acknowledged.append(f"refs/heads/{name}/{number}")

    threads = [threading.Thread(target=write, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        before = len(acknowledged)
        while len(acknowledged) < before + 3:
            time.sleep(0.01)
        cluster.kill("rgw")
        cluster.start_gateway()
    stop.set()
    for thread in threads:
        thread.join()
    assert len(acknowledged) == len(set(acknowledged))
    assert set(acknowledged) <= set(open_roots(cluster, tmp_path, url).read().refs)


def test_two_osds_stop_and_one_comes_back(cluster, url, tmp_path, capsys):
    """Below two replicas requests hang: our timeout speaks, and what was there is not lost."""
    repo = make_repo(tmp_path / "a", url)
    repo.set_config("remote.origin.timeout", "2")
    commit_model(repo)
    repo.push()
    commit = commit_model(repo, seed=1)
    for number in (1, 2):
        cluster.kill(f"osd.{number}")
    try:
        with pytest.raises((StorageError, ConflictError)) as caught:
            repo.push()
        assert "the store" in str(caught.value)
    finally:
        cluster.start_osd(1)
    start = time.monotonic()
    for _ in range(30):
        try:
            repo.push()
            break
        except StorageError:
            continue
    with capsys.disabled():
        seconds = time.monotonic() - start
        print(f"\none of two OSDs is back: the next push is accepted after {seconds:.1f} s")
        print(f"until then: {caught.value}")
    assert repo.list_remote().refs["refs/heads/main"] == commit
    check_copy(repo, url, tmp_path / "b")
    cluster.start_osd(2)
    back_to_health(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("round_", range(0, 30, 1 if _IS_LONG else 12))
def test_a_client_is_killed_at_any_point(cluster, url, tmp_path, round_):
    repo = make_repo(tmp_path / "a", url)
    commit_model(repo)
    repo.push()
    commit_model(repo, seed=1, layers=12, width=64)
    command = [sys.executable, "-m", "mvc", "push"]
    process = subprocess.Popen(command, cwd=repo.worktree, stderr=subprocess.DEVNULL)
    try:
        process.wait(0.2 + round_ * 0.05)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert clone(url, tmp_path / "b").fsck(data=True).problems == ()
    repo.push()
    check_copy(repo, url, tmp_path / "c")

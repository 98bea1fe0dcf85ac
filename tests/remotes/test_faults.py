"""Over a bad wire to a real server: success after some tries or one clear error, and no lost update."""

import random
import re
import threading
from dataclasses import replace
from functools import partial

import pytest

from mvc import MvcError, clone
from mvc.errors import ConflictError, FormatError, NotFoundError, StorageError
from mvc.remotes import remote as remote_module
from mvc.remotes import root_store
from mvc.remotes.root_store import RootStore
from mvc.storage.local import LocalStorage
from mvc.storage.object_store import PART_BYTES
from support.bounds import bounded, rest_slow
from support.machine import run_together
from support.remote_repos import commit_model, make_repo
from support.s3_server import KEYS, new_prefix, open_s3
from support.storage_faults import FAULTS, FaultyStorage, seeded
from support.storage_proxy import FAULTS as WIRE_FAULTS
from support.storage_proxy import FaultyProxy


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(root_store, "_FIRST_PAUSE_S", 0)


def until_done(action, tries=30):
    """Do it until it is done; whatever else happens is one clear error of mvc."""
    for _ in range(tries):
        try:
            return action()
        except MvcError as error:
            # A store elsewhere, where a redirect leads, truly has nothing.
            expected = StorageError | ConflictError | FormatError | NotFoundError
            assert isinstance(error, expected), error
            assert "\n" not in error.message
            assert not re.search("Signature|mvctestkey|Traceback", str(error))
    pytest.fail(f"not done after {tries} tries")


def once(fault, *, where):
    """Return a plan in which one request fails, the first that is right."""
    left = [fault]
    return lambda request: left.pop() if left and where(request) else None


@pytest.mark.parametrize("fault", WIRE_FAULTS)
def test_an_update_over_a_bad_wire_is_done_once(moto, tmp_path, fault):
    prefix = new_prefix()
    with FaultyProxy(moto, once(fault, where=lambda one: one.is_conditional)) as proxy:
        roots = RootStore(open_s3(proxy.endpoint, tmp_path, prefix=prefix, max_retries=2))
        roots.update(lambda root: root)
        proxy.plan = once(fault, where=lambda one: one.is_conditional)
        changes = []

        def change(root):
            changes.append(root.nonce)
            return root

        made = roots.update(change)
        assert proxy.faults[fault] == 2
    assert RootStore(open_s3(moto, tmp_path, prefix=prefix)).read() == made
    assert len(changes) <= 2


@pytest.mark.parametrize("seed", [1, 2])
def test_writers_on_bad_wires_lose_no_update(moto, tmp_path, seed):
    dice, prefix = random.Random(seed), new_prefix()
    kinds = ("500", "503", "lost", "failed", "short", "twice")
    acknowledged, lock = set(), threading.Lock()

    def write(name, endpoint):
        roots = RootStore(open_s3(endpoint, tmp_path, prefix=prefix))
        for number in range(4):
            ref = f"refs/heads/{name}/{number}"
            until_done(lambda ref=ref: roots.update(lambda root: with_ref(root, ref)))
            with lock:
                acknowledged.add(ref)

    with FaultyProxy(moto, lambda _: dice.choice(kinds) if dice.random() < 0.2 else None) as proxy:
        run_together(*(partial(write, n, proxy.endpoint) for n in range(4)))
    assert len(proxy.faults) >= 4
    assert set(RootStore(open_s3(moto, tmp_path, prefix=prefix)).read().refs) == acknowledged
    assert len(acknowledged) == 16


def with_ref(root, name):
    return replace(root, refs={**root.refs, name: "1" * 40})


PLANS = {
    "old listing": lambda one: "500" if one.is_listing else None,
    "half": lambda one: "lost" if one.completes_upload and one.number % 2 else None,
}
"""Nothing that mvc does when it pushes or fetches lists a bucket; a pack in two parts is never half there."""


@pytest.mark.parametrize("fault", rest_slow([*WIRE_FAULTS, *PLANS], kept=3))
def test_push_clone_and_fetch_over_a_bad_wire(moto, tmp_path, monkeypatch, fault):
    """The wire fails again and again; nothing wrong stays behind on either side."""
    dice, url, due = random.Random(5), f"s3://mvc/{new_prefix()}", []
    rate = 0.15 if fault == "redirect" else 0.25  # no client tries again after that one
    every = lambda _: due.pop() if due else fault if dice.random() < rate else None  # noqa: E731
    repo = make_repo(tmp_path / "a", url)
    with FaultyProxy(moto, PLANS.get(fault, every)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        for seed in range(2):
            if fault == "half":  # long enough to travel in parts
                (repo.worktree / "rest.bin").write_bytes(dice.randbytes(PART_BYTES + 1))
                repo.add(["rest.bin"])
            commit = commit_model(repo, seed=seed)
            done = until_done(repo.push)
            assert done.refs[0].new == commit
        proxy.faults.clear()
        due.append(fault)
        copies = [make_copy(url, tmp_path / "b")]
        last = commit_model(repo, seed=2)
        until_done(repo.push)
        until_done(copies[0].fetch)
        copies.append(make_copy(url, tmp_path / "c"))
        assert proxy.faults or fault in PLANS
        assert not any(one.is_listing for one in proxy.requests)
        assert fault != "half" or any(one.completes_upload for one in proxy.requests)
    refs = RootStore(open_s3(moto, tmp_path, prefix=url.rpartition("/")[2])).read().refs
    assert refs == {"refs/heads/main": last}
    assert copies[0].head.commit == commit
    assert copies[1].head.commit == last
    copies[0].checkout("origin/main")
    for one in copies:
        assert read_model(one) == read_model(repo)
        assert not list(one.git_dir.rglob("*.mvc-tmp"))
    for one in (repo, *copies):
        assert one.upkeep.fsck(data=True).problems == ()
        assert not list(one.git_dir.glob("remotes/*/push-*"))


def make_copy(url, folder):
    """Clone over the bad wire, as often as it takes."""
    copy = until_done(lambda: clone(url, folder))
    assert not (folder / ".mvc-clone").exists()
    return copy


def read_model(repo):
    return (repo.worktree / "model.safetensors").read_bytes()


@pytest.mark.parametrize("seed", range(bounded(1, 50)))
def test_push_fetch_and_clone_with_a_storage_that_fails_by_chance(tmp_path, monkeypatch, seed):
    real, plan, opened = remote_module.open_store, seeded(seed, 0.15), []

    def open_faulty(*args):
        opened.append(FaultyStorage(real(*args), plan))
        return opened[-1]

    monkeypatch.setattr(remote_module, "open_store", open_faulty)
    store = tmp_path / "store"
    repo = make_repo(tmp_path / "a", str(store))
    for number in range(3):
        commit = commit_model(repo, seed=number)
        until_done(repo.push)
    other = make_repo(tmp_path / "b", str(store))
    until_done(other.fetch)
    copy = until_done(lambda: clone(store, tmp_path / "c"))
    happened = sum((one.faults for one in opened), start=opened[0].faults.__class__())
    assert happened
    assert set(happened) <= set(FAULTS)
    monkeypatch.setattr(remote_module, "open_store", real)
    assert RootStore(LocalStorage(store)).read().refs == {"refs/heads/main": commit}
    assert copy.head.commit == commit
    for one in (repo, other, copy):
        assert one.upkeep.fsck(data=True).problems == ()

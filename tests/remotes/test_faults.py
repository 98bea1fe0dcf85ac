"""Over a bad wire to a real server: success after some tries or one clear error, and no lost update."""

from __future__ import annotations

import random
import re
import threading
from dataclasses import replace

import pytest

from mvc import MvcError, clone
from mvc.errors import ConflictError, FormatError, NotFoundError, StorageError
from mvc.remotes import remote as remote_module
from mvc.remotes import root_store
from mvc.remotes.root_store import RootStore
from mvc.storage.local import LocalStorage
from mvc.storage.testing.faults import FAULTS, FaultyStorage, seeded
from mvc.storage.testing.proxy import FAULTS as WIRE_FAULTS
from mvc.storage.testing.proxy import FaultyProxy
from support.remote_repos import commit_model, make_repo
from support.s3_server import KEYS, new_prefix, open_s3


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
            assert "\n" not in str(error)
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
        threads = [threading.Thread(target=write, args=(n, proxy.endpoint)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(proxy.faults) >= 4
    assert set(RootStore(open_s3(moto, tmp_path, prefix=prefix)).read().refs) == acknowledged
    assert len(acknowledged) == 16


def with_ref(root, name):
    return replace(root, refs={**root.refs, name: "1" * 40})


@pytest.mark.parametrize("fault", [*WIRE_FAULTS, "old listing", "half"])
def test_push_and_clone_over_a_bad_wire(moto, tmp_path, fault):
    """The wire fails again and again; nothing wrong stays behind on either side."""
    url = f"s3://mvc/{new_prefix()}"
    plans = {
        "old listing": lambda one: "500" if one.is_listing else None,
        "half": lambda one: "lost" if one.completes_upload else None,
    }
    dice = random.Random(5)
    every = lambda _: fault if dice.random() < 0.25 else None  # noqa: E731
    repo = make_repo(tmp_path / "a", url)
    with FaultyProxy(moto, plans.get(fault, every)) as proxy:
        repo.set_config("remote.origin.endpoint", proxy.endpoint)
        for seed in range(2):
            commit = commit_model(repo, seed=seed)
            done = until_done(repo.push)
            assert done.refs[0].new == commit
        target = tmp_path / "b"
        repo_b = make_repo(target, url)
        repo_b.set_config("remote.origin.endpoint", proxy.endpoint)
        until_done(repo_b.fetch)
        assert proxy.faults or fault in plans
    refs = RootStore(open_s3(moto, tmp_path, prefix=url.rpartition("/")[2])).read().refs
    assert refs == {"refs/heads/main": commit}
    repo_b.checkout("origin/main")
    name = "model.safetensors"
    assert (target / name).read_bytes() == (repo.worktree / name).read_bytes()
    for one in (repo, repo_b):
        assert one.fsck(data=True).problems == ()
        assert not list(one.git_dir.glob("remotes/*/push-*"))


@pytest.mark.parametrize("seed", range(4))
def test_push_and_clone_with_a_storage_that_fails_by_chance(tmp_path, monkeypatch, seed):
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
    happened = sum((one.faults for one in opened), start=opened[0].faults.__class__())
    assert happened
    assert set(happened) <= set(FAULTS)
    monkeypatch.setattr(remote_module, "open_store", real)
    assert RootStore(LocalStorage(store)).read().refs == {"refs/heads/main": commit}
    for one in (repo, other, clone(store, tmp_path / "c")):
        assert one.fsck(data=True).problems == ()

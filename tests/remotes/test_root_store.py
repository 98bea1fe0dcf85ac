"""The root moves by compare-and-swap: no update is lost, none is done twice, whatever gets lost."""

import random
from dataclasses import replace
from functools import partial

import pytest
from obstore.store import MemoryStore

from mvc.errors import ConflictError, FormatError, StorageError
from mvc.remotes import root_store
from mvc.remotes.root import LIST_ENTRIES, Listing, list_key, with_packs
from mvc.remotes.root_store import RootStore
from mvc.storage.local import LocalStorage
from mvc.storage.object_store import ObjectStorage
from support.machine import run_together
from support.storage_faults import FaultyStorage


@pytest.fixture(params=["memory", "folder"])
def storage(request, tmp_path):
    if request.param == "folder":
        return LocalStorage(tmp_path)
    return ObjectStorage(MemoryStore(), spool=tmp_path)


def add_ref(name, value="1" * 40):
    return lambda root: replace(root, refs={**root.refs, f"refs/heads/{name}": value})


def test_a_store_without_a_root_gets_one(storage):
    roots = RootStore(storage)
    assert roots.read() is None
    made = roots.update(add_ref("main"))
    assert RootStore(storage).read() == made
    assert made.refs == {"refs/heads/main": "1" * 40}
    assert roots.update(lambda root: root).nonce != made.nonce


def test_many_writers_lose_no_update(storage):
    def write(name):
        for number in range(5):
            RootStore(storage).update(add_ref(f"{name}/{number}"))

    run_together(*(partial(write, name) for name in range(8)))
    assert len(RootStore(storage).read().refs) == 40


@pytest.mark.parametrize("fault", ["before", "lost", "twice"])
def test_an_update_is_done_once_whatever_happens_to_its_answer(storage, fault, monkeypatch):
    monkeypatch.setattr(root_store, "_FIRST_PAUSE_S", 0)
    RootStore(storage).update(add_ref("old"))
    faults = iter([fault])
    faulty = FaultyStorage(
        storage, lambda name, _: next(faults, None) if name == "replace" else None
    )
    changes = []

    def change(root):
        changes.append(root.nonce)
        return add_ref("new")(root)

    made = RootStore(faulty).update(change)
    assert RootStore(storage).read() == made
    assert len(changes) == (2 if fault == "before" else 1)


def test_random_faults_lose_nothing(storage, monkeypatch):
    monkeypatch.setattr(root_store, "_FIRST_PAUSE_S", 0)
    dice = random.Random(7)
    faulty = FaultyStorage(
        storage,
        lambda name, _: (
            dice.choice([None, "before", "lost", "twice"]) if name == "replace" else None
        ),
    )
    for number in range(60):
        RootStore(faulty).update(add_ref(str(number)))
    assert len(RootStore(storage).read().refs) == 60


def test_a_change_that_gives_up_changes_nothing(storage):
    roots = RootStore(storage)
    before = roots.update(add_ref("main"))

    def refuse(root):
        raise ConflictError("not a fast-forward")

    with pytest.raises(ConflictError, match="fast-forward"):
        roots.update(refuse)
    assert roots.read() == before


def test_a_store_that_never_writes_is_given_up(storage):
    faulty = FaultyStorage(storage, lambda name, _: "before" if name == "replace" else None)
    with pytest.raises(StorageError, match="503"):
        RootStore(faulty, patience_s=0).update(add_ref("main"))
    assert RootStore(storage).read() is None


def test_long_listings_move_to_lists(storage):
    roots = RootStore(storage)
    names = [f"{number:064x}" for number in range(3 * LIST_ENTRIES)]
    for at in range(0, len(names), 50):
        root = roots.update(
            lambda old, at=at: with_packs(old, dict.fromkeys(names[at : at + 50], 9), {})
        )
    assert len(root.lists) >= 2
    assert len(root.listed) < LIST_ENTRIES
    fresh = RootStore(storage)
    assert fresh.read_listing(fresh.read()) == Listing(dict.fromkeys(names, 9))
    gone = names[5:300:7]
    root = roots.update(lambda old: roots.drop_packs(old, gone))
    left = RootStore(storage).read_listing(root)
    assert set(left.packs) == set(names) - set(gone)


def test_a_forged_list_is_refused(storage):
    roots = RootStore(storage)
    name = "1" * 64
    roots.update(lambda root: replace(root, lists=(name,)))
    with pytest.raises(FormatError, match="missing"):
        roots.read_listing(roots.read())
    with storage.create("lists/") as file:
        file.write([b'{"mvc-list":1,"packs":{},"history":{}}\n'])
        file.publish(list_key(name))
    with pytest.raises(FormatError, match="does not match"):
        roots.read_listing(roots.read())

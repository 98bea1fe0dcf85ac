"""A remote that lies: one clear error, nothing wrong left here, and all is well once it is sane again."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import tracemalloc

import pytest

from mvc import CorruptionError, MvcError, Repo, clone
from mvc.ids import hash_chunk
from mvc.operations.follow import Follower
from mvc.storage.local import LocalStorage
from support.bounds import bounded, rest_slow
from support.lying_remote import (
    commit,
    encode_history,
    lie,
    name,
    put_history,
    put_index,
    put_list,
    read_root,
    tag,
    tree,
    write_root,
)
from support.remote_repos import commit_model, make_repo
from support.verbs import WHO

_ZEROS = 40 * "0"
KINDS = {"format", "corruption", "storage", "not-found", "conflict", "unsupported"}


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def copy(tmp_path, store):
    """A clone that lacks the newest commit of the store."""
    repo = make_repo(tmp_path / "a", str(store))
    commit_model(repo)
    repo.push()
    copy = clone(str(store), tmp_path / "b")
    commit_model(repo, seed=1)
    repo.push()
    return copy


def _state(repo):
    """Everything but what was only brought near: caches and objects that nothing names."""
    left = ("remotes/", "objects/", "tmp/", "logs/")
    return {
        name: path.read_bytes()
        for path in repo.git_dir.rglob("*")
        if path.is_file() and not (name := str(path.relative_to(repo.git_dir))).startswith(left)
    }


def _root(**changes):
    def spoil(store):
        told = json.loads((store / "root").read_bytes())
        for key, value in changes.items():
            told[key] = {**told[key], **value} if isinstance(value, dict) else value
        (store / "root").write_text(json.dumps(told))

    return spoil


def _raw(data):
    return lambda store: (store / "root").write_bytes(data)


def _list_of_itself(store):
    data = json.dumps({"mvc-list": 1, "packs": {}, "history": {}, "lists": ["0" * 64]}).encode()
    name = hash_chunk(data).hex()
    (store / "lists").mkdir()
    (store / "lists" / name).write_bytes(data)
    _root(lists=[name])(store)


def _newest(store, pattern):
    return max(store.glob(pattern), key=lambda path: path.stat().st_mtime_ns)


def _cut(pattern):
    def spoil(store):
        path = _newest(store, pattern)
        data = path.read_bytes()
        path.chmod(0o644)
        path.write_bytes(data[: len(data) // 2])

    return spoil


def _flip(pattern):
    def spoil(store):
        path = _newest(store, pattern)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0x40
        path.chmod(0o644)
        path.write_bytes(data)

    return spoil


_EMPTY = tree()
_BLOB, _LINK = ("blob", b"evil"), ("blob", b"/tmp")
_INSIDE = tree((0o100644, b"x", name(_BLOB)))
_MANIFEST = (
    "blob",
    b'{"mvc-manifest":1,"format":"opaque","size":9,"chunk_bytes":1024,"gaps":["%s"]}\n' % (b"0" * 64),
)  # fmt: skip


def _tip(*objects):
    """The branch leads to the first of these objects, which come beside all others."""

    def spoil(store):
        put_history(store, encode_history(objects), alone=False)
        told = read_root(store)
        told["refs"]["refs/heads/main"] = name(objects[0])
        write_root(store, told)

    return spoil


def _files(*entries):
    """The branch leads to a commit of these files."""
    root = tree(*((mode, path, name(one)) for mode, path, one in entries))
    objects = {name(one): one for *_, one in entries} | {name(_BLOB): _BLOB}
    return _tip(commit(name(root)), root, *objects.values())


def _lists_again(store):
    told = read_root(store)
    told["lists"] = [put_list(store, told["packs"], told["history"])] * 1_048_576
    write_root(store, told)


# What does not parse is known to ``tests/remotes`` and ``tests/history``; here are samples of it.
SPOILED = {
    "too long": _raw(b" " * (64 * 2**20 + 1)),
    "an absolute ref": _root(refs={"/etc/passwd": _ZEROS}),
    "control characters": _root(refs={"refs/heads/a\x1b[2J\n": _ZEROS}),
    "a ref to nothing": _root(refs={"refs/heads/ghost": _ZEROS}),
    "a hundred thousand refs to nothing": _root(
        refs={f"refs/heads/b{number}": f"{number:040x}" for number in range(100_000)}
    ),
    "a list that is missing": _root(lists=["0" * 64]),
    "a list of itself": _list_of_itself,
    "a pack that is missing": _root(packs={"0" * 64: 4096}),
    "an index cut off": _cut("packs/*.idx"),
    "an index with a flipped bit": _flip("packs/*.idx"),
    "a pack cut off": _cut("packs/*.pack"),
    "a pack with a flipped bit": _flip("packs/*.pack"),
    "a Git pack cut off": _cut("history/*.pack"),
    "a Git pack with a flipped bit": _flip("history/*.pack"),
    "a commit without its parent": _tip(commit(name(_EMPTY), 40 * "1"), _EMPTY),
    "a commit without its tree": _tip(commit(40 * "1")),
    "a tag of nothing": _tip(tag(40 * "1", "commit")),
    "a tag of another kind": _tip(tag(name(_EMPTY), "commit"), _EMPTY),
    "a branch that is a tree": _tip(_EMPTY),
    "a branch that is a blob": _tip(("blob", b"x")),
    "a tree out of the worktree": _files((0o100644, b"..", _BLOB)),
    "a tree with a path": _files((0o100644, b"../../x", _BLOB)),
    "a tree with .mvc": _files((0o100644, b".MVC", _BLOB)),
    "a link and below it a file": _files((0o120000, b"a", _LINK), (0o40000, b"a", _INSIDE)),
    "a file of an unknown mode": _files((0o170000, b"a", _BLOB)),
    "a manifest of chunks that are nowhere": _files((0o100644, b"a", _MANIFEST)),
    "a million lists": _root(lists=[f"{number:064x}" for number in range(200_000)]),
    "a list twice": _lists_again,
}


@pytest.mark.parametrize("name", rest_slow(SPOILED, kept=8))
def test_a_lie_changes_nothing_here(copy, store, tmp_path, name):
    before, refs = _state(copy), copy.resolve("origin/main")
    shutil.copytree(store, tmp_path / "sane")
    SPOILED[name](store)
    with pytest.raises(MvcError) as failed:
        copy.fetch()
    assert failed.value.kind in {"format", "corruption", "storage", "not-found"}
    assert failed.value.message.isprintable()
    assert _state(copy) == before
    assert copy.resolve("origin/main") == refs
    assert not copy.upkeep.fsck(remote="origin", data=True).ok
    shutil.rmtree(store)
    shutil.copytree(tmp_path / "sane", store)
    assert [one.status for one in copy.fetch().refs] == ["updated"]
    assert copy.upkeep.fsck(data=True).problems == ()
    assert copy.upkeep.fsck(remote="origin", data=True).problems == ()


def test_an_index_that_hides_chunks_is_not_kept(copy, store):
    """Its own hash is right, so nothing but the chunk that is missing gives it away."""
    sound = {path: path.read_bytes() for path in store.glob("packs/*.idx")}
    for path, data in sound.items():
        put_index(store, path.stem, data[:64] + bytes([data[64] ^ 1]) + data[65:])
    with pytest.raises(MvcError):
        copy.fetch()
    for path, data in sound.items():
        path.write_bytes(data)
    assert [one.status for one in copy.fetch().refs] == ["updated"]
    assert copy.upkeep.fsck(data=True).problems == ()


@pytest.mark.parametrize("what", ["root", "lists", "packs"])
def test_what_is_far_too_long_is_not_read(copy, store, what):
    """Four gigabytes that say nothing: their length is looked at first."""
    before, name = _state(copy), "0" * 64
    path = {"root": store / "root", "lists": store / "lists" / name}.get(what)
    if what == "lists":
        path.parent.mkdir()
        _root(lists=[name])(store)
    for one in [path] if path else store.glob("packs/*.idx"):
        one.touch()
        one.chmod(0o644)
        os.truncate(one, 4 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError, match="4,294,967,296 bytes"):
            copy.fetch()
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()
    assert _state(copy) == before


def test_a_long_object_is_in_memory_once(copy, store):
    size_bytes = 48 * 2**20
    put_history(store, encode_history([("blob", bytes(size_bytes))]))
    tracemalloc.start()
    try:
        with pytest.raises(MvcError):
            copy.fetch()
        assert tracemalloc.get_traced_memory()[1] < 1.6 * size_bytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("verb", ["fetch", "fsck"])
def test_a_store_that_changes_while_it_is_read(copy, store, tmp_path, monkeypatch, verb):
    """After so many reads all of it is suddenly gone, empty, or zeros."""
    sane = shutil.copytree(store, tmp_path / "sane")
    left, how = 0, ""

    def spoil(path):
        path.chmod(0o644)
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(b"" if how == "empty" else bytes(path.stat().st_size))

    def counted(real):
        def read(self, *args):
            nonlocal left
            left -= self.root == store
            if self.root == store and left < 0:
                for path in [one for one in store.rglob("*") if one.is_file()]:
                    spoil(path)
            return real(self, *args)

        return read

    monkeypatch.setattr(LocalStorage, "read_into", counted(LocalStorage.read_into))
    monkeypatch.setattr(LocalStorage, "read", counted(LocalStorage.read))
    for number, what in itertools.product(range(4), ("gone", "empty", "zeros")):
        shutil.rmtree(tmp_path / "c", ignore_errors=True)
        shutil.copytree(copy.worktree, tmp_path / "c", symlinks=True)
        shutil.rmtree(store)
        shutil.copytree(sane, store)
        left, how = number, what
        repo = Repo.open(tmp_path / "c")
        try:
            repo.fetch() if verb == "fetch" else repo.upkeep.fsck(remote="origin", data=True)
        except MvcError as error:
            assert error.kind in KINDS
        assert left < 0
        assert repo.upkeep.fsck(data=True).problems == ()


# Lies at random, consistent by name and hash: one clear error or a sound result, whatever is asked.


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A store with two versions, a clone and a follower that know the first, and a sane copy of all."""
    box = tmp_path_factory.mktemp("scene")
    repo = make_repo(box / "a", str(box / "store"))
    commit_model(repo, width=24)
    repo.publish("live")
    repo.push(set_upstream=True)
    clone(str(box / "store"), box / "b")
    Follower(str(box / "store"), "live", box / "serve").step()
    commit_model(repo, seed=1, width=24)
    repo.tags.create("v1", message="one")
    repo.push(tags=True, all_branches=True)
    repo.publish("live")
    for part in ("store", "b", "serve"):
        shutil.copytree(box / part, box / "sane" / part, symlinks=True)
    return box


def reset(box, *names):
    for part in names:
        shutil.rmtree(box / part, ignore_errors=True)
        if (box / "sane" / part).exists():
            shutil.copytree(box / "sane" / part, box / part, symlinks=True)


@contextlib.contextmanager
def only_clear_errors():
    try:
        yield
    except MvcError as error:
        assert error.kind in KINDS, error
        assert error.message.isprintable(), error
        assert len(error.message) < 1000, error


def ask(box, verb):
    """Ask a remote that may lie; nothing wrong is here afterwards."""
    store = str(box / "store")
    with only_clear_errors():
        if verb == "clone":
            clone(store, box / "c")
        elif verb == "follow":
            Follower(store, "live", box / "serve").step()
        elif verb == "fsck":
            Repo.open(box / "b").upkeep.fsck(remote="origin", data=True)
        else:
            repo = Repo.open(box / "b", identity=WHO)
            repo.pull() if verb == "pull" else repo.fetch(prune=True)
    for part in ("b", "c"):
        if verb != "follow" and (box / part).exists():
            assert Repo.open(box / part).upkeep.fsck(data=True).problems == ()
    if verb == "follow":
        whole = [folder for folder in box.glob("serve/weight_v*") if folder.is_dir()]
        models = [*box.glob("sane/*/model.safetensors"), box / "a/model.safetensors"]
        models += (box / "sane/serve").rglob("model.safetensors")
        sane = {path.read_bytes() for path in models}
        assert (box / "serve/current").resolve() in whole
        assert all(path.read_bytes() in sane for path in box.glob("serve/w*/model.safetensors"))


def recover(box):
    """All is well once the remote is sane again."""
    reset(box, "store")
    repo = Repo.open(box / "b", identity=WHO)
    repo.fetch(refspecs=["+refs/heads/*:refs/remotes/origin/*"])
    assert repo.resolve("origin/main") == Repo.open(box / "a").resolve("main")
    assert repo.upkeep.fsck(data=True).problems == ()


@pytest.mark.parametrize("seed", range(bounded(3, 3000)))
def test_random_lies(scene, seed):
    draw = random.Random(seed)
    verb = ("fetch", "clone", "pull", "follow", "fsck")[seed % 5]
    reset(scene, "store", "b", "serve", "c")
    told = lie(scene / "store", draw)
    print(verb, told)
    ask(scene, verb)
    if seed % 5 == 0:
        recover(scene)

"""Remotes that lie at random, consistently by name and hash: one clear error or a sound result, whatever is asked."""

from __future__ import annotations

import contextlib
import random
import shutil

import pytest

from mvc import MvcError, Repo, clone
from mvc.operations.follow import Follower
from support.bounds import bounded
from support.lying_remote import lie
from support.remote_repos import commit_model, make_repo
from support.verbs import WHO

_KINDS = {"format", "corruption", "storage", "not-found", "conflict", "unsupported"}


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
    for name in ("store", "b", "serve"):
        shutil.copytree(box / name, box / "sane" / name, symlinks=True)
    return box


def reset(box, *names):
    for name in names:
        shutil.rmtree(box / name, ignore_errors=True)
        if (box / "sane" / name).exists():
            shutil.copytree(box / "sane" / name, box / name, symlinks=True)


@contextlib.contextmanager
def only_clear_errors():
    try:
        yield
    except MvcError as error:
        assert error.kind in _KINDS, error
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
    for name in ("b", "c") if verb != "follow" else ("serve",):
        if (box / name).exists() and name != "serve":
            assert Repo.open(box / name).upkeep.fsck(data=True).problems == ()
    if verb == "follow":
        whole = [one for one in box.glob("serve/weight_v*") if one.is_dir()]
        sane = {one.read_bytes() for one in box.glob("sane/*/model.safetensors")}
        sane |= {one.read_bytes() for one in (box / "sane/serve").rglob("model.safetensors")}
        sane.add((box / "a/model.safetensors").read_bytes())
        assert (box / "serve/current").resolve() in whole
        assert all(one.read_bytes() in sane for one in box.glob("serve/w*/model.safetensors"))


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

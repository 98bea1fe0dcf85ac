"""Repositories that share a remote, and a look at what a remote is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from mvc import Repo
from mvc.remotes import remote as remote_module
from support.models import write_model
from support.verbs import WHO


def make_repo(folder: Path, url: str | None = None) -> Repo:
    """Make a repository with small chunks, and a remote ``origin`` if a URL is given."""
    repo = Repo.init(folder)
    repo.set_config("mvc.chunkbytes", "4096")
    repo.identity = WHO
    if url is not None:
        repo.remotes.add("origin", url)
    return repo


def commit_model(repo: Repo, *, seed: int = 0, name: str = "model.safetensors", **changes) -> str:
    """Commit a small model, all of it for a seed, and return the commit."""
    write_model(repo.worktree / name, seed=seed, **changes)
    return repo.commit(f"{name} {seed}", paths=[name], allow_empty=True).id


class CountedStorage:
    """Notes what a storage is asked."""

    def __init__(self, storage):
        self._storage = storage
        self.calls = []
        self.sent_bytes = self.read_bytes = 0

    def __getattr__(self, name):
        value = getattr(self._storage, name)
        if not callable(value):
            return value

        def call(*args, **kwargs):
            if name != "create":
                self.calls.append((name, *args[:1]))
            result = value(*args, **kwargs)
            if name == "upload":
                self.sent_bytes += Path(args[1]).stat().st_size
            if name == "read_ranges":
                self.read_bytes += sum(map(len, result))
            if name == "read_into":
                self.read_bytes += len(args[2])
            return result

        return call


@pytest.fixture
def store(tmp_path):
    """A folder to be the store of a remote; nothing is there yet."""
    return tmp_path / "store"


@pytest.fixture
def linked(tmp_path, store):
    """An empty repository whose ``origin`` is that store."""
    return make_repo(tmp_path / "a", str(store))


@pytest.fixture
def asked(monkeypatch):
    """The storages of remotes that are opened from now on, which note what they are asked."""
    opened = []
    real = remote_module.open_store

    def open_counted(*args):
        opened.append(CountedStorage(real(*args)))
        return opened[-1]

    monkeypatch.setattr(remote_module, "open_store", open_counted)
    return opened

"""An open repository in a fresh folder, with an identity of its own."""

from __future__ import annotations

import os

import pytest

from mvc import Identity, Repo


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """Half of the time here would be fsync, whose effect only tests/crash looks at."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "work"


@pytest.fixture
def repo(root):
    made = Repo.init(root)
    made.identity = Identity("Ann Example", "ann@example.org")
    return made


@pytest.fixture
def context(repo):
    return repo._context


@pytest.fixture
def one(repo, root):
    """A repository with one commit."""
    write(root, "a", "one")
    repo.add(".")
    repo.commit("first\n\nwith a body", step=10, metrics={"loss": 0.5}, meta={"run": "x"})
    return repo


def message(repo, revision="HEAD"):
    return repo.show(revision).info.message


def write(root, path, text="x"):
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)

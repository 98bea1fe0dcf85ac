from __future__ import annotations

import pytest

from mvc import Identity, Repo


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

import pytest

from support.kept_repo import whole_run
from support.opened_repo import context, no_waiting_for_the_disk, one, repo, root, write
from support.pruned import five_steps
from support.rollbacks import trained

__all__ = [
    "context",
    "five_steps",
    "no_waiting_for_the_disk",
    "one",
    "repo",
    "root",
    "trained",
    "whole_run",
]


@pytest.fixture
def two(repo, root):
    write(root, "a", "one")
    write(root, "d/gone", "one")
    repo.commit("one", paths=".")
    write(root, "a", "two")
    (root / "d/gone").unlink()
    write(root, "new/file", "only here")
    repo.commit("two", paths=".")
    return repo

"""Ranges of revisions: the commits that Git would list."""

import pytest

from mvc import NotFoundError
from mvc.workspace.ranges import walk_ranges
from support.stockgit import git


@pytest.fixture
def forked(repo):
    """main: a, b, c; side: a, d."""
    for name, branch in (("a", "main"), ("d", "side"), ("b", "main"), ("c", "main")):
        if name == "d":
            repo.branches.create("side")
        repo.switch(branch)
        repo.commit(name, allow_empty=True, time_s=1_700_000_000 + ord(name))
    return repo


@pytest.mark.parametrize(
    "revisions",
    [
        (), ("main",), ("side", "main"), ("side..main",), ("main..side",), ("main...side",),
        ("..side",), ("main", "^side"), ("main", "^HEAD~1"), ("main..main",), ("HEAD~1",),
    ],
)  # fmt: skip
def test_the_commits_that_git_lists(forked, revisions):
    found = {info.id for info in walk_ranges(forked._context, revisions)}
    expected = git(forked.git_dir, "rev-list", *(revisions or ("HEAD",)))
    assert found == set(expected.split())


def test_everything_that_refs_reach(forked):
    forked.checkout("HEAD~2", detach=True)
    forked.commit("detached", allow_empty=True)
    context = forked._context
    assert len(list(walk_ranges(context, ()))) == 2
    assert len(list(walk_ranges(context, (), everything=True))) == 5
    assert len(list(walk_ranges(context, ("^main",), everything=True))) == 2


def test_before_the_first_commit_and_what_does_not_exist(repo):
    assert list(walk_ranges(repo._context, ())) == []
    walk = walk_ranges(repo._context, ("nope..HEAD",))
    with pytest.raises(NotFoundError):
        next(walk)

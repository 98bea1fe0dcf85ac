import pytest

from mvc.runs.feed import RunFeed, feed_path
from support.feeds import Clock
from support.opened_repo import context, no_waiting_for_the_disk, repo, root

__all__ = ["context", "no_waiting_for_the_disk", "repo", "root"]


@pytest.fixture
def path(repo):
    return feed_path(repo.git_dir, "main")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def feed(path, clock):
    with RunFeed(path, clock=clock) as made:
        yield made

import pytest

from support.kept_repo import whole_run
from support.merging import parted
from support.opened_repo import context, no_waiting_for_the_disk, one, repo, root
from support.pruned import five_steps
from support.remote_repos import asked, linked, store
from support.rollbacks import trained

__all__ = [
    "asked",
    "context",
    "five_steps",
    "linked",
    "no_waiting_for_the_disk",
    "one",
    "parted",
    "repo",
    "root",
    "store",
    "trained",
    "whole_run",
]


@pytest.fixture
def chunked(repo):
    repo.set_config("mvc.chunkbytes", "4096")
    return repo


@pytest.fixture
def reads(monkeypatch):
    """Collect the ids of the chunks that are read."""
    from mvc.chunkstore.store import ChunkStore

    found = []
    many, one = ChunkStore.read_many, ChunkStore.read_into

    def watch_many(self, requests, sink, progress=None):
        found.extend(request.chunk_id for request in requests)
        return many(self, requests, sink, progress)

    def watch_one(self, chunk_id, plain, **options):
        found.append(chunk_id)
        return one(self, chunk_id, plain, **options)

    monkeypatch.setattr(ChunkStore, "read_many", watch_many)
    monkeypatch.setattr(ChunkStore, "read_into", watch_one)
    return found


@pytest.fixture
def on_rank():
    """Return a function that makes this process one rank of many to torch."""
    from support.sharded import become_rank, leave

    yield become_rank
    leave()


@pytest.fixture
def bar():
    """A progress that notes what is expected, and what is done."""

    class Bar:
        expected = done = 0

        def expect(self, size_bytes):
            self.expected += size_bytes

        def __call__(self, size_bytes):
            self.done += size_bytes

    return Bar()

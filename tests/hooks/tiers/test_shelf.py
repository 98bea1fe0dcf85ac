"""The ranks of a machine read each chunk once: the first that claims it reads it for all."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections import Counter

import pytest

from mvc.training import RunStore

torch = pytest.importorskip("torch")

from torch.distributed.tensor import Replicate, Shard  # noqa: E402

from mvc import CorruptionError, Identity, Repo  # noqa: E402
from mvc.chunkstore.reader import ChunkReader  # noqa: E402
from mvc_hooks.tiers import shelf as module  # noqa: E402
from mvc_hooks.tiers.shelf import Shelf  # noqa: E402
from support.damage import flip  # noqa: E402
from support.meshes import run_all  # noqa: E402
from support.sharded import as_rank, shard  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(sys.platform != "linux", reason="the locks are Linux's"),
]
ME = Identity("Ada", "ada@example.org")
CHUNK = bytes(range(32))
_PLACES = 64  # more than there are chunks: however far one is ahead, nothing has to go


@contextlib.contextmanager
def open_shelves(count):
    """Give one shelf as so many processes see it."""
    memory = os.memfd_create("mvc-shelf")
    os.ftruncate(memory, module.size_shelf(_PLACES))
    shelves = [Shelf(os.open(f"/proc/self/fd/{memory}", os.O_RDWR), _PLACES) for _ in range(count)]
    os.close(memory)
    try:
        yield shelves
    finally:
        for one in shelves:
            one.close()


def take(shelf, chunk=CHUNK, size_bytes=5, **terms):
    plain = bytearray(size_bytes)
    return shelf.fill(chunk, memoryview(plain), **terms), bytes(plain)


def test_what_one_reads_the_others_take():
    with open_shelves(2) as (one, other):
        assert take(one) == (False, bytes(5)), "it is this one's to read"
        assert take(other, waits=False)[0] is None, "which the other hears"
        one.keep(CHUNK, memoryview(b"hello"))
        assert take(other) == (True, b"hello")
        assert take(one, bytes(32))[0] is False, "another chunk is another matter"
        assert take(other, size_bytes=4)[0] is False, "one of another length is not it"


def test_who_waits_gets_it_when_it_comes():
    with open_shelves(2) as (one, other):
        take(one)
        found = []
        waiting = threading.Thread(target=lambda: found.append(take(other)))
        waiting.start()
        one.keep(CHUNK, memoryview(b"hello"))
        waiting.join(60)
        assert found == [(True, b"hello")]


def test_what_cannot_be_read_is_left_to_the_next():
    with open_shelves(2) as (one, other):
        take(one)
        one.keep(CHUNK, None)
        assert take(other)[0] is False
        assert take(one, waits=False)[0] is None


def test_a_claim_ends_with_its_process():
    with open_shelves(2) as (one, other):
        ready, told = os.pipe()
        pid = os.fork()
        if not pid:
            mine = Shelf(os.open(f"/proc/self/fd/{one._descriptor}", os.O_RDWR))
            take(mine)
            os.write(told, b".")
            signal.pause()
        os.read(ready, 1)
        assert take(other, waits=False)[0] is None
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert take(other)[0] is False
        for pipe in (ready, told):
            os.close(pipe)


def test_nobody_waits_without_end(monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_S", 0.0)
    with open_shelves(2) as (one, other):
        take(one)
        assert take(other)[0] is False


def test_old_chunks_make_room_for_new_ones(monkeypatch):
    with open_shelves(2) as (one, other):
        for number in range(2 * _PLACES):
            one.keep(bytes([number]) * 32, memoryview(bytes([number]) * 5))
        here = [number for number in range(2 * _PLACES) if take(other, bytes([number]) * 32)[0]]
        assert here == list(range(_PLACES, 2 * _PLACES))
        one.keep(CHUNK, memoryview(bytes(module._PLACE_BYTES + 1)))
        assert take(other, size_bytes=module._PLACE_BYTES + 1)[0] is False, "too long to be shared"


# Whole loads.


@pytest.fixture
def state():
    torch.manual_seed(0)
    model = {f"w{n}": torch.randn(67, 33) for n in range(5)}
    model |= {"one": torch.ones(()), "long": torch.randn(30_000)}
    return {"model": model}


@pytest.fixture
def repo(tmp_path, state):
    repo = Repo.init(tmp_path / "repo")
    repo.set_config("mvc.chunkbytes", "4096")
    repo = Repo.open(repo.worktree, identity=ME)
    repo.commit_state(state, message="one process", step=1)
    return repo


@pytest.fixture
def reads(monkeypatch):
    """Count what is read from packs, by chunk."""
    counts, lock = Counter(), threading.Lock()
    read_chunk, read_group = ChunkReader.read_chunk, ChunkReader.read_group

    def count_chunk(self, chunk_id, *rest):
        with lock:
            counts[chunk_id] += 1
        return read_chunk(self, chunk_id, *rest)

    def count_group(self, group, sink, slot):
        with lock:
            counts.update({one.requests[0].chunk_id for one in group.chunks})
        return read_group(self, group, sink, slot)

    monkeypatch.setattr(ChunkReader, "read_chunk", count_chunk)
    monkeypatch.setattr(ChunkReader, "read_group", count_group)
    return counts


def load_as_ranks(repo, shelves, load):
    def run(rank, shelf):
        with Repo.open(repo.worktree) as mine, RunStore(mine).reading_nearby(shelf):
            return load(mine, rank)

    return run_all(*(lambda pair=pair: run(*pair) for pair in enumerate(shelves)))


def test_replicas_read_each_chunk_once(repo, state, reads):
    with open_shelves(4) as shelves:
        loaded = load_as_ranks(repo, shelves, lambda mine, _: mine.load_state())
    for one in loaded:
        assert all(torch.equal(one["model"][name], state["model"][name]) for name in state["model"])
    assert len(reads) > 30
    assert set(reads.values()) == {1}


def test_shards_read_each_chunk_once(repo, state, reads):
    """Also those that lie in the shards of several, and those of replicated parts."""
    rows = {name: ("dp", [Shard(0)]) for name in ("w0", "w1", "long")}
    rows["w2"] = ("dp", [Replicate()])
    targets = []
    for rank in range(2):
        with as_rank(rank, (2,), ("dp",)) as mesh:
            targets.append(
                shard(
                    {"model": {n: torch.zeros_like(one) for n, one in state["model"].items()}},
                    mesh,
                    rows,
                )
            )
    with open_shelves(2) as shelves:
        load_as_ranks(repo, shelves, lambda mine, rank: mine.load_state(into=targets[rank]))
        checks = load_as_ranks(repo, shelves, lambda mine, rank: mine.verify_state(targets[rank]))
    assert [one.differences for one in checks] == [(), ()]
    assert set(reads.values()) == {1}


def test_a_wrong_chunk_on_the_shelf_costs_a_read_only(repo, state, reads):
    with open_shelves(2) as (one, other):
        with Repo.open(repo.worktree) as mine, RunStore(mine).reading_nearby(one):
            mine.load_state()
        for start in map(module._find_start, range(_PLACES)):
            wrong = os.pread(one._descriptor, 1, start)[0] ^ 1
            os.pwrite(one._descriptor, bytes([wrong]), start)
        with Repo.open(repo.worktree) as mine, RunStore(mine).reading_nearby(other):
            loaded = mine.load_state()
    assert all(torch.equal(loaded["model"][name], one) for name, one in state["model"].items())


def test_damage_is_reported_by_all(repo, reads):
    for pack in (repo.git_dir / "chunks").rglob("*.pack"):
        flip(pack)

    def load(mine, _):
        with pytest.raises(CorruptionError):
            mine.load_state()

    with open_shelves(3) as shelves:
        load_as_ranks(repo, shelves, load)

"""Chunks in the memory of writers are read instead of packs, and believed only when they are right."""

import pytest

from mvc.training import RunStore

torch = pytest.importorskip("torch")

from torch.distributed.tensor import Shard  # noqa: E402

from mvc import Identity, Repo, StorageError  # noqa: E402
from support.sharded import SeenPeers, as_rank, commit_frozen, freeze, shard  # noqa: E402

pytestmark = pytest.mark.torch

ME = Identity("Ada", "ada@example.org")
_CHUNK_BYTES = 4096


@pytest.fixture
def state():
    torch.manual_seed(0)
    model = {"w": torch.randn(67, 33), "plain": torch.randn(2000), "one": torch.ones(())}
    return {"model": model}


@pytest.fixture
def repo(tmp_path):
    Repo.init(tmp_path)
    with (tmp_path / ".mvc/config").open("a") as file:
        file.write(f"[mvc]\n\tchunkbytes = {_CHUNK_BYTES}\n")
    return Repo.open(tmp_path, identity=ME)


@pytest.fixture
def held(repo, state):
    """A commit of two ranks; returns its shares, the memory of which may be written to."""
    frozen = []
    for rank in range(2):
        with as_rank(rank, (2,), ("dp",)) as mesh:
            live = shard(state, mesh, {"w": ("dp", [Shard(0)])})
            own = {"pieces": [torch.arange(5000)]} if rank else None
            image, form, _ = freeze(live, rank, 2, own=own)
            frozen.append((image, form))
    repos = [Repo.open(repo.worktree, identity=ME) for _ in frozen]
    commit_frozen(repos, frozen, message="two ranks", step=1)
    return [RunStore(repo).open_share(*one) for one in frozen], [image for image, _ in frozen]


def lose_packs(repo):
    for path in (repo.git_dir / "chunks").rglob("*"):
        if path.is_file():
            path.unlink()
    return Repo.open(repo.worktree, identity=ME)


def check_same(repo, state):
    loaded = repo.load_state()["model"]
    assert all(torch.equal(loaded[name], one) for name, one in state["model"].items())


def test_nothing_is_read_from_packs(repo, state, held):
    shares, _ = held
    repo = lose_packs(repo)
    chunks = RunStore(repo).find_held({}, share=shares[0], peers=SeenPeers(shares, is_seen=True))
    with RunStore(repo).reading_nearby(chunks):
        check_same(repo, state)
    assert chunks.given_bytes == sum(one.nbytes for one in state["model"].values())
    assert chunks.lies == []


def test_files_of_one_rank(repo, held):
    shares, _ = held
    repo = lose_packs(repo)
    chunks = RunStore(repo).find_held(shares[1].own_files())
    with RunStore(repo).reading_nearby(chunks):
        own = repo.load_state(folder="ranks/1")
    assert torch.equal(own["pieces"][0], torch.arange(5000))


def test_a_lie_is_told_and_the_store_is_read(repo, state, held):
    shares, images = held
    images[1][0] ^= 1
    chunks = RunStore(repo).find_held({}, share=shares[0], peers=SeenPeers(shares, is_seen=True))
    with RunStore(repo).reading_nearby(chunks):
        check_same(repo, state)
    (lie,) = chunks.lies
    assert "tensor" in lie
    assert lie.endswith(("held by ranks 0, 1", "held by rank 1"))


def test_a_rank_that_is_not_held(repo, state, held):
    class Gone(SeenPeers):
        def find_image(self, rank):
            return None if rank else super().find_image(rank)

        def fetch_part(self, rank, array, chunk):
            raise StorageError(f"rank {rank} is gone")

    shares, _ = held
    chunks = RunStore(repo).find_held({}, share=shares[0], peers=Gone(shares, is_seen=True))
    with RunStore(repo).reading_nearby(chunks):
        check_same(repo, state)
    whole = sum(one.nbytes for one in state["model"].values())
    assert 0 < chunks.given_bytes < whole
    assert chunks.lies == []


def test_a_part_of_a_tensor_reads_only_what_it_needs(repo, state, held):
    shares, _ = held
    repo = lose_packs(repo)
    chunks = RunStore(repo).find_held({}, share=shares[0], peers=SeenPeers(shares, is_seen=True))
    with as_rank(0, (4,), ("dp",)) as mesh, RunStore(repo).reading_nearby(chunks):
        blank = {"model": {name: torch.zeros_like(one) for name, one in state["model"].items()}}
        into = shard(blank, mesh, {"w": ("dp", [Shard(0)])})
        repo.load_state(into=into)
        mine = into["model"]["w"].to_local()
        assert torch.equal(mine, state["model"]["w"][: len(mine)])
        assert repo.verify_state(into).differences == ()


def test_another_commit_has_other_chunks(repo, held, state):
    shares, _ = held
    other = {"model": {name: one + 1 for name, one in state["model"].items()}}
    repo.commit_state(other, message="later", step=2)
    repo = Repo.open(repo.worktree, identity=ME)
    chunks = RunStore(repo).find_held({}, share=shares[0], peers=SeenPeers(shares, is_seen=True))
    with RunStore(repo).reading_nearby(chunks):
        check_same(repo, other)
    assert chunks.lies


def test_reading_nearby_ends(repo, state, held):
    shares, images = held
    chunks = RunStore(repo).find_held({}, share=shares[0], peers=SeenPeers(shares, is_seen=True))
    with RunStore(repo).reading_nearby(chunks):
        pass
    images[0][:] = bytes(len(images[0]))
    check_same(repo, state)
    assert not chunks.lies
    assert not chunks.given_bytes
    assert len(chunks)

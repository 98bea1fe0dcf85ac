"""The same state is the same commit, whoever wrote it."""

import pytest

from mvc.training import CommitRequest, RunStore

torch = pytest.importorskip("torch")
from torch.distributed.tensor import Replicate, Shard  # noqa: E402

from mvc import ConflictError, FormatError, Repo, StorageError, UnsupportedError  # noqa: E402
from mvc.states.assembling import ArraySource  # noqa: E402
from mvc.states.share import open_share  # noqa: E402
from mvc.training import layout_state  # noqa: E402
from support.sharded import SeenPeers, as_rank, commit_frozen, freeze, shard  # noqa: E402
from support.shared_states import (  # noqa: E402
    ME,
    TOPOLOGIES,
    blobs_of,
    make_state,
    new_repo,
    open_all,
)

pytestmark = pytest.mark.torch


def freeze_all(state, topology, *, own=True):
    shape, names, placements = TOPOLOGIES[topology]
    ranks = torch.Size(shape).numel()
    frozen = []
    for rank in range(ranks):
        with as_rank(rank, shape, names) as mesh:
            mine = {"pieces": [torch.arange(rank)]} if rank and own else None
            live = shard(state, mesh, placements)
            image, form, plan = freeze(live, rank, ranks, own=mine)
            again = freeze(live, rank, ranks, own=mine, previous=plan)
            assert plan is not None
            assert (again[0], again[1]) == (image, form)
            frozen.append((image, form))
    return frozen


@pytest.fixture
def alone(tmp_path):
    """A repository with the state as one process commits it."""
    folder = tmp_path / "alone"
    folder.mkdir()
    repo = new_repo(folder)
    repo.commit_state(make_state(), message="alone")
    return repo


@pytest.mark.parametrize("is_seen", [True, False])
@pytest.mark.parametrize("topology", list(TOPOLOGIES))
def test_the_same_state_has_the_same_blobs(tmp_path, alone, topology, is_seen):
    new_repo(tmp_path)
    frozen = freeze_all(make_state(), topology)
    repos = open_all(tmp_path, len(frozen))
    commit_frozen(repos, frozen, is_seen=is_seen, message="many", step=4)
    found = blobs_of(repos[0])
    own = {path for path in found if path.startswith("ranks/")}
    assert {path: blob for path, blob in found.items() if path not in own} == blobs_of(alone)
    assert own == {f"ranks/{rank}/pieces.safetensors" for rank in range(1, len(frozen))}

    assert not repos[0].upkeep.fsck(data=True).problems
    loaded = repos[0].load_state()
    expected = make_state()
    assert torch.equal(loaded["model"]["odd"], expected["model"]["odd"])
    assert loaded["model"]["tied"].data_ptr() == loaded["model"]["tiny"].data_ptr()


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("how", [Replicate(), Shard(0), Shard(1)])
def test_the_load_is_even(ranks, how):
    """Largest over mean, of what is kept and of what is stored."""
    state = {"model": {f"w{n}": torch.empty(256, 1024 + 64 * (n % 3)) for n in range(24)}}
    sizes, stored = [], [0] * ranks
    for rank in range(ranks):
        with as_rank(rank, (ranks,), ("dp",)) as mesh:
            live = shard(state, mesh, {name: ("dp", [how]) for name in state["model"]})
            layout = layout_state(live, rank=rank, ranks=ranks)
        sizes.append(layout.size_bytes - (len_text(layout) if rank == 0 else 0))
        share = open_share(memoryview(b""), layout.form, 2**16)
    for number, owners in enumerate(share.plan.keepers.owners):
        rest = share.plan.arrays[number].elements * 4
        for rank in owners.tolist():
            stored[rank] += min(rest, 2**16)
            rest -= 2**16
    assert max(sizes) * ranks <= 1.1 * sum(sizes)
    assert max(stored) * ranks <= 1.1 * sum(stored)


def len_text(layout):
    return layout.parts[-1].size_bytes + 4096


def test_the_next_commit_replaces_what_ranks_had(tmp_path):
    repo = new_repo(tmp_path)
    frozen = freeze_all(make_state(), "sharded")
    commit_frozen(open_all(tmp_path, 3), frozen, message="three", step=4)
    repo = Repo.open(tmp_path, identity=ME)
    assert RunStore(repo).outline_state(folder="ranks/2")["pieces"][0].shape == (2,)
    assert repo.load_state(folder="ranks/2")["pieces"][0].tolist() == [0, 1]
    assert repo.verify_state({"pieces": [torch.arange(2)]}, folder="ranks/2").is_exact
    assert not repo.verify_state({"pieces": [torch.zeros(2).long()]}, folder="ranks/2").is_exact
    repo.checkout("HEAD", paths=["."])
    assert (tmp_path / "ranks" / "1" / "state.json").exists()
    repo.commit_state(make_state(1), message="one")
    assert set(repo._context.history.read_tree(repo.resolve("HEAD"))) == {
        "model.safetensors", "optimizer.safetensors", "state.json",
    }  # fmt: skip


def test_differences_are_taken_from_the_last_commit(tmp_path):
    new_repo(tmp_path, 2**15)
    first, second = make_state(), make_state()
    second["model"]["wide"][:, 0] = 0  # a little of every chunk
    for state in (first, second):
        frozen = freeze_all(state, "both", own=False)
        repos = open_all(tmp_path, 4)
        _, stored = commit_frozen(repos, frozen, delta=True, message="many", step=4)
    wide = second["model"]["wide"].nbytes
    assert sum(one.counts.new_plain_bytes for one in stored) == wide
    assert sum(one.counts.stored_bytes for one in stored) < wide / 4
    assert torch.equal(repos[0].load_state()["model"]["wide"], second["model"]["wide"])
    assert not repos[0].upkeep.fsck(data=True).problems


def test_ranks_that_hold_different_states_make_no_commit(tmp_path):
    repo = new_repo(tmp_path)
    state, other = make_state(), make_state()
    other["model"]["wide"] = other["model"]["wide"][:400]
    frozen = freeze_all(state, "replicas")[:3] + freeze_all(other, "replicas")[3:]
    with pytest.raises(ConflictError, match="rank 3 holds another state than rank 0"):
        commit_frozen(open_all(tmp_path, 4), frozen, message="never")
    assert repo.branches.list() == []


def test_a_rank_that_is_missing_or_told_too_little_makes_no_commit(tmp_path):
    from dataclasses import replace

    repo = new_repo(tmp_path)
    frozen = freeze_all(make_state(), "sharded")
    repos = open_all(tmp_path, 3)
    shares = [RunStore(one).open_share(*frozen[rank]) for rank, one in enumerate(repos)]
    peers = SeenPeers(shares, is_seen=True)
    stored = []
    for rank, one in enumerate(repos):
        with RunStore(one).store_share(shares[rank], peers) as found:
            stored.append(found)
    for told, why in [
        (stored[:2], "of 3 ranks"),
        ([*stored[:2], stored[1]], "of 3 ranks"),
        ([*stored[:2], replace(stored[2], ids=stored[2].ids[:-32])], "fewer chunks"),
        ([*stored[:2], replace(stored[2], ids=stored[2].ids + bytes(32))], "more chunks"),
        ([*stored[:2], replace(stored[2], health=())], "other files"),
    ]:
        with pytest.raises(FormatError, match=why):
            RunStore(repo).commit_shares(shares[0], told, CommitRequest(message="never"))
    with pytest.raises(ConflictError, match="cuts tensors"):
        RunStore(repo).commit_shares(
            shares[0],
            [*stored[:2], replace(stored[2], chunk_bytes=8192)],
            CommitRequest(message="never"),
        )
    assert repo.branches.list() == []


def test_parts_of_another_length_are_refused(tmp_path):
    new_repo(tmp_path)
    frozen = freeze_all(make_state(), "columns")
    repos = open_all(tmp_path, 4)
    shares = [RunStore(one).open_share(*frozen[rank]) for rank, one in enumerate(repos)]

    class Lying(SeenPeers):
        def fetch_part(self, rank, array, chunk):
            return super().fetch_part(rank, array, chunk)[:-1]

    with pytest.raises(StorageError, match="rank 1 sent"):
        with RunStore(repos[0]).store_share(shares[0], Lying(shares, is_seen=False)):
            pass


def test_a_part_of_a_state_that_no_rank_holds_is_refused():
    with as_rank(0, (2, 2), ("pp", "dp")) as mesh:
        live = shard({"model": {"w": torch.ones(8)}}, mesh, {"w": (("pp", "dp"), [Shard(0)] * 2)})
        with pytest.raises(UnsupportedError, match="other processes than those that commit"):
            layout_state(live, rank=0, ranks=2)


@pytest.mark.parametrize("placement", [Replicate(), Shard(0)])
def test_weights_that_are_rounded_masters_are_stored_as_such(tmp_path, placement):
    master = torch.randn(512, 300)
    state = {
        "model": {"w": master.bfloat16()},
        "optimizer": {"state": {0: {"master": master}}},
        "step": 1,
    }
    new_repo(tmp_path, 2**15)
    frozen = []
    for rank in range(4):
        with as_rank(rank, (4,), ("dp",)) as mesh:
            live = shard(state, mesh, dict.fromkeys(("w", "master"), ("dp", [placement])))
            frozen.append(freeze(live, rank, 4)[:2])
    repos = open_all(tmp_path, 4)
    _, stored = commit_frozen(repos, frozen, message="many")
    assert sum(one.counts.new_plain_bytes for one in stored) > master.nbytes * 1.5
    assert sum(one.counts.stored_bytes for one in stored) < master.nbytes
    assert torch.equal(repos[0].load_state()["model"]["w"], state["model"]["w"])
    assert not repos[0].upkeep.fsck(data=True).problems


def freeze_own(seed=0, *, buffers=True):
    """Return the frozen states of three ranks, each with generators and buffers of its own."""
    frozen = []
    for rank in range(3):
        with as_rank(rank, (3,), ("dp",)) as mesh:
            live = shard(make_state(), mesh, TOPOLOGIES["sharded"][2])
            live["model"]["mean"] = torch.full((7,), float(rank + seed))
            live["model"]["odd mean"] = torch.full((5, 3), rank + seed, dtype=torch.complex128)
            first = (("model", "mean"), ("model", "odd mean")) if buffers else ()
            if rank == 0:
                own = {"private": ["rng", "data"], "first": first}
                live |= {"rng": {"torch": torch.arange(9) + seed}, "data": {"drawn": 4}}
            else:
                own = {"first": first, "own": {"rng": torch.arange(rank)}}
            image, form, plan = freeze(live, rank, 3, **own)
            again = freeze(live, rank, 3, previous=plan, **own)
            assert again[:2] == (image, form)
            frozen.append((image, form))
    return frozen


def test_what_belongs_to_rank_0_is_in_the_state_and_not_in_the_form(tmp_path):
    new_repo(tmp_path)
    (tmp_path / "one").mkdir()
    alone = new_repo(tmp_path / "one")
    state = make_state()
    state["model"] |= {
        "mean": torch.zeros(7),
        "odd mean": torch.zeros(5, 3, dtype=torch.complex128),
    }
    alone.commit_state(
        {**state, "rng": {"torch": torch.arange(9)}, "data": {"drawn": 4}}, message="alone"
    )
    repos = open_all(tmp_path, 3)
    commit_frozen(repos, freeze_own(), message="many")
    found = {path: blob for path, blob in blobs_of(repos[0]).items() if "/" not in path}
    assert found == blobs_of(alone)
    assert repos[0].load_state()["data"] == {"drawn": 4}
    assert torch.equal(repos[0].load_state(folder="ranks/2")["rng"], torch.arange(2))
    assert not repos[0].upkeep.fsck(data=True).problems
    commit_frozen(repos, freeze_own(1), message="again", parent=repos[0].resolve("HEAD"))
    assert torch.equal(repos[0].load_state()["rng"]["torch"], torch.arange(9) + 1)
    assert torch.equal(repos[0].load_state()["model"]["mean"], torch.ones(7))


def test_what_is_stored_is_a_copy_of_other_ranks_memory():
    """It may change under a reader, if the commit fails over there."""
    frozen = []
    for rank in range(2):
        with as_rank(rank, (2,), ("dp",)) as mesh:
            live = shard({"model": {"w": torch.arange(4096.0)}}, mesh, {"w": ("dp", [Shard(0)])})
            frozen.append(freeze(live, rank, 2)[:2])
    shares = [open_share(*one, 4096) for one in frozen]
    sources = [ArraySource(one, 0, SeenPeers(shares, is_seen=True)) for one in shares]
    assert sources[0].view(0, 4096) == frozen[0][0][:4096]
    assert sources[1].view(0, 4096) is None
    assert sources[1].view(8192, 4096) is not None
    assert sources[0].view(8192, 4096) is None


def test_small_packs_are_joined_though_every_rank_holds_the_sweep_lock(tmp_path):
    repo = new_repo(tmp_path)
    for seed in range(20):
        frozen = freeze_all(make_state(seed), "sharded", own=False)
        repos = open_all(tmp_path, 3)
        commit_frozen(repos, frozen, message="many")
    assert len(list(tmp_path.glob(".mvc/chunks/packs/*.pack"))) < 50
    assert torch.equal(repo.load_state("HEAD~15")["model"]["odd"], make_state(4)["model"]["odd"])

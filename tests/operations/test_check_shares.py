"""A commit of several ranks says whether two of them held the same bytes."""

from dataclasses import replace

import pytest

from mvc.training import CommitRequest, RunStore

torch = pytest.importorskip("torch")

from mvc import ConflictError, FormatError, Repo, StorageError  # noqa: E402
from mvc.states import assembling  # noqa: E402
from mvc.states.cross_check import (  # noqa: E402
    CHECK_ROUNDS,
    count_checkable,
    list_checkers,
    list_due,
)
from mvc.training import Agreement, parse_stored_share  # noqa: E402
from support.sharded import SeenPeers, as_rank, commit_frozen, freeze, shard  # noqa: E402
from support.shared_states import CHUNK, TOPOLOGIES, blobs_of, make_state, new_repo, open_all  # noqa: E402

pytestmark = pytest.mark.torch


ROUND = 2
"""In it ranks 0, 1 and 3 have something to check."""


def freeze_all(topology, number, states=None):
    """Return what every rank freezes for a commit; ``states`` are those of ranks with other bytes."""
    shape, names, placements = TOPOLOGIES[topology]
    frozen = []
    for rank in range(torch.Size(shape).numel()):
        state = (states or {}).get(rank) or make_state()
        with as_rank(rank, shape, names) as mesh:
            live = shard(state, mesh, placements)
            terms = {"check": (number, CHUNK)}
            image, form, plan = freeze(live, rank, torch.Size(shape).numel(), **terms)
            if rank == 1:
                again = freeze(live, rank, torch.Size(shape).numel(), previous=plan, **terms)
                assert again[:2] == (image, form)
            frozen.append((image, form))
    return frozen


def flip(name, at):
    """Return a state in which one bit of every column is another, from an element on."""
    state = make_state()
    state["model"][name].view(-1).view(torch.int32)[at : at + 33] ^= 1 << 3
    return state


@pytest.mark.parametrize(
    ("topology", "is_seen"),
    [
        ("replicas", True),
        ("crossed", True),
        ("crossed", False),
        pytest.param("hybrid", True, marks=pytest.mark.slow),
    ],
)
def test_healthy_ranks_agree_on_all_that_is_due(tmp_path, topology, is_seen, monkeypatch):
    hashed = []
    real = assembling.hash_chunk
    monkeypatch.setattr(
        assembling, "hash_chunk", lambda data: hashed.append(len(data)) or real(data)
    )
    new_repo(tmp_path)
    repos = open_all(tmp_path, torch.Size(TOPOLOGIES[topology][0]).numel())
    lengths = set()
    for number in (2, 9):
        frozen = freeze_all(topology, number)
        lengths.add(tuple(len(image) for image, _ in frozen))
        plan = RunStore(repos[0]).open_share(*frozen[0]).plan
        due = [one[:2] for one in list_checkers(plan.keepers, number)]
        result, stored = commit_frozen(repos, frozen, is_seen=is_seen, message="many")
        assert result.agreement == Agreement(len(due), count_checkable(plan.keepers))
        assert repos[0].show(result.commit).agreement == result.agreement
        assert sum(len(one.checked) for one in stored) == 32 * len(due)
        sizes = [
            min(CHUNK, plan.arrays[array].elements * plan.arrays[array].item_bytes - chunk * CHUNK)
            for array, chunk in due
        ]
        assert sum(hashed) == sum(sizes)
        hashed.clear()
    assert len(lengths) == 1, "the memory of a snapshot fits the next one"


def test_the_blobs_are_the_same_with_a_check_and_without(tmp_path):
    (tmp_path / "alone").mkdir()
    alone = new_repo(tmp_path / "alone")
    alone.commit_state(make_state(), message="alone")
    new_repo(tmp_path)
    repos = open_all(tmp_path, 4)
    commit_frozen(repos, freeze_all("crossed", 3), message="many")
    assert blobs_of(repos[0]) == blobs_of(alone)
    assert not repos[0].upkeep.fsck(data=True).problems


def test_ranks_of_which_each_has_its_own_part_check_nothing(tmp_path):
    new_repo(tmp_path)
    sharded = make_state()
    sharded["model"] = {name: sharded["model"][name] for name in ("wide", "odd", "half", "scalar")}
    frozen = []
    for rank in range(3):
        with as_rank(rank, (3,), ("dp",)) as mesh:
            live = shard(sharded, mesh, TOPOLOGIES["sharded"][2])
            frozen.append(freeze(live, rank, 3, check=(0, CHUNK))[:2])
            assert len(frozen[-1][0]) == len(freeze(live, rank, 3)[0])
    result, stored = commit_frozen(open_all(tmp_path, 3), frozen, message="many")
    assert result.agreement is None
    assert [one.checked for one in stored] == [b""] * 3
    assert "Replica" not in Repo.open(tmp_path).show().message


@pytest.mark.parametrize(
    ("topology", "role", "is_seen"),
    [
        ("replicas", "stored", True),
        ("replicas", "neither", True),
        ("replicas", "checked", True),
        pytest.param("hybrid", "stored", True, marks=pytest.mark.slow),
        pytest.param("hybrid", "checked", True, marks=pytest.mark.slow),
        ("crossed", "stored", False),
        ("crossed", "checked", True),
    ],
)
def test_one_bit_on_one_rank_is_a_dispute_that_names_it(tmp_path, topology, role, is_seen):
    """A replica that neither keeps nor checks a chunk has no say in what is committed of it."""
    new_repo(tmp_path)
    (tmp_path / "clean").mkdir()
    clean = new_repo(tmp_path / "clean")
    clean.commit_state(make_state(), message="clean")
    ranks = torch.Size(TOPOLOGIES[topology][0]).numel()
    repos = open_all(tmp_path, ranks)
    plan = RunStore(repos[0]).open_share(*freeze_all(topology, 0)[0]).plan
    array, chunk, first = find_tensor(plan, "wide"), 16, 16 * CHUNK // 4
    division = plan.keepers.divisions[array]
    kept = [division.kept[number] for number, _ in division.find_parts(chunk)]
    sides = {"stored": {one.rank for one in kept}, "checked": {one.checker for one in kept}}
    (number,) = list_rounds(array, chunk)
    others = {*range(ranks)} - sides["stored"] - sides["checked"]
    victim = min(sides.get(role, others), default=None)
    states = {victim: flip("wide", first + 1)}
    result, _ = commit_frozen(
        repos, freeze_all(topology, number, states), is_seen=is_seen, message="many"
    )
    agreement = result.agreement
    assert repos[0].show(result.commit).agreement == agreement
    assert (blobs_of(repos[0]) == blobs_of(clean)) == (role != "stored")
    if role == "neither":
        assert agreement.differed == 0
        repos[0].runs.mark_healthy(result.commit)
        return
    (dispute,) = agreement.disputes
    assert agreement.differed == 1
    assert (dispute.path, dispute.tensor, dispute.chunk) == ("model.safetensors", "wide", chunk)
    assert {"stored": set(dispute.stored), "checked": set(dispute.checked)} == sides
    with pytest.raises(
        ConflictError, match=r"wide in model\.safetensors differs in chunk 16 between"
    ):
        repos[0].runs.mark_healthy(result.commit)
    assert repos[0].runs.healthy() == ()


def list_rounds(array, chunk):
    chunks = range(chunk, chunk + 1)
    return [number for number in range(CHECK_ROUNDS) if list_due(array, chunks, number)]


def find_tensor(plan, name):
    (path, _, layout) = plan.layouts[0]
    names = [segment.tensors[0].name for segment in layout.segments]
    return plan.first_arrays[path] + names.index(name)


def test_replicas_that_divide_a_chunk_check_each_others_halves(tmp_path):
    """Both ranks of two keep a part of it; whichever bit is another, they differ."""
    new_repo(tmp_path, 2**20)
    for at in (0, 2**16 - 1):
        state = {"model": {"w": torch.arange(2.0**16)}}
        other = {"model": {"w": torch.arange(2.0**16)}}
        other["model"]["w"].view(torch.int32)[at] ^= 1
        disputes = []
        for number in list_rounds(0, 0):
            frozen = []
            for rank, one in enumerate((state, other)):
                with as_rank(rank, (2,), ("dp",)):
                    frozen.append(freeze(one, rank, 2, check=(number, 2**20))[:2])
            result, _ = commit_frozen(open_all(tmp_path, 2), frozen, message="many")
            disputes += () if result.agreement is None else result.agreement.disputes
        assert [(one.chunk, one.stored, one.checked) for one in disputes] == [(0, (0, 1), (0, 1))]


def test_more_differences_than_fit_are_counted(tmp_path):
    new_repo(tmp_path)
    frozen = [
        freeze_all("replicas", 0)[0],
        *freeze_all("replicas", 0, dict.fromkeys(range(4), make_state(1)))[1:],
    ]
    result, _ = commit_frozen(open_all(tmp_path, 4), frozen, message="many")
    assert result.agreement.differed > 0
    assert len(result.agreement.disputes) == min(16, result.agreement.differed)


@pytest.fixture
def told(tmp_path):
    """A repository, the share of rank 0, and what all ranks of a healthy commit have told."""
    repo = new_repo(tmp_path)
    frozen = freeze_all("replicas", ROUND)
    repos = open_all(tmp_path, 4)
    shares = [RunStore(one).open_share(*frozen[rank]) for rank, one in enumerate(repos)]
    peers, stored = SeenPeers(shares, is_seen=True), []
    for rank, one in enumerate(repos):
        with RunStore(one).store_share(shares[rank], peers) as found:
            stored.append(found)
    assert stored[1].checked
    return repo, shares[0], stored


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda one: {"checked": one.checked[:-32]}, "rank 1 has checked fewer chunks"),
        (lambda one: {"checked": one.checked + bytes(range(32))}, "rank 1 has checked more chunks"),
        (lambda one: {"check_round": 5}, "rank 1 has checked for commit 5 of the run, not 2"),
        (lambda one: {"check_round": -1}, "rank 1 has checked for commit -1 of the run, not 2"),
    ],
)
def test_a_rank_that_tells_something_else_makes_no_commit(told, change, why):
    repo, share, stored = told
    stored[1] = replace(stored[1], **change(stored[1]))
    with pytest.raises(FormatError, match=why):
        RunStore(repo).commit_shares(share, stored, CommitRequest(message="never"))
    assert repo.branches.list() == []


def test_ids_that_end_within_one_are_refused(told):
    _, _, stored = told
    with pytest.raises(FormatError, match="the stored share of rank 1 ends within an id"):
        parse_stored_share(replace(stored[1], checked=stored[1].checked[:-1]).encode())


def test_a_rank_that_checks_nothing_leaves_its_chunks_unchecked(told):
    """As a writer of a version that does not know how."""
    repo, share, stored = told
    everything = RunStore(repo).commit_shares(share, stored, CommitRequest(message="all")).agreement
    stored[1] = replace(stored[1], checked=b"", check_round=-1)
    some = RunStore(repo).commit_shares(share, stored, CommitRequest(message="some")).agreement
    assert 0 < some.agreed < everything.agreed
    assert (some.differed, some.chunks) == (0, everything.chunks)


def test_a_rank_out_of_reach_leaves_chunks_unchecked(tmp_path):
    """The check alone never makes a commit fail."""
    new_repo(tmp_path)
    repos = open_all(tmp_path, 4)
    asked, agreed = [], 0

    class Apart(SeenPeers):
        def fetch_checked(self, rank, array, chunk):
            asked.append(rank)
            raise StorageError(f"rank {rank} cannot be reached")

    for number in (0, 1):
        frozen = freeze_all("crossed", number)
        shares = [RunStore(one).open_share(*frozen[rank]) for rank, one in enumerate(repos)]
        stored = []
        for rank, one in enumerate(repos):
            with RunStore(one).store_share(shares[rank], Apart(shares, is_seen=False)) as found:
                stored.append(found)
        assert len(asked) <= 4 * (number + 1), "who is out of reach is not asked for every chunk"
        found = (
            RunStore(repos[0])
            .commit_shares(shares[0], stored, CommitRequest(message="many"))
            .agreement
        )
        agreed += 0 if found is None else found.agreed
        assert found is None or found.differed == 0
    due = sum(len([*list_checkers(shares[0].plan.keepers, number)]) for number in (0, 1))
    assert 0 < agreed < due


def test_another_length_of_chunks_leaves_nothing_to_check(tmp_path):
    new_repo(tmp_path, 2 * CHUNK)
    result, stored = commit_frozen(open_all(tmp_path, 4), freeze_all("replicas", 0), message="many")
    assert result.agreement is None
    assert [one.check_round for one in stored] == [-1] * 4


def test_an_amended_commit_keeps_what_was_checked_of_the_same_content(told):
    repo, share, stored = told
    agreement = RunStore(repo).commit_shares(share, stored, CommitRequest(message="all")).agreement
    assert repo.commit("other words", amend=True).agreement == agreement
    (repo.worktree / "notes.txt").write_text("x")
    repo.add("notes.txt")
    assert repo.commit("another file", amend=True).agreement is None

"""What belongs to a rank: committed beside what all share, and given back on any number of ranks.

The ranks are made one after the other in one process; that several processes agree is for ``test_ranks``.
"""

from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard

from mvc import ConflictError, FormatError, Identity, Repo
from mvc_hooks.parts.make import make_parts
from mvc_hooks.parts.restoring import capture_parts, from_commit, restore_parts
from mvc_hooks.ranks import own
from mvc_hooks.ranks.group import Ranks
from mvc_hooks.ranks.own import OwnParts
from mvc_hooks.ranks.pieces import PIECES, RANKS, make_piece, parse_pieces
from mvc_hooks.ranks.state import RankState
from support.sharded import as_rank, commit_frozen, freeze, shard

ME = Identity("Ada", "ada@example.org")


class Rank:
    """What a rank has: replicas of a model, and things of its own."""

    def __init__(self, rank, *, noise=None, drawn=0, size=1):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.noise = torch.Generator().manual_seed(rank if noise is None else noise)
        data = torch.utils.data.TensorDataset(torch.arange(64.0))
        sampler = torch.utils.data.distributed.DistributedSampler(data, size, 0, shuffle=False)
        loader = torch.utils.data.DataLoader(data, 2, sampler=sampler)
        self.values = {"seen": [rank if noise is None else 0], "sum": torch.tensor([float(drawn)])}
        named = {
            "model": self.model, "optimizer": self.optimizer, "noise": self.noise,
            "dataloader": loader, "values": self.values,
        }  # fmt: skip
        self.parts = make_parts(named, (RANKS,))
        for _ in range(drawn):
            self.parts["dataloader"].next_batch()
        torch.manual_seed(100 + (rank if noise is None else noise))

    def train(self, rank):
        self.model(torch.ones(2, 4) * rank).sum().backward()
        for param in self.model.parameters():
            param.grad = torch.ones_like(param)
        self.optimizer.step()

    def capture(self):
        return capture_parts(self.parts)


def leave_alone(rank, size):
    """Return ranks of a run whose others are not there to talk to."""
    ranks = Ranks()
    ranks.rank, ranks.size, ranks.has_left = rank, size, True
    return ranks


def commit_ranks(folder, size, **how):
    """Commit what ranks have, and return it."""
    Repo.init(folder)
    frozen, kept = [], []
    for rank in range(size):
        one = Rank(rank, size=size, **how)
        one.train(1 + rank if "noise" not in how else 1)
        state = one.capture()
        view = OwnParts(one.parts).view(state, rank, size)
        frozen.append(freeze(view.shared, previous=None, **view.terms())[:2])
        kept.append(dict(walk(state)))
    repos = [Repo.open(folder, identity=ME) for _ in range(size)]
    commit_frozen(repos, frozen, message="all", step=1)
    return repos[0], kept


def walk(value, path=()):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from walk(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from walk(item, (*path, number))
    else:
        yield path, value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value)


def resume(repo, rank, size, allow=()):
    """Return what a fresh rank has after it took what the commit has for it."""
    one = Rank(9, size=size)
    state = RankState(leave_alone(rank, size), one.parts)
    opened = state.open(from_commit(repo, "HEAD"), allow, one.capture)
    restore_parts(opened.source, one.parts, leave=opened.unknown)
    return dict(walk(one.capture())), opened.unknown


def test_every_rank_gets_back_what_it_had(tmp_path):
    repo, kept = commit_ranks(tmp_path, 3, drawn=2)
    assert kept[0][("model", "1.running_mean")] != kept[2][("model", "1.running_mean")]
    for rank in range(3):
        found, unknown = resume(repo, rank, 3)
        assert found == kept[rank]
        assert not unknown
    assert repo.load_state()[RANKS] == {"size": 3, "split": [["dataloader"]]}
    files = set(repo._context.history.read_tree(repo.resolve("HEAD")))
    assert {"ranks/1/state.json", "ranks/2/pieces.safetensors", "rng.safetensors"} <= files
    assert not [path for path in files if path.startswith("ranks/0")]


def test_what_all_ranks_had_goes_to_any_number(tmp_path):
    repo, kept = commit_ranks(tmp_path, 3, noise=5)
    for size in (1, 2, 5):
        for rank in range(size):
            found, unknown = resume(repo, rank, size)
            assert found == kept[0]
            assert not unknown


@pytest.mark.parametrize(
    ("size", "lost"),
    [
        (1, "ranks 1 and 2 would be lost"),
        (2, "of rank 2 would be lost"),
        (5, "of ranks 3 and 4"),
        (7, "of ranks 3 to 6"),
    ],
)
def test_what_would_be_lost_is_said(tmp_path, size, lost):
    repo, _ = commit_ranks(tmp_path, 3)
    with pytest.raises(ConflictError, match="but the commit was made by 3 ranks") as caught:
        resume(repo, 0, size)
    assert lost in caught.value.message
    names = ("generators", "state of values", "buffers of model")
    assert all(name in caught.value.message for name in names)
    assert "data" not in caught.value.message, "it is at the beginning"
    assert 'allow=["ranks"]' in caught.value.hint


def test_a_position_in_data_that_ranks_divide_is_one_of_their_number(tmp_path):
    repo, _ = commit_ranks(tmp_path, 2, noise=5, drawn=3)
    with pytest.raises(ConflictError, match="position in the data of ranks 0 and 1 would be"):
        resume(repo, 0, 4)


def test_of_one_process_other_ranks_have_no_generators(tmp_path):
    one = Rank(0, drawn=2)
    repo = Repo.init(tmp_path)
    repo.identity = ME
    repo.commit_state(one.capture(), message="alone")
    with pytest.raises(ConflictError) as caught:
        resume(repo, 1, 2)
    assert caught.value.message.endswith(
        ": it has no generators and no position in the data of rank 1; "
        "the position in the data of rank 0 would be lost"
    )
    found, unknown = resume(repo, 1, 2, ["ranks"])
    kept = dict(walk(one.capture()))
    assert {"rng", "noise", "dataloader"} == set(unknown)
    assert all(found[path] == kept[path] for path in kept if path[0] not in unknown)


def test_a_rank_takes_its_own_where_there_is_one(tmp_path):
    repo, kept = commit_ranks(tmp_path, 3)
    assert resume(repo, 1, 2, ["ranks"]) == (kept[1], set())
    found, unknown = resume(repo, 3, 5, ["ranks"])
    assert unknown == {"rng", "noise", "values"}
    assert all(found[path] == kept[0][path] for path in found if path[0] not in unknown)


class Average:
    """An average of the user's: DTensors, and things beside them."""

    def __init__(self, mean, count):
        self.held = {"means": [mean, count], "count": torch.tensor(count), "note": str(count)}

    def state_dict(self):
        return self.held

    def load_state_dict(self, state):
        self.held = state


def commit_averages(folder, mean, counts):
    """Commit an average of each rank, sharded, with a count of its own; return the repository."""
    Repo.init(folder)
    frozen = []
    for rank, count in enumerate(counts):
        with as_rank(rank, (len(counts),), ("dp",)) as mesh:
            held = shard({"mean": mean}, mesh, {"mean": ("dp", [Shard(0)])})["mean"]
            parts = make_parts({"average": Average(held, count)}, (RANKS,))
            view = OwnParts(parts).view(capture_parts(parts), rank, len(counts))
            frozen.append(freeze(view.shared, **view.terms())[:2])
    repos = [Repo.open(folder, identity=ME) for _ in counts]
    commit_frozen(repos, frozen, message="all")
    return repos[0]


@pytest.mark.parametrize(
    ("counts", "allow"), [((4, 4), ()), ((4, 5), (RANKS,))], ids=["alike", "apart"]
)
@pytest.mark.parametrize(("rank", "size"), [(0, 1), (0, 3), (1, 3), (2, 3), (0, 2), (1, 2)])
def test_dtensors_of_a_part_go_to_any_number_of_ranks(tmp_path, counts, allow, rank, size):
    """They are shared, and the rest is that of the ranks."""
    mean = torch.arange(24.0).reshape(12, 2)
    repo = commit_averages(tmp_path, mean, counts)
    assert torch.equal(repo.load_state()["average"]["means"][0], mean)
    with as_rank(rank, (size,), ("dp",)) as mesh:
        live = shard({"mean": torch.zeros(12, 2)}, mesh, {"mean": ("dp", [Shard(0)])})["mean"]
        average = Average(live, 7)
        parts = make_parts({"average": average}, (RANKS,))
        capture = partial(capture_parts, parts)
        opened = RankState(leave_alone(rank, size), parts).open(
            from_commit(repo, "HEAD"), allow, capture
        )
        restore_parts(opened.source, parts, leave=opened.unknown)
        held = 12 // size
        assert torch.equal(
            average.held["means"][0].to_local(), mean[held * rank : held * (rank + 1)]
        )
        assert average.held["count"] == counts[rank % 2]
        assert average.held["note"] == str(counts[rank % 2])


@pytest.mark.parametrize(
    "stored", [None, [3], [{"at": [], "value": 1}], [{"at": ["a"]}], [{"at": [["a"]], "value": 1}], [{"at": ["a"], "value": 1, "shared": [3]}]]
)  # fmt: skip
def test_pieces_that_are_none_are_refused(stored):
    with pytest.raises(FormatError):
        parse_pieces(stored)


@pytest.mark.parametrize("path", [["b"], [1], [0, "c"]])
def test_a_piece_that_does_not_fit_is_refused(path):
    [piece] = parse_pieces([{"at": ["a"], "value": [3], "shared": [path]}])
    with pytest.raises(FormatError):
        piece.over({"b": 1})


def test_pieces_come_back_as_they_were_made():
    piece = parse_pieces([make_piece(("a", 1), {"b": [1, 2]})])[0]
    assert (piece.path, piece.value, piece.shared) == (("a", 1), {"b": [1, 2]}, ())
    assert PIECES == "pieces"


def test_long_lists_of_numbers_are_not_walked(monkeypatch):
    """A loader may keep the position of every sample; each commit looks for shards in its state."""
    asked = []
    monkeypatch.setattr(own, "is_sharded", lambda leaf: asked.append(leaf) or leaf is found)
    found = torch.ones(2)
    state = {"order": list(range(20_000)), "seen": [(1, 2.5), (True, None)], "weights": [1, found]}
    assert own.has_shards(state)
    assert len(asked) == 2
    assert not own.has_shards({"order": list(range(20_000))})
    assert len(asked) == 2

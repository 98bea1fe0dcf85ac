"""Parts of models sharded by FSDP2 and tensor parallelism, on each rank of a mesh that torch only imagines."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from mvc import Repo, UnsupportedError
from mvc_hooks.parts.gradients import GradsPart, refuse_unreduced
from mvc_hooks.parts.make import make_parts
from mvc_hooks.parts.names import ParameterNames, clean_name
from mvc_hooks.parts.restoring import (
    InexactRestoreError,
    MisfitError,
    capture_parts,
    from_commit,
    from_image,
    restore_parts,
)
from mvc_hooks.parts.tree import find_changes, locate, read_bits, to_local
from mvc_hooks.snapshot.ring import Ring, SnapshotRing
from support.bounds import rest_nightly
from support.sharded import become_rank, commit_frozen, freeze, leave, shard_one

WORLD = 4


def list_named(model):
    return [(clean_name(name), one) for name, one in model.named_parameters()]


def make_model():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(10, 6), nn.Linear(6, 7), nn.LayerNorm(7), nn.Linear(7, 6), nn.Linear(6, 10, bias=False)
    )  # fmt: skip
    model[4].weight = model[0].weight
    model[1].bias.requires_grad_(False)
    model.register_buffer("seen", torch.zeros(3))
    model[2].register_buffer("cache", torch.ones(2), persistent=False)
    return model


def fsdp(model, mesh):
    model[3] = checkpoint_wrapper(model[3])
    for one in (model[1], model[3]):
        fully_shard(one, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def hybrid(model, mesh):
    return fully_shard(model, mesh=mesh["rep", "dp"])


def tensor_parallel(model, mesh):
    plan = {"1": ColwiseParallel(), "3": RowwiseParallel()}
    return parallelize_module(model, mesh["tp"], plan)


def both(model, mesh):
    return fsdp(tensor_parallel(model, mesh), mesh)


WAYS = {
    "fsdp": (fsdp, (1, 4, 1)),
    "hybrid": (hybrid, (2, 2, 1)),
    "tensor parallel": (tensor_parallel, (1, 1, 4)),
    "both": (both, (1, 2, 2)),
}
OPTIMIZERS = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
    "adamw of one kernel": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
}


class Run:
    """A model, its optimizer and an average of it that its owner keeps."""

    def __init__(self, optimizer, place=None):
        self.model = make_model()
        if place is not None:
            self.model = place(self.model)
        params = [one for one in self.model.parameters() if one.requires_grad]
        self.optimizer = OPTIMIZERS[optimizer](params)
        self.average = Average(self.model)
        objects = {"model": self.model, "optimizer": self.optimizer, "average": self.average}
        self.grads = GradsPart([self.optimizer], ParameterNames(objects))
        self.parts = {**make_parts(objects), "gradients": self.grads}

    def backward(self):
        self.model(torch.arange(8)).square().mean().backward()

    def train(self):
        self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.average.update(self.model)
        self.model.seen += 1


class Average:
    def __init__(self, model):
        self.values = {name: one.detach().clone() for name, one in list_named(model)}

    def update(self, model):
        for name, one in list_named(model):
            self.values[name].lerp_(one.detach(), 0.5)

    def state_dict(self):
        return {"values": dict(self.values)}

    def load_state_dict(self, state):
        self.values = dict(state["values"])


@pytest.fixture(autouse=True)
def ranks():
    yield
    leave()


@pytest.fixture(scope="module", params=rest_nightly(OPTIMIZERS))
def committed(request, tmp_path_factory):
    """Return a run of one process that was committed, with gradients that accumulate."""
    run = Run(request.param)
    for _ in range(3):
        run.train()
    run.backward()
    repo = Repo.init(tmp_path_factory.mktemp("one"))
    repo.set_config("mvc.chunkbytes", "1024")
    repo.commit_state(capture_parts(run.parts), message="x")
    state = {
        "model": {name: one.clone() for name, one in run.model.state_dict().items()},
        "optimizer": run.optimizer.state_dict()["state"],
        "average": run.average.values,
        "gradients": {name: one.grad for name, one in list_named(run.model)},
    }
    return request.param, repo, state


@pytest.fixture
def stored(committed):
    optimizer, repo, state = committed
    return optimizer, from_commit(repo, repo.resolve("HEAD")), state


def check_part(mine, whole):
    """Check that a tensor here is its part of a whole one."""
    if not isinstance(mine, DTensor):
        assert mine.equal(whole)
        return 0
    (chunk,) = mine.__create_chunk_list__()
    cut = tuple(slice(at, at + size) for at, size in zip(chunk.offsets, chunk.sizes, strict=True))
    assert mine.shape == whole.shape
    assert mine.to_local().equal(whole[cut])
    return 1


def check_run(run, state):
    count = sum(
        check_part(one, state["model"][name]) for name, one in run.model.state_dict().items()
    )
    for index, entry in run.optimizer.state_dict()["state"].items():
        assert entry.keys() == state["optimizer"][index].keys()
        param = run.optimizer.param_groups[0]["params"][index]
        for name, one in entry.items():
            check_part(one, state["optimizer"][index][name])
            assert isinstance(one, DTensor) == (isinstance(param, DTensor) and name != "step")
            assert getattr(one, "placements", None) in (None, getattr(param, "placements", None))
    for name, one in list_named(run.model):
        check_part(run.average.values[name], state["average"][name])
        if one.grad is not None:
            check_part(one.grad, state["gradients"][name])
        assert (one.grad is None) == (state["gradients"][name] is None)
    return count


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rank", [0, 3])
def test_a_commit_of_one_process_on_every_mesh(stored, way, rank):
    optimizer, source, state = stored
    place, sizes = WAYS[way]
    mesh = become_rank(rank, sizes)
    run = Run(optimizer, lambda model: place(model, mesh))
    places = [locate(one) for one in run.model.parameters()]
    restore_parts(source, run.parts)  # of the optimizer there is no state yet
    assert check_run(run, state) > 0
    assert [locate(one) for one in run.model.parameters()] == places
    assert run.model[4].weight is run.model[0].weight
    run.model.seen.fill_(9)
    for one in [*run.model.parameters(), *run.average.values.values()]:
        to_local(one).detach().fill_(7)
    held = {k: locate(v) for k, v in run.optimizer.state[run.model[1].weight].items()}
    for entry in run.optimizer.state.values():
        for one in entry.values():
            to_local(one).fill_(7)
    restore_parts(source, run.parts)  # now there is
    check_run(run, state)
    assert held == {k: locate(v) for k, v in run.optimizer.state[run.model[1].weight].items()}


def test_nothing_whole_is_made_on_a_rank(stored, monkeypatch):
    optimizer, source, _ = stored
    place, sizes = WAYS["fsdp"]
    mesh = become_rank(1, sizes)
    run = Run(optimizer, lambda model: place(model, mesh))
    made = []
    original = torch.empty

    def watch(*args, **options):
        made.append(original(*args, **options))
        return made[-1]

    monkeypatch.setattr(torch, "empty", watch)
    restore_parts(source, run.parts)
    # Memory for what is whole here: buffers, generators, step counters.
    shapes = {tuple(one.shape) for one in run.model.parameters()}
    assert not {tuple(one.shape) for one in made if one.numel()} & shapes
    assert max(one.nbytes for one in made) <= 6000  # the state of a generator has 5056


def list_blobs(repo):
    tree = repo._context.history.read_tree(repo.resolve("HEAD"))
    names = ("model", "optimizer", "average", "gradients", "rng")
    return {name: tree[f"{name}.safetensors"].blob for name in names}


@pytest.mark.parametrize("way", WAYS)
def test_all_ranks_together_commit_what_one_process_does(committed, stored, way, tmp_path):
    optimizer, source, state = stored
    place, sizes = WAYS[way]
    frozen = []
    for rank in range(WORLD):
        mesh = become_rank(rank, sizes)
        run = Run(optimizer, lambda model, mesh=mesh: place(model, mesh))
        restore_parts(source, run.parts)
        frozen.append(freeze(capture_parts(run.parts), rank, WORLD))
    leave()
    repo = Repo.init(tmp_path)
    repo.set_config("mvc.chunkbytes", "1024")
    repos = [repo, *(Repo.open(tmp_path) for _ in range(WORLD - 1))]
    commit_frozen(repos, frozen, message="x")
    assert list_blobs(repo) == list_blobs(committed[1])
    run = Run(optimizer)
    restore_parts(from_commit(repo, "HEAD"), run.parts)
    check_run(run, state)


@pytest.mark.parametrize("way", WAYS)
def test_a_snapshot_of_a_rank_brings_its_part_back(stored, way):
    optimizer, source, state = stored
    place, sizes = WAYS[way]
    mesh = become_rank(3, sizes)
    ring = SnapshotRing(Ring(every=1, keep=2))
    run = Run(optimizer, lambda model: place(model, mesh))
    restore_parts(source, run.parts)
    for step in (1, 2):  # the second follows the plan of the first
        ring.take(capture_parts(run.parts), step, None)
    other = Run(optimizer, lambda model: place(model, mesh))
    for again in (other, run):
        for one in (*again.model.parameters(), *again.average.values.values()):
            to_local(one).detach().fill_(7)
        restore_parts(from_image(ring.find(2).files()), again.parts)
        check_run(again, state)
    ring.close()


@pytest.mark.parametrize("rank", range(WORLD))
def test_ties_and_structure_of_ranks_that_hold_nothing(rank):
    mesh = become_rank(rank, (1, 4, 1))
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2))
    model[1].weight = model[0].weight
    parts = make_parts({"model": fully_shard(model, mesh=mesh["dp"])})
    assert capture_parts(parts)["details"]["model"]["ties"] == [["0.weight", "1.weight"]]
    assert locate(model[0].weight) != locate(model[2].weight)


def test_what_does_not_fit_is_refused_and_left(stored):
    optimizer, source, _ = stored
    mesh = become_rank(0, (1, 4, 1))
    run = Run(optimizer, lambda model: fsdp(model, mesh))
    run.model[3]._checkpoint_wrapped_module.weight = nn.Parameter(
        shard_one(torch.ones(6, 8), mesh["dp"], [Shard(0)])
    )
    before = [to_local(one).detach().clone() for one in run.model.parameters()]
    parts = {name: run.parts[name] for name in ("model", "rng")}
    with pytest.raises(MisfitError, match=r"model.3.weight is float32 \[6, 8\] here"):
        restore_parts(source, parts, allow=["optimizer", "average", "gradients"])
    assert all(
        to_local(one).equal(old) for one, old in zip(run.model.parameters(), before, strict=True)
    )


def test_a_loader_that_changes_bits_is_found_on_the_rank_that_has_them(stored):
    optimizer, source, _ = stored
    mesh = become_rank(2, (1, 4, 1))
    run = Run(optimizer, lambda model: fsdp(model, mesh))
    take = run.average.load_state_dict

    def spoil(state):
        take(state)
        to_local(run.average.values["1.weight"]).view(-1)[0] += 1

    run.average.load_state_dict = spoil
    with pytest.raises(InexactRestoreError, match=r"'values\.1\.weight'"):
        restore_parts(source, run.parts)


class TestGradients:
    @pytest.fixture
    def run(self, group):
        mesh = init_device_mesh("cpu", (1, 1, 1), mesh_dim_names=("rep", "dp", "tp"))
        return Run("adamw", lambda model: fsdp(model, mesh))

    def test_summands_of_each_rank_come_back_as_they_are(self):
        def make(rank):
            mesh = become_rank(rank, (1, 1, 2))
            plan = {"0": SequenceParallel(), "1": ColwiseParallel(input_layouts=Shard(1))}
            model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4))
            model = parallelize_module(model, mesh["tp"], plan)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            return mesh["tp"], model, GradsPart([optimizer], ParameterNames({"model": model}))

        mesh, model, grads = make(1)
        model(DTensor.from_local(torch.randn(2, 3, 4), mesh, [Shard(1)])).sum().backward()
        assert model[0].weight.grad.placements[0].is_partial()
        wanted = {name: one.grad for name, one in list_named(model)}
        state = grads.capture()
        assert state["sums"].keys() == {"model.0.weight", "model.0.bias"}
        assert not any(isinstance(one["here"], DTensor) for one in state["sums"].values())
        _, model, grads = make(1)
        assert list(grads.compare({"accumulated": {}}, state, ())) == []
        grads.restore(state)
        for name, one in list_named(model):
            assert one.grad.placements == wanted[name].placements
            assert read_bits(one.grad) == read_bits(wanted[name])  # messages bring anything here
        assert list(find_changes(grads.capture(), state)) == []
        assert "model.0.weight" not in grads.targets(grads.capture(), state)["accumulated"]

    def test_those_that_are_not_averaged_yet_are_refused(self, run):
        run.train()
        run.model.set_requires_gradient_sync(False)
        run.backward()
        state = run.grads.capture()
        assert state["unreduced"]
        with pytest.raises(UnsupportedError, match="not averaged over the ranks yet"):
            refuse_unreduced(state)
        run.grads.restore(state)
        assert "unreduced" not in run.grads.capture()
        run.model.set_requires_gradient_sync(True)
        run.train()
        refuse_unreduced(run.grads.capture())

    def test_capturing_an_unsharded_model_leaves_its_training_as_it_is(self, run):
        run.model.set_reshard_after_backward(False)
        other = Run("adamw")
        for one in (run, other):
            for _ in range(3):
                one.backward()
                names = list(capture_parts(one.parts)["model"])
                one.optimizer.step()
                one.optimizer.zero_grad()
                one.model.eval()(torch.arange(3))
                one.model.train()
        assert names == list(other.model.state_dict())
        for name, one in run.model.state_dict().items():
            assert to_local(one).equal(other.model.state_dict()[name]), name

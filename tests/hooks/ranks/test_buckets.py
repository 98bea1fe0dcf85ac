"""Buckets of DistributedDataParallel: told to a commit, and made again; that sums come out so is for ``exact``."""

import random

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mvc import FormatError
from mvc_hooks.parts.make import make_parts
from mvc_hooks.ranks.buckets import Buckets
from support.bounds import rest_nightly

pytestmark = pytest.mark.usefixtures("group")
TYPES = (torch.float32, torch.float64, torch.bfloat16)
SMALL = 0.00004  # MiB of a bucket


class Net(nn.Module):
    """Uses its layers in another order than it has them, and two types of numbers."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 1)
        self.first = nn.Linear(4, 6)
        self.middle = nn.Linear(6, 6).double()
        self.fixed = nn.Linear(2, 2).requires_grad_(requires_grad=False)

    def forward(self, inputs):
        return self.last(self.middle(self.first(inputs).double()).float())


def make(model=None, **options):
    model = Net() if model is None else model
    ddp = DistributedDataParallel(model, **{"bucket_cap_mb": SMALL, **options})
    return ddp, Buckets(make_parts({"model": ddp}))


def train(ddp):
    ddp(torch.ones(3, 4)).sum().backward()
    ddp.zero_grad()


def learn(**options):
    ddp, buckets = make(**options)
    train(ddp)
    (order,) = buckets.describe()
    return order


def test_the_plan_says_settings_and_sizes_and_does_not_change_by_training():
    ddp, buckets = make(gradient_as_bucket_view=True)
    before = buckets.plan()
    train(ddp)
    assert buckets.plan() == before
    plan = before["0"]
    total = sum(one.numel() * one.element_size() for one in Net().parameters() if one.requires_grad)
    assert plan["bucket_cap_mb"] == pytest.approx(SMALL, abs=1e-5)
    assert f" of {total} bytes: " in plan["buckets"]
    assert (plan["gradient_as_bucket_view"], plan["static_graph"]) == (True, False)
    _, other = make(bucket_cap_mb=25, static_graph=True)
    assert other.plan()["0"]["bucket_cap_mb"] == 25
    assert other.plan()["0"]["static_graph"] is True


def test_the_order_of_the_first_backward_pass_is_told():
    ddp, buckets = make()
    assert buckets.describe() == []
    train(ddp)
    (order,) = buckets.describe()
    places = [name.removeprefix("model.") for bucket in order for name in bucket]
    assert sorted(places) == [
        *("first.bias", "first.weight", "last.bias", "last.weight"),
        *("middle.bias", "middle.weight"),
    ]
    assert places.index("last.weight") < places.index("first.weight")
    assert len(order) > 2
    train(ddp)
    assert ddp._get_ddp_logging_data()["has_rebuilt_buckets"] == 1
    assert buckets.describe() == [order]


@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": 25}, {"gradient_as_bucket_view": True}])
def test_a_new_process_makes_the_same_buckets_and_sums_the_same(options):
    order = learn(**options)
    ddp, buckets = make(**options)
    ddp.module.last.weight.grad = torch.ones(1, 6)
    assert buckets.restore([order]) == []
    assert torch.equal(ddp.module.last.weight.grad, torch.ones(1, 6))
    assert ddp.module.first.weight.grad is None
    assert buckets.describe() == [order]
    again = Buckets(make_parts({"model": ddp}))
    assert again.restore([order]) == []
    assert again.describe() == [order]
    ddp.zero_grad()
    ddp(torch.ones(3, 4)).sum().backward()
    alone = Net()
    alone.load_state_dict(ddp.module.state_dict())
    alone(torch.ones(3, 4)).sum().backward()
    for mine, its in zip(ddp.module.parameters(), alone.parameters(), strict=True):
        assert (mine.grad is its.grad is None) or torch.equal(mine.grad, its.grad)


def test_sparse_gradients_are_summed_in_the_same_buckets():
    def make_sparse():
        return make(nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 1)))

    def train_sparse(ddp):
        ddp(torch.tensor([1, 3])).sum().backward()

    ddp, buckets = make_sparse()
    train_sparse(ddp)
    (order,) = buckets.describe()
    ddp, buckets = make_sparse()
    assert buckets.restore([order]) == []
    assert buckets.describe() == [order]
    assert all(param.grad is None for param in ddp.parameters())
    train_sparse(ddp)
    assert ddp.module[0].weight.grad.coalesce().indices().tolist() == [[1, 3]]


def test_a_model_is_known_without_its_wrapper():
    order = learn()
    model = Net()
    ddp, _ = make(model)
    buckets = Buckets(make_parts({"model": model}))
    assert buckets.restore([order]) == []
    assert buckets.describe() == [order]
    assert ddp._get_ddp_logging_data()["has_rebuilt_buckets"] == 1


def test_a_wrapper_that_comes_after_the_first_commit_is_found_at_the_second():
    model = Net()
    buckets = Buckets(make_parts({"model": model}))
    assert buckets.describe() == []
    ddp, _ = make(model)
    train(ddp)
    (order,) = buckets.describe()
    assert sum(map(len, order)) == 6


def test_a_wrapper_that_was_replaced_is_left_alone():
    order = learn()
    model = Net()
    first, _ = make(model)
    first.itself = [first]  # only the collector finds it
    del first
    ddp, _ = make(model)
    buckets = Buckets(make_parts({"model": model}))
    assert buckets.restore([order]) == []
    assert [one for one, _ in buckets._find()] == [ddp]
    assert buckets.describe() == [order]


def test_one_that_has_trained_keeps_its_buckets():
    order = learn()
    ddp, buckets = make()
    train(ddp)
    assert buckets.restore([order[::-1]]) == []
    assert buckets.describe() == [order]


def test_one_that_looks_for_unused_parameters_has_the_same_buckets_all_along():
    ddp, buckets = make(find_unused_parameters=True)
    train(ddp)
    train(ddp)
    assert buckets.describe() == []
    assert buckets.restore([]) == []


class Mixed(nn.Module):
    """Layers of random sizes and types of numbers."""

    def __init__(self, seed):
        super().__init__()
        draw = random.Random(seed)
        width, self.layers = 4, nn.ModuleList()
        for _ in range(draw.randint(2, 9)):
            size, dtype = draw.randint(1, 9), draw.choice(TYPES)
            self.layers.append(nn.Linear(width, size, bias=draw.random() < 0.5, dtype=dtype))
            width = size
        self.order = list(self.layers)
        draw.shuffle(self.layers)

    def forward(self, inputs):
        for layer in self.order:
            inputs = layer(inputs.to(layer.weight.dtype))
        return inputs


@pytest.mark.parametrize("seed", rest_nightly(range(24), kept=4))
def test_buckets_of_any_mixture_of_types_are_made_again(seed):
    ddp, buckets = make(Mixed(seed))
    train(ddp)
    train(ddp)
    order = buckets.describe()
    _, buckets = make(Mixed(seed))
    assert buckets.restore(order) == []
    assert buckets.describe() == order


@pytest.mark.parametrize("seed", range(4))
def test_a_ddp_of_larger_buckets_is_done_with_all_parameters(seed):
    ddp, buckets = make(Mixed(seed))
    train(ddp)
    train(ddp)
    order = buckets.describe()
    ddp, buckets = make(Mixed(seed), bucket_cap_mb=25)
    buckets.restore(order)
    train(ddp)
    train(ddp)


def test_what_cannot_be_made_again_is_said():
    order = learn()
    _, buckets = make(static_graph=True)
    (doubt,) = buckets.restore([order])
    assert "pass warm_up=" in doubt
    ddp, buckets = make()
    ddp.reducer = None  # as if torch had another one
    (doubt,) = buckets.restore([order])
    assert "pass warm_up=" in doubt
    assert buckets.describe() == []
    buckets = Buckets(make_parts({"model": Net()}))
    (doubt,) = buckets.restore([order])
    assert "make it before the checkpointer" in doubt


def test_buckets_of_another_model_count_for_nothing():
    order = learn()
    ddp, buckets = make(nn.Sequential(nn.Linear(4, 1)))
    assert len(buckets.restore([order])) == 1
    train(ddp)
    (mine,) = buckets.describe()
    assert sorted(name for one in mine for name in one) == ["model.0.bias", "model.0.weight"]


@pytest.mark.parametrize("said", [None, 7, [7], [[7]], [[[]]], [[[7]]], [[["a"], None]], {"a": 1}])
def test_what_says_something_else_is_refused(said):
    _, buckets = make()
    with pytest.raises(FormatError, match="which gradients were summed together"):
        buckets.restore(said)

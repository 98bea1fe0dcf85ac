"""State of optimizers that does not lie as its parameter: written down, and so again where that is possible."""

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

from mvc import FormatError
from mvc.training import ArrayOutline
from mvc_hooks.parts.optimizer import OptimizerPart
from mvc_hooks.ranks.own import describe_placed, expect_placed
from support.sharded import as_rank, shard_one

PATH = ("optimizers", 1)


def make_part(mesh, placements=()):
    params = [
        torch.nn.Parameter(shard_one(torch.zeros(6, 4), mesh, placements or [Shard(0)])),
        torch.nn.Parameter(torch.zeros(3)),
    ]
    return OptimizerPart("optimizer", torch.optim.SGD(params, lr=0.1, momentum=0.9)), params


def train(part, params, mesh, placements):
    part.optimizer.state[params[0]] = {
        "momentum_buffer": shard_one(torch.ones(6, 4), mesh, placements),
        "ready": torch.tensor(1.0),
    }
    part.optimizer.state[params[1]] = {"momentum_buffer": torch.ones(3)}


def foresee(part):
    """Return the placements of what a restore would fill for the state of the first parameter."""
    stored = {"state": {0: {"momentum_buffer": ArrayOutline("tensor", "float32", (6, 4))}}}
    captured = part.capture()
    lent = part.targets(captured, {**captured, **stored})
    return lent["state"][0]["momentum_buffer"].placements


def test_state_lies_as_it_did():
    with as_rank(1, (2,), ("tp",)) as mesh:
        part, params = make_part(mesh)
        train(part, params, mesh, [Replicate()])
        (told,) = describe_placed({PATH: part})
        assert told["at"] == list(PATH)
        assert told["state"] == [[0, "momentum_buffer", ["copied"]]]
        fresh, _ = make_part(mesh)
        assert foresee(fresh) == (Shard(0),)
        expect_placed([told], {PATH: fresh})
        assert foresee(fresh) == (Replicate(),)
        expect_placed(None, {PATH: fresh})
        assert foresee(fresh) == (Shard(0),)


def test_nested_state_lies_as_its_parameter():
    with as_rank(1, (2,), ("tp",)) as mesh:
        part, params = make_part(mesh)
        whole = torch.arange(24.0).reshape(6, 4)
        outlined = ArrayOutline("tensor", "float32", (6, 4))
        group = part.capture()["param_groups"]
        entry = {"means": [{"fast": outlined}, 3, outlined], "bias": [1]}
        lent = part.targets(part.capture(), {"state": {0: entry}, "param_groups": group})
        (fast, none, slow) = lent["state"][0]["means"]
        assert (fast["fast"].placements, none, slow.placements) == ((Shard(0),), None, (Shard(0),))
        state = {0: {"means": [{"fast": whole}, 3, whole + 1], "step": torch.tensor(2.0)}}
        part.restore({"state": state, "param_groups": group})
        (fast, count, slow) = part.optimizer.state[params[0]]["means"]
        assert count == 3
        assert fast["fast"].to_local().equal(whole[3:])
        assert slow.to_local().equal(whole[3:] + 1)


def test_state_that_lies_as_its_parameter_is_not_told():
    with as_rank(0, (2,), ("tp",)) as mesh:
        part, params = make_part(mesh)
        train(part, params, mesh, [Shard(0)])
        assert describe_placed({PATH: part}) == []


@pytest.mark.parametrize(
    ("shape", "names", "placements"),
    [((4,), ("tp",), [Shard(0)]), ((2,), ("dp",), [Shard(0)]), ((2,), ("tp",), [Shard(1)])],
)
def test_parameters_that_lie_otherwise_have_state_as_theirs(shape, names, placements):
    with as_rank(0, (2,), ("tp",)) as mesh:
        part, params = make_part(mesh)
        train(part, params, mesh, [Replicate()])
        told = describe_placed({PATH: part})
    with as_rank(0, shape, names) as mesh:
        fresh, _ = make_part(mesh, placements)
        expect_placed(told, {PATH: fresh})
        assert foresee(fresh) == tuple(placements)


@pytest.mark.parametrize("said", [7, [7], [{}], [{"at": 3}], [{"at": [["a"]]}]])
def test_what_says_something_else_is_refused(said):
    with as_rank(0, (2,), ("tp",)) as mesh, pytest.raises(FormatError, match="optimizer state lay"):
        expect_placed(said, {PATH: make_part(mesh)[0]})


@pytest.mark.parametrize(
    "state",
    [
        7,
        [7],
        [[0, "x", 7]],
        [[[], "x", []]],
        [[9, "x", []]],
        [[0, "x", ["sum"]]],
        [[0, "x", [2]]],
        [[0, "x", [0, 0]]],
    ],
)
def test_state_that_says_something_else_is_refused(state):
    with as_rank(0, (2,), ("tp",)) as mesh:
        part, params = make_part(mesh)
        train(part, params, mesh, [Replicate()])
        (told,) = describe_placed({PATH: part})
        with pytest.raises(FormatError, match="optimizer state lay"):
            expect_placed([{**told, "state": state}], {PATH: part})

"""Walks over nested values: what is paired, mapped and compared, and that nothing is changed."""

from __future__ import annotations

import copy
import random
from collections import Counter, OrderedDict, defaultdict, deque

import numpy as np
import pytest
import torch

from mvc.training import ArrayOutline
from mvc_hooks.parts.reach import find_reachable
from mvc_hooks.parts.tree import (
    ABSENT,
    edit_at,
    find_at,
    find_changes,
    map_tensors,
    outline,
    pair_leaves,
    read_bits,
)


def make_state():
    made = OrderedDict(weight=torch.arange(4.0), rows=deque([torch.zeros(2), 1], maxlen=3))
    made._metadata = {"": {"version": 2}}
    lists = defaultdict(list, a=[np.arange(2), (torch.ones(1), None)])
    return {"model": made, "lists": lists, "counts": Counter("aab")}


def test_a_look_at_what_is_missing_makes_nothing():
    state = make_state()
    pairs = {path: sides for path, *sides in pair_leaves(state, {"lists": {"b": 1}}, ())}
    assert pairs["lists", "b"] == [ABSENT, 1]
    assert find_at(state, ("counts", "z")) is ABSENT
    assert list(state["lists"]) == ["a"]
    assert list(state["counts"]) == ["a", "b"]


def test_a_copy_has_the_same_types_and_no_changes():
    state = make_state()
    mapped = map_tensors(state, torch.clone)
    assert list(find_changes(mapped, state)) == []
    assert type(mapped["model"]) is OrderedDict
    assert mapped["model"]._metadata == state["model"]._metadata
    assert mapped["model"]["rows"].maxlen == 3
    assert mapped["model"]["weight"] is not state["model"]["weight"]
    mapped["model"]["rows"][0][1] = 5
    assert [path for path, _, _ in find_changes(mapped, state)] == [("model", "rows", 0)]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (0.0, -0.0),
        (1, True),
        ([1], (1,)),
        (torch.zeros(2), torch.zeros(2).half()),
        (torch.zeros(2), torch.zeros(1, 2)),
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (np.zeros(2), np.zeros((2, 1))),
        (torch.eye(2).to_sparse(), torch.eye(2)),
        (torch.eye(2).to_sparse(), 2 * torch.eye(2).to_sparse()),
    ],
)
def test_bits_tell_values_apart(left, right):
    assert list(find_changes({"a": left}, {"a": right}))
    assert list(find_changes({"a": left}, {"a": copy.deepcopy(left)})) == []


def test_bits_of_nan_and_of_views():
    rows = torch.arange(6.0).reshape(2, 3)
    assert read_bits(rows.T) == read_bits(rows.T.contiguous())
    nan = torch.tensor([float("nan")])
    assert read_bits(nan) == read_bits(nan.clone())


def test_an_outline_of_every_array():
    found = outline(make_state())
    assert found["model"]["weight"] == ArrayOutline("tensor", "float32", (4,))
    assert found["lists"]["a"][0] == ArrayOutline("array", "<i8", (2,))
    assert ArrayOutline.of(np.zeros(1, np.longlong)).dtype == "longlong"
    assert ArrayOutline.of(torch.eye(2).to_sparse()).kind == "sparse"


def test_an_edit_leaves_the_original_alone():
    state = make_state()
    edited = edit_at(state, ("lists", "a", 1), "new")
    assert edited["lists"]["a"][1] == "new"
    assert state["lists"]["a"][1] != "new"
    assert find_at(edit_at(state, ("model", "weight"), ABSENT), ("model", "weight")) is ABSENT


# What an object reaches.


def test_a_key_that_is_a_tensor_is_not_written_out(monkeypatch):
    """The state of an optimizer has its parameters for keys, whose text would be all their numbers."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda *_, **__: pytest.fail("written out"))
    found = find_reachable(optimizer, torch.Tensor)
    moments = {path for path in found if path.startswith("state.")}
    assert moments == {
        f"state.{number}.{name}" for number in (0, 1) for name in ("step", "exp_avg", "exp_avg_sq")
    }


def test_the_nearest_path_names_an_object_and_what_is_left_out_is_not_looked_into():
    one, other = random.Random(1), random.Random(2)
    value = {"far": {"inner": one}, "near": one, "apart": [other]}
    assert find_reachable(value, random.Random) == {"near": one, "apart.0": other}
    assert find_reachable(value, random.Random, without=value["apart"]) == {"near": one}

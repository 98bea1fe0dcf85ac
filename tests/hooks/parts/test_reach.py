"""What an object reaches, and by which paths."""

import random

import pytest
import torch

from mvc_hooks.parts.reach import find_reachable


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

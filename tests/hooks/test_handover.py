"""A run that was committed, thrown away and restored trains on to the same bits."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from mvc import NotFoundError, Repo, UsageError
from mvc_hooks import capture, restore

pytestmark = pytest.mark.torch


def _parts():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 6], gamma=0.5)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def _train(parts, steps):
    for _ in range(steps):
        batch = torch.rand(12, 8) * random.random() + float(np.random.rand())
        loss = parts["model"](batch).square().mean()
        parts["optimizer"].zero_grad()
        loss.backward()
        parts["optimizer"].step()
        parts["scheduler"].step()


def _bits(parts):
    state = capture(**parts)
    return {name: value.clone() for name, value in state["model"].items()}


def test_resumed_run_has_the_same_bits(tmp_path):
    repo = Repo.init(tmp_path)
    random.seed(1)
    np.random.seed(2)
    parts = _parts()
    _train(parts, 4)
    repo.commit_state(capture(**parts, step=4), message="four", step=4)
    _train(parts, 5)
    expected = _bits(parts)

    fresh = _parts()
    _train(fresh, 1)
    values = restore(repo.load_state("main@4"), **fresh, step=None)
    assert values == {"step": 4}
    _train(fresh, 5)
    found = _bits(fresh)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_a_missing_part_is_an_error_before_anything_is_touched():
    parts = _parts()
    state = capture(model=parts["model"])
    before = parts["model"][0].weight.clone()
    with pytest.raises(NotFoundError, match="optimizer"):
        restore(state, **{**_parts(), "model": parts["model"]})
    assert torch.equal(parts["model"][0].weight, before)


def test_an_extra_part_is_an_error():
    parts = _parts()
    with pytest.raises(UsageError, match="scheduler"):
        restore(capture(**parts), model=parts["model"], optimizer=parts["optimizer"])


def test_rng_is_a_reserved_name():
    with pytest.raises(UsageError, match="rng"):
        capture(rng=1)

"""A state from a commit, an image or memory: the same structure, the same bits, no shared memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mvc import Repo
from mvc.training import ArrayOutline
from mvc_hooks.parts.restoring import from_commit, from_image, from_values
from support.images import make_image


def make_state():
    return {"model": {"w": torch.arange(6.0), "n": np.arange(3)}, "step": 7}


@pytest.fixture(params=["commit", "image", "values"])
def source(request, tmp_path):
    if request.param == "values":
        return from_values(make_state())
    if request.param == "image":
        return from_image(make_image(make_state()))
    repo = Repo.init(tmp_path)
    return from_commit(repo, repo.commit_state(make_state(), message="m").commit)


def test_its_structure(source):
    outline = source.outline()
    assert isinstance(outline["model"]["w"], ArrayOutline)
    assert outline["step"] == 7


def test_live_tensors_are_filled_in_place(source):
    live = torch.zeros(6)
    place = live.data_ptr()
    loaded = source.load({"model": {"w": live}})
    assert loaded["model"]["w"] is live
    assert live.data_ptr() == place
    assert live.tolist() == list(range(6))
    assert loaded["step"] == 7
    assert loaded["model"]["n"].tolist() == [0, 1, 2]


def test_every_difference_is_told(source):
    assert source.check(make_state()) == ()
    other = make_state()
    other["model"]["w"][5] = -1
    (line,) = source.check(other)
    assert "w" in line


def test_values_stay_the_callers():
    values = make_state()
    loaded = from_values(values).load({})
    loaded["model"]["w"].zero_()
    loaded["model"]["n"][:] = 9
    assert from_values(values).check(make_state()) == ()

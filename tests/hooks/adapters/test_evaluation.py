"""Loaders that a library iterates beside training."""

import pytest
from torch.utils.data import DataLoader

from mvc_hooks.adapters.feed import EvaluationLoaders

pytestmark = pytest.mark.torch


def _make_loader():
    return DataLoader(range(22), 4, num_workers=2, persistent_workers=True)


def test_of_loaders_that_validate_those_that_are_gone_leave_no_state():
    loaders = EvaluationLoaders()
    live = _make_loader()
    for _ in range(3):
        live = _make_loader()
        loaders.watch(live)
    next(iter(live))
    (state,) = states = loaders.capture()
    new = EvaluationLoaders()
    new.restore(states)
    new.watch(_make_loader())  # the place of one that was made again since
    restored = [_make_loader()]
    new.watch(restored[0])
    assert new.capture() == []
    new.restore(states)
    assert new.capture() == [state]

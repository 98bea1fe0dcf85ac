"""A loader that nobody passed, and everybody draws from."""

import warnings

import pytest
import torch
from torch.utils.data import DataLoader

from mvc_hooks import Checkpointer

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_is_iterated_though_none_was_passed_is_warned_of(workers, tmp_path):
    loader = DataLoader(torch.arange(8.0), num_workers=workers)
    checkpointer = Checkpointer(tmp_path, model=torch.nn.Linear(1, 1))
    with checkpointer, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in loader:
            checkpointer.step()
    assert [one.filename for one in caught if "given none" in str(one.message)] == [__file__]


def test_a_loader_that_rests_or_validates_is_not(tmp_path):
    loader = DataLoader(torch.arange(8.0))
    held = iter(loader)
    next(held)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Checkpointer(tmp_path, model=torch.nn.Linear(1, 1)) as checkpointer:
            for _ in range(4):
                checkpointer.step()
                assert len(list(loader)) == 8
    assert len(list(held)) == 7

"""A loader that nobody passed, and everybody draws from."""

import pytest
import torch
from torch.utils.data import DataLoader

from mvc_hooks import Checkpointer
from mvc_hooks.run.doubts import STRAY_LOADER

pytestmark = pytest.mark.torch


def _count(caplog):
    return [one.getMessage() for one in caplog.records].count(STRAY_LOADER)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_is_iterated_though_none_was_passed_is_warned_of(workers, tmp_path, caplog):
    loader = DataLoader(torch.arange(8.0), num_workers=workers)
    with Checkpointer(tmp_path, model=torch.nn.Linear(1, 1)) as checkpointer:
        for _ in loader:
            checkpointer.step()
    assert _count(caplog) == 1


def test_a_loader_that_rests_or_validates_is_not(tmp_path, caplog):
    loader = DataLoader(torch.arange(8.0))
    held = iter(loader)
    next(held)
    with Checkpointer(tmp_path, model=torch.nn.Linear(1, 1)) as checkpointer:
        for _ in range(4):
            checkpointer.step()
            assert len(list(loader)) == 8
    assert len(list(held)) == 7
    assert _count(caplog) == 0

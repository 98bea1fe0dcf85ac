"""What a feed says of batches that its loader draws ahead of their use."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader

from mvc import UsageError
from mvc_data import ConsistentDataLoader
from mvc_hooks.adapters.feed import EvaluationLoaders, Feed, FeedPart

pytestmark = pytest.mark.torch


class Ahead:
    """Draws some batches at once, and those of the next time before they are used."""

    draws_ahead = True

    def __init__(self, loaders, times=1):
        self.loaders, self.times = loaders, times

    def __iter__(self):
        drawn = self._draw([iter(one) for one in self.loaders])
        batch = next(drawn, None)
        while batch:
            current, batch = batch, next(drawn, None)
            yield current

    def _draw(self, iterators):
        while True:
            batches = [next(one, None) for one in iterators for _ in range(self.times)]
            found = [one.tolist() for one in batches if one is not None]
            yield found
            if not found:
                return


class Dispatching(Ahead):
    """As Accelerate's: a batch for each rank, all drawn on one."""

    use_stateful_dataloader, split_batches, submesh_tp = False, False, None
    state = SimpleNamespace(num_processes=2)

    def __init__(self, loader):
        super().__init__([loader], 2)
        self.base_dataloader = loader


def make(samples, **options):
    return DataLoader(range(samples), 2, shuffle=True, **options)


@pytest.mark.parametrize(
    "loader",
    [Ahead([make(9), make(5, num_workers=1)]), Dispatching(make(14)), Dispatching(make(3))],
    ids=["several", "dispatched", "in one"],
)
def test_what_is_drawn_ahead_is_told_when_it_is_used(loader):
    torch.manual_seed(0)
    data, told = FeedPart("dataloader"), []
    data.on_drawn = lambda _path, indices, _is_dropped: told.append(indices)
    Feed(data, loader, data.next_batch, is_endless=True)
    for _ in range(12):
        assert data.next_batch() == told
        told.clear()


def test_a_computed_order_is_not_drawn_ahead():
    data = FeedPart("dataloader")
    with pytest.raises(UsageError, match="would be drawn ahead") as told:
        Feed(data, Ahead([ConsistentDataLoader(range(9), 2)]), data.next_batch, is_endless=True)
    assert "limit_train_batches" in told.value.hint


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

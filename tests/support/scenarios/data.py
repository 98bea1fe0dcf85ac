"""Randomness, values of the user, and data loaders."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from support.scenarios.basics import Windows, make_net, make_step, scenario, simple, windows
from support.training_runs import Run


@scenario("augmentation", beside="values")
def augmentation():
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    named = np.random.default_rng(int(torch.randint(1000, ())))
    other = random.Random(int(torch.randint(1000, ())))

    def augment(inputs):
        shift = random.gauss(0, 1) + np.random.randn() + named.normal() + other.random()
        return model(inputs + float(shift) + torch.randn_like(inputs))

    parts = {"model": model, "optimizer": optimizer, "named": named, "other": other}
    return Run(parts, make_step(augment, optimizer), windows)


@scenario("seen-history", beside="values")
def seen_history():
    """Values of the user's: a window of losses and a table that steer the training."""
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses, table = deque(maxlen=4), np.zeros(4)
    inner = make_step(model, optimizer)

    def step(batch, between):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (1 + sum(losses) + table.max())
        loss = inner(batch, between)
        losses.append(loss)
        np.add.at(table, batch[1].numpy(), 0.01)
        return loss

    parts = {"model": model, "optimizer": optimizer, "losses": losses, "table": table}
    return Run(parts, step, windows)


def _with_loader(make, *, iterates=False):
    def build():
        model = make_net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        loader = make()
        run = simple(model, optimizer, dataloader=loader)
        run.data, run.loader, run.iterates = None, loader, iterates
        return run

    return build


def _stateful(workers, **options):
    data = Windows(augment=True)
    return StatefulDataLoader(data, batch_size=7, shuffle=True, num_workers=workers, **options)


LOADERS = {
    "loader-plain": lambda: DataLoader(Windows(augment=True), batch_size=7, shuffle=True),
    "loader-generator": lambda: DataLoader(
        Windows(), batch_size=7, shuffle=True, drop_last=True,
        generator=torch.Generator().manual_seed(int(torch.randint(1000, ()))),
    ),
    "loader-weighted": lambda: DataLoader(
        Windows(), batch_size=9, sampler=torch.utils.data.WeightedRandomSampler(range(40), 30)
    ),
    "loader-workers": lambda: DataLoader(
        Windows(augment=True), batch_size=7, shuffle=True, num_workers=1
    ),
    "loader-persistent": lambda: DataLoader(
        Windows(augment=True), batch_size=7, shuffle=True, num_workers=1, persistent_workers=True
    ),
    "loader-distributed": lambda: DataLoader(
        Windows(),
        batch_size=7,
        sampler=torch.utils.data.DistributedSampler(Windows(), num_replicas=2, rank=1, seed=3),
    ),
    "stateful-0": lambda: _stateful(0),
    "stateful-2": lambda: _stateful(2),
    "stateful-persistent": lambda: _stateful(1, persistent_workers=True),
}  # fmt: skip
for _name, _make in LOADERS.items():
    scenario(_name)(_with_loader(_make))
scenario("stateful-0-own", rewinds=False)(_with_loader(lambda: _stateful(0), iterates=True))
scenario("stateful-2-own", rewinds=False)(_with_loader(lambda: _stateful(2), iterates=True))


class Stream:
    """A loader of the user's: an endless iterable with a state, which packs what is left over."""

    def __init__(self):
        self.index = 0
        self.left = []

    def __iter__(self):
        while True:
            self.left += [windows(self.index, size=4)]
            self.index += 1
            if len(self.left) == 2:
                inputs, targets = zip(*self.left, strict=True)
                self.left = self.left[1:] if self.index % 3 else []
                yield torch.cat(inputs), torch.cat(targets)

    def state_dict(self):
        return {"index": self.index, "left": list(self.left)}

    def load_state_dict(self, state_dict):
        self.index, self.left = state_dict["index"], list(state_dict["left"])


scenario("loader-of-the-user")(_with_loader(Stream))


class Pairs:
    """An iterable of the user's without a state: two loaders side by side, the second with its own generator."""

    def __init__(self):
        data = Windows(augment=True)
        generator = torch.Generator().manual_seed(int(torch.randint(1000, ())))
        self.one = DataLoader(data, batch_size=4, shuffle=True)
        self.other = DataLoader(data, batch_size=5, shuffle=True, generator=generator)

    def __iter__(self):
        for one, other in zip(self.one, self.other, strict=False):
            yield tuple(map(torch.cat, zip(one, other, strict=True)))


scenario("loader-of-two")(_with_loader(Pairs))

"""Randomness, values of the user, and data loaders."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from support.scenarios.basics import Windows, make_net, scenario, sgd, simple, windows


@scenario("augmentation", beside="values")
def augmentation():
    model = make_net()
    named = np.random.default_rng(int(torch.randint(1000, ())))
    other = random.Random(int(torch.randint(1000, ())))

    def augment(inputs):
        shift = random.gauss(0, 1) + np.random.randn() + named.normal() + other.random()
        return model(inputs + float(shift) + torch.randn_like(inputs))

    return simple(model, sgd(model), forward=augment, named=named, other=other)


@scenario("seen-history", beside="values")
def seen_history():
    """Values of the user's: a window of losses and a table that steer the training."""
    model = make_net()
    losses, table = deque(maxlen=4), np.zeros(4)
    run = simple(model, sgd(model), losses=losses, table=table)
    inner = run.step

    def step(batch, between):
        for group in run.parts["optimizer"].param_groups:
            group["lr"] = 0.1 / (1 + sum(losses) + table.max())
        losses.append(inner(batch, between))
        np.add.at(table, batch[1].numpy(), 0.01)
        return losses[-1]

    run.step = step
    return run


def _with_loader(make, *, iterates=False):
    def build():
        model = make_net()
        loader = make()
        run = simple(model, sgd(model, momentum=0.9), dataloader=loader)
        run.data, run.loader, run.iterates = None, loader, iterates
        return run

    return build


def _stateful(workers, **options):
    data = Windows(augment=True)
    return StatefulDataLoader(data, batch_size=7, shuffle=True, num_workers=workers, **options)


LOADERS = {
    "loader-plain": lambda: DataLoader(Windows(augment=True), batch_size=7, shuffle=True),
    "loader-persistent": lambda: DataLoader(
        Windows(augment=True), batch_size=7, shuffle=True, num_workers=1, persistent_workers=True
    ),
    "stateful-persistent": lambda: _stateful(1, persistent_workers=True),
}  # fmt: skip
for _name, _make in LOADERS.items():
    scenario(_name)(_with_loader(_make))
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

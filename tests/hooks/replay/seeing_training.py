"""Trainings whose weights do not depend on their data: only the ledger tells what they saw."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from mvc_data import ConsistentDataLoader
from mvc_hooks import Training

SAMPLES = 16


class Alike(Dataset):
    """Samples that are all the same."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.ones(2)


class Turned(Sampler):
    """Begins each pass so many samples further on, which no state has."""

    def __init__(self, shift):
        self.shift, self.passes = shift, 0

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        first, self.passes = self.passes * self.shift, self.passes + 1
        return iter([(first + at) % SAMPLES for at in range(SAMPLES)])


def make_training(loader):
    """Return a training that draws from a loader."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(run):
        loss = model(run.next_batch()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return Training({"model": model, "optimizer": optimizer, "dataloader": loader}, train_step)


def build(shift=0):
    return make_training(DataLoader(Alike(), 2, sampler=Turned(shift)))


def build_turned():
    return build(3)


def build_planned():
    return make_training(ConsistentDataLoader(Alike(), 2, seed=1))

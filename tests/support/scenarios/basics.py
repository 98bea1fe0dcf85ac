"""How a scenario is named, and the data, model and step that most of them share."""

from __future__ import annotations

import functools
import json.decoder
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import Dataset

from support.training_runs import Run

WIDTH = 8
BATCH = 6


@dataclass
class Scenario:
    """A training, or several that take their steps in turn.

    Attributes:
        rewinds: whether its data goes back with a rollback.
        builds: name → makes a run.
    """

    rewinds: bool = True
    builds: dict[str, Any] = field(default_factory=dict)

    def build(self):
        runs = {name: build() for name, build in self.builds.items()}
        return next(iter(runs.values())) if len(runs) == 1 else _join(runs)


SCENARIOS: dict[str, Scenario] = {}


def scenario(name, *, beside=None, rewinds=True, when=True):
    """Name a training; those beside one another share one checkpointer, which costs less."""

    def take(build):
        if when:
            SCENARIOS.setdefault(beside or name, Scenario(rewinds)).builds[name] = build
        return build

    return take


def _join(runs):
    """Return one run whose step takes a step of each."""

    def step(batch, between):
        losses = {}
        for name, run in runs.items():
            losses[name] = run.step(batch, _nothing if len(losses) + 1 < len(runs) else between)
        return sum(losses.values())

    parts = {name.replace("-", "_"): run.parts for name, run in runs.items()}
    also = {f"{name} besides": run.also for name, run in runs.items() if run.also}
    return Run(parts, step, windows, also=also)


def _nothing():
    return None


# Data: the bytes of Python's own sources.


@functools.cache
def read_text():
    data = Path(json.decoder.__file__).read_bytes()
    return torch.tensor(list(data), dtype=torch.uint8)


def windows(index, *, size=BATCH, width=WIDTH):
    """Return inputs (size, width) in 0..1 and the bytes that follow, of batch number ``index``."""
    text = read_text()
    starts = (torch.arange(size) + index * size) * 37 % (len(text) - width - 1)
    rows = torch.stack([text[start : start + width + 1] for start in starts.tolist()])
    return rows[:, :-1].float() / 128, (rows[:, -1] % 4).long()


class Windows(Dataset):
    """Batch elements of the text, changed by random augmentation where asked."""

    def __init__(self, count=40, augment=False):
        self.count = count
        self.augment = augment

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        inputs, targets = windows(index, size=1)
        if self.augment:
            inputs = inputs + random.random() + torch.rand(()) + float(np.random.rand())
        return inputs[0], targets[0]


# Steps.


def make_net(*, norm=True, dropout=0.2):
    layers = [nn.Linear(WIDTH, 12), nn.BatchNorm1d(12) if norm else nn.LayerNorm(12), nn.GELU()]
    return nn.Sequential(*layers, nn.Dropout(dropout), nn.Linear(12, 4))


def make_small_net(width=3):
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 2))


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), 0.1, **options)


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), 0.01, **options)


def loss_of(model, batch):
    inputs, targets = batch
    return functional.cross_entropy(model(inputs), targets)


def make_step(model, optimizers, *, schedulers=(), before=None, after=None):
    """Return one ordinary step, with what comes before and after it."""
    optimizers = optimizers if isinstance(optimizers, (list, tuple)) else [optimizers]

    def step(batch, between):
        if before is not None:
            before(batch)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        between()
        for optimizer in optimizers:
            optimizer.step()
        for scheduler in schedulers:
            watches = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
            scheduler.step(loss.item()) if watches else scheduler.step()
        if after is not None:
            after()
        return loss.item()

    return step


def simple(model, optimizer, *, forward=None, schedulers=(), before=None, after=None, **parts):
    """Return a run of ordinary steps; ``forward`` is called in place of the model."""
    step = make_step(forward or model, optimizer, schedulers=schedulers, before=before, after=after)
    return Run({"model": model, "optimizer": optimizer, **parts}, step, windows)

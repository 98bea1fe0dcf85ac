"""A small run with a checkpointer, and the same without one as its measure."""

from __future__ import annotations

import torch

from mvc_hooks import Checkpointer
from support.scenarios.basics import make_net, make_step, simple
from support.training_runs import fingerprint, seed_all


class Kept:
    """A small run with a checkpointer; without one it is the measure.

    Attributes:
        seen: (step, index of the batch, fingerprint) after every step, before it was judged.
    """

    def __init__(self, root=None, *, seed=0, build=None, **options):
        seed_all(seed)
        self.run = build() if build is not None else _build()
        self.seen = []
        self._options = {"every": 2, "detectors": None, **options}
        self.ckpt = None
        if root is not None:
            self.ckpt = Checkpointer(root, parts=self.run.parts, **self._options)

    @property
    def model(self):
        return self.run.parts["model"]

    @property
    def optimizer(self):
        return self.run.parts["optimizer"]

    def step(self, *, loss=None, between=lambda: None, **readings):
        """Take one step, and report a loss, or the true one."""
        index = len(self.seen) if self.ckpt is None else self.ckpt.batch_index
        step = len(self.seen) + 1 if self.ckpt is None else self.ckpt.step_count + 1
        true = self.run.step(self.run.data(index), between)
        self.seen.append((step, index, fingerprint(self.run)))
        if self.ckpt is not None:
            return self.ckpt.step(loss=true if loss is None else loss, **readings)
        return None

    def steps(self, count):
        for _ in range(count):
            self.step()
        return self

    def now(self):
        return fingerprint(self.run)


def _build():
    model = make_net()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    run = simple(model, optimizer, scheduler=scheduler)
    run.step = make_step(model, optimizer, schedulers=[scheduler])
    return run

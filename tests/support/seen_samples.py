"""A run whose weights count what it saw, so that the truth about each commit is in the commit."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from mvc.operations.data_ledgers import Ledgers
from mvc.sampling import SampleDigest, Skips, draw_batch
from mvc.sampling.ledger import RunLedger
from mvc.sampling.stretch import find_stretches

SAMPLES = 30


class Numbers(Dataset):
    """Sample i is the number i."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index


class Counting(nn.Module):
    """Counts what it saw in a buffer that is the same on all ranks."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.register_buffer("seen", torch.zeros(SAMPLES, dtype=torch.int64))

    def count(self, batch):
        """Count a batch, those of all ranks together."""
        found = torch.bincount(batch, minlength=SAMPLES)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(found)
        self.seen += found


def make_parts(loader):
    """Return the parts of a run that draws from a loader."""
    model = Counting()
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.layer.parameters(), 0.1),
        "dataloader": loader,
    }


def train_step(ckpt, parts, **options):
    """Do a step of the run; return its batch."""
    batch = ckpt.next_batch()
    parts["model"].count(batch)
    parts["optimizer"].zero_grad()
    parts["model"].layer(torch.ones(1, 1)).sum().backward()
    parts["optimizer"].step()
    ckpt.step(**options)
    return batch


def make_loader(kind=DataLoader, **options):
    """Return a shuffling loader of the numbers."""
    return kind(Numbers(), batch_size=4, shuffle=True, **options)


class PlanLoader:
    """The least loader with a plan: one integer is its position."""

    def __init__(self, plan, skips=None, rank=0, ranks=1):
        self.plan, self.skips, self.cursor = plan, skips or Skips(), 0
        self._rank, self._ranks, self._callbacks = rank, ranks, []

    def watch(self, callback):
        self._callbacks.append(callback)

    def __iter__(self):
        while True:
            batch = draw_batch(self.plan, self.skips, self.cursor)
            if batch is None:
                length = self.plan.epoch_length
                self.cursor = (self.cursor // length + 1) * length
                continue
            self.cursor = batch.stop
            mine = slice(self._rank, None, self._ranks)
            for callback in self._callbacks:
                callback(batch.positions[mine], batch.located.take(mine))
            yield torch.from_numpy(batch.located.index[mine].copy())

    def state_dict(self):
        return {"cursor": self.cursor}

    def load_state_dict(self, state):
        self.cursor = state.get("cursor", 0)


def check_commits(repo, source="dataloader", counts=("model", "seen")):
    """Check of each commit of each branch that its ledger is the truth, and says it; return how many.

    ``counts`` is where its state has how often each sample was seen.
    """
    seen = {}
    for entry in repo.log(everything=True):
        state = repo.open_state(entry.info.id)
        truth = state.load(counts, framework="numpy")
        ledger = Ledgers(repo._context).read(entry.info.id) or RunLedger()
        seen[entry.info.id] = ledger
        expected = SampleDigest.of(source, np.repeat(np.arange(len(truth)), truth))
        told = sum((one.digest for one in ledger.total.values()), SampleDigest())
        assert told == expected, entry.annotations.step
        said = (entry.annotations.meta or {}).get("data.samples")
        is_kept = entry.subject.startswith("diverged") or not truth.sum()
        assert said == str(truth.sum()) or (is_kept and said is None)
    for entry in repo.log(everything=True):
        for name in seen[entry.info.id].total:
            parent = entry.info.parents[0] if entry.info.parents else None
            before = seen.get(parent, RunLedger())
            for stretch in find_stretches(name, before, seen[entry.info.id]):
                assert stretch.prove(), (
                    entry.annotations.step,
                    stretch.positions,
                    stretch.digest.count,
                )
    return len(seen)

"""One rank that checks its own copy of a data set, again and again, and returns what it is told."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import distributed

from mvc import Identity, MvcError
from mvc_data import ShardCheck
from mvc_hooks import Checkpointer


def train(folder: Path, check: dict, steps: int) -> None:
    """Train a tiny model, and draw from each shard once."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    checked = ShardCheck(**check)
    with Checkpointer(
        folder / "run", every=2, identity=Identity("A", "a@example.org"), signals=False,
        model=model, optimizer=optimizer, shards={"train": checked},
    ) as ckpt:  # fmt: skip
        for _ in ckpt.steps(steps):
            for file in sorted(Path(checked.root).rglob("*.npy")):
                file.read_bytes()
            loss = model(torch.ones(1, 2)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ckpt.step(loss=loss)


def make_runs(path, rank, size, runs):
    """Do the runs one after the other, together with the other ranks."""
    said = []
    for run in runs:
        os.environ |= run["environ"][rank]
        try:
            train(path.parent / run["name"], run["checks"][rank], run["steps"])
            said.append("")
        except MvcError as error:
            said.append(f"{type(error).__name__}: {error.message}")
        for name in run["environ"][rank]:
            del os.environ[name]
        distributed.barrier()
    return said

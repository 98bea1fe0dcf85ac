"""One rank that checks its own copy of a data set, again and again; it writes down what it is told."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
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


def main(rank: int, size: int, store: str, folder: str, runs: str) -> None:
    """Do the runs one after the other, together with the other ranks."""
    distributed.init_process_group(
        "gloo", store=distributed.FileStore(store, size), rank=rank, world_size=size,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    for number, run in enumerate(json.loads(runs)):
        said = ""
        os.environ |= run["environ"][rank]
        try:
            train(Path(folder, run["name"]), run["checks"][rank], run["steps"])
        except MvcError as error:
            said = f"{type(error).__name__}: {error.message}"
        for name in run["environ"][rank]:
            del os.environ[name]
        Path(folder, f"said-{number}-{rank}").write_text(said)
        distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])

"""A program for torchrun: a run that goes on with any number of ranks, and writes down what it saw.

``ordered_training.py FOLDER STEPS WORKERS MICRO HOW``: trains until so many steps are complete; each rank
writes the samples of a step to ``FOLDER/seen/STEP-RANK``. HOW is ``next`` (next_batch) or ``own``
(a loop of the program's own).
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from mvc_data import ConsistentDataLoader
from mvc_hooks import Checkpointer
from support.seeing_runs import note_seen

SAMPLES, BATCH = 60, 24  # of which 12 are left at the end of an epoch


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))
        return torch.tensor([float(index), noise])


def micro_batches(loader, ckpt, how):
    """Yield what the run draws, until it ends."""
    if how == "own":
        while True:
            yield from loader
    while True:
        yield ckpt.next_batch()


def main(folder, steps, workers, micro, how):
    rank = dist.get_rank() if dist.is_initialized() else 0
    random.seed(0), np.random.seed(0), torch.manual_seed(0)  # alike on all ranks
    model = torch.nn.Linear(2, 1)
    wrapped = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    loader = ConsistentDataLoader(
        Numbers(), BATCH, seed=5, num_workers=workers, micro_batch_size=micro or None
    )
    ckpt = Checkpointer(
        folder / "run", model=model, optimizer=optimizer, dataloader=loader, every=2,
    )  # fmt: skip
    seen = []
    if ckpt.step_count < steps:
        for batch in micro_batches(loader, ckpt, how):
            wrapped(batch).mean().backward()
            seen += batch.tolist()
            if not loader.is_step_end:
                continue
            optimizer.step()
            optimizer.zero_grad()
            note_seen(folder, ckpt.step_count + 1, rank, seen)
            seen = []
            ckpt.step()
            if ckpt.step_count >= steps:
                break
    ckpt.close()


if __name__ == "__main__":
    target = Path(sys.argv[1])
    (target / "seen").mkdir(exist_ok=True)
    if os.environ["WORLD_SIZE"] != "1":
        dist.init_process_group("gloo")
    main(target, *map(int, sys.argv[2:5]), sys.argv[5])
    if dist.is_initialized():
        dist.destroy_process_group()

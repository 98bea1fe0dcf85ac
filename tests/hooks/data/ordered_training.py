"""A program for torchrun: a run that goes on with any number of ranks, and writes down what it saw.

``ordered_training.py FOLDER STEPS WORKERS KIND MICRO HOW``: trains until so many steps are complete; each rank
writes the samples of a step to ``FOLDER/seen/STEP-RANK``. KIND is that of the data, MICRO the size of a
micro-batch or 0, HOW ``next`` (next_batch) or ``own`` (a loop of the program's own).
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
from mvc_data.iterables import IterableSource
from mvc_data.packing import PackedDataset
from mvc_data.streams import ShardedStream
from mvc_hooks import Checkpointer
from support.sample_shards import read_id
from support.seeing_runs import note_seen

BATCH, WINDOW = 12, 16
ENDLESS = 100  # 96 of them in whole blocks


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 60  # of which 12 are left at the end of an epoch

    def __getitem__(self, index):
        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))
        return torch.tensor([float(index), noise])


def read_tokens(sample):
    """Return as many tokens as the number of the sample says, each its number."""
    return torch.full((sample["id"] % 11 + 1,), sample["id"])


def open_stream(folder, transform):
    how = {"records": "count", "shuffle_block": 8}
    return ShardedStream(folder / "shards", **how, transform=transform)


def make_loader(folder, kind, **how):
    if kind == "numbers":
        return ConsistentDataLoader(Numbers(), 2 * BATCH, **how)
    if kind == "endless":
        source = IterableSource(lambda: iter(range(ENDLESS)), shuffle_block=8)
        return ConsistentDataLoader(source, BATCH, **how)
    if kind in ("packed", "split"):
        stream = open_stream(folder, read_tokens)
        lengths = np.arange(len(stream)) % 11 + 1
        packed = PackedDataset(stream, lengths, WINDOW, split=kind == "split", pad=-1)
        return ConsistentDataLoader(packed, 6, **{**how, "micro_batch_size": 1}, drop_last="wrap")
    stream = open_stream(folder, read_id)
    if kind == "stream":
        return ConsistentDataLoader(stream, BATCH, **how)
    more = IterableSource(lambda: iter(range(1000, 1040)), 40, shuffle_block=4)
    stages = [(30, {"stream": 0.5, "more": 0.5}), (None, {"stream": 0.25, "more": 0.75})]
    return ConsistentDataLoader({"stream": stream, "more": more}, BATCH, stages=stages, **how)


def micro_batches(loader, ckpt, how):
    """Yield what the run draws, until it ends."""
    while True:
        if how == "own":
            yield from loader
        else:
            yield ckpt.next_batch()


def main(folder, steps, workers, kind, micro, how):
    rank = dist.get_rank() if dist.is_initialized() else 0
    random.seed(0), np.random.seed(0), torch.manual_seed(0)  # alike on all ranks
    model = torch.nn.Linear(1, 1)
    wrapped = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    options = {"seed": 5, "num_workers": int(workers), "micro_batch_size": int(micro) or None}
    loader = make_loader(folder, kind, **options)
    parts = {"model": model, "optimizer": optimizer, "dataloader": loader}
    ckpt, seen = Checkpointer(folder / "run", parts=parts, every=2), []
    for batch in micro_batches(loader, ckpt, how) if ckpt.step_count < steps else ():
        seen += (batch if isinstance(batch, torch.Tensor) else batch["input_ids"]).tolist()
        wrapped(torch.ones(1, 1)).mean().backward()
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
    if os.environ["WORLD_SIZE"] != "1":
        dist.init_process_group("gloo")
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
    if dist.is_initialized():
        dist.destroy_process_group()

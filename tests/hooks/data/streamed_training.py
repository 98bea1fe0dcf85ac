"""A program for torchrun: a run over streams that goes on with any number of ranks, and writes down what it saw.

``streamed_training.py FOLDER STEPS WORKERS KIND``: trains until so many steps are complete; each rank
writes the samples of a step to ``FOLDER/seen/STEP-RANK``.
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
SIZES = (13, 7, 30, 22)  # 72 samples, six batches
ENDLESS = 100  # 96 of them in whole blocks


def read_tokens(sample):
    """Return as many tokens as the number of the sample says, each its number."""
    return torch.full((sample["id"] % 11 + 1,), sample["id"])


def make_loader(folder, kind, workers):
    how = {"seed": 5, "num_workers": workers}
    if kind == "endless":
        source = IterableSource(lambda: iter(range(ENDLESS)), shuffle_block=8)
        return ConsistentDataLoader(source, BATCH, **how)
    if kind in ("packed", "split"):
        stream = ShardedStream(
            folder / "shards", records="count", shuffle_block=8, transform=read_tokens
        )
        lengths = np.arange(len(stream)) % 11 + 1
        packed = PackedDataset(stream, lengths, WINDOW, split=kind == "split", pad=-1)
        return ConsistentDataLoader(packed, 6, micro_batch_size=1, drop_last="wrap", **how)
    stream = ShardedStream(folder / "shards", records="count", shuffle_block=8, transform=read_id)
    if kind == "stream":
        return ConsistentDataLoader(stream, BATCH, **how)
    more = IterableSource(lambda: iter(range(1000, 1040)), 40, shuffle_block=4)
    stages = [(30, {"stream": 0.5, "more": 0.5}), (None, {"stream": 0.25, "more": 0.75})]
    return ConsistentDataLoader({"stream": stream, "more": more}, BATCH, stages=stages, **how)


def list_samples(batch):
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch["input_ids"].tolist()


def main(folder, steps, workers, kind):
    rank = dist.get_rank() if dist.is_initialized() else 0
    random.seed(0), np.random.seed(0), torch.manual_seed(0)  # alike on all ranks
    model = torch.nn.Linear(1, 1)
    wrapped = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    loader = make_loader(folder, kind, workers)
    ckpt = Checkpointer(
        folder / "run", model=model, optimizer=optimizer, dataloader=loader, every=1
    )
    seen = []
    while ckpt.step_count < steps:
        seen += list_samples(ckpt.next_batch())
        wrapped(torch.ones(1, 1)).mean().backward()
        if not loader.is_step_end:
            continue
        optimizer.step()
        optimizer.zero_grad()
        note_seen(folder, ckpt.step_count + 1, rank, seen)
        seen = []
        ckpt.step()
    ckpt.close()


if __name__ == "__main__":
    target = Path(sys.argv[1])
    if os.environ["WORLD_SIZE"] != "1":
        dist.init_process_group("gloo")
    main(target, int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    if dist.is_initialized():
        dist.destroy_process_group()

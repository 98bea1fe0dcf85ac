"""One rank of a monitored run, for ``test_prometheus``: a program of its own.

monitored_training.py RANK SIZE FOLDER

It resumes once, says its endpoints in FOLDER/endpoints.json, and trains until FOLDER/end exists. While
FOLDER/slow exists, its network takes a second and more for every large sum.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from mvc import Identity
from mvc_hooks import Checkpointer
from mvc_lab import Monitor

LINK = 10e6
"""Bytes per second: below what gloo does here, above what is left of it while the network is slow."""
DELAY_S = 1.3
_LARGE = 2**16


def slow_down(folder):
    """Have large sums take long while a file exists: the network of this program."""
    all_reduce = distributed.all_reduce

    def slow(tensor, *args, **kwargs):
        if tensor.numel() > _LARGE and (folder / "slow").exists():
            time.sleep(DELAY_S)
        return all_reduce(tensor, *args, **kwargs)

    distributed.all_reduce = slow


def main(rank, size, folder):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1")
    store = distributed.FileStore(str(folder / "store"), size)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    slow_down(folder)
    torch.manual_seed(0)
    ddp = DistributedDataParallel(
        nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 4))
    )
    optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def open_run(monitor=None):
        parts = {"model": ddp, "optimizer": optimizer, "scaler": scaler}
        options = {"identity": Identity("Ada", "ada@example.org"), "monitor": monitor}
        return Checkpointer(folder / "run", **parts, every=20, **options)

    def train(ckpt):
        optimizer.zero_grad()
        loss = ddp(torch.randn(4, 256)).pow(2).mean()
        loss.backward()
        optimizer.step()
        norm = torch.nn.utils.get_total_norm([param.grad for param in ddp.parameters()])
        ckpt.step(loss=loss, grad_norm=norm)

    with open_run() as ckpt:
        train(ckpt)
    monitor = Monitor(port=0, jsonl=folder / "run.jsonl", link_bytes_per_s=LINK)
    with open_run(monitor) as ckpt:
        if rank == 0:
            (folder / "endpoints.tmp").write_text(json.dumps(list(monitor.endpoints)))
            (folder / "endpoints.tmp").rename(folder / "endpoints.json")
        ends = torch.zeros(1)
        while not ends:
            train(ckpt)
            ends.fill_(float((folder / "end").exists()))
            distributed.broadcast(ends, 0)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))

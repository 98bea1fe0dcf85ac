"""Train replicas of a model under watch: bits that differ are found and mended, and the run is measured.

With `--flip`, one bit of the last process's weights changes in the middle, as a fault of its memory would do it: the run
names the tensor and the process, and goes on from the bits of the others. Run it from the root of the project:

    torchrun --nproc-per-node 3 examples/watched_loop.py --folder watched-run --flip
    mvc -C watched-run log
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import torch
from plain_loop import read_text
from sharded_loop import CharModel, draw_batch
from torch import distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from mvc_hooks import Checkpointer
from mvc_lab import Consistency, Monitor


def train(options: argparse.Namespace) -> None:
    """Train on all processes of the group."""
    torch.manual_seed(0)
    model = CharModel()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=2e-3)
    text = read_text()
    check = Consistency(every=10)
    monitor = Monitor(port=options.port, jsonl=options.metrics)
    with Checkpointer(
        options.folder,
        model=ddp,
        optimizer=optimizer,
        every=25,
        consistency=check,
        monitor=monitor,
    ) as ckpt:
        for step in ckpt.steps(options.steps):
            batch = draw_batch(text, ckpt.batch_index)
            logits = ddp(batch[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            optimizer.step()
            is_last = distributed.get_rank() == distributed.get_world_size() - 1
            if options.flip and is_last and step == options.steps // 2:
                model.head.weight.detach().view(torch.int32)[17, 5] ^= 1 << 20
            ckpt.step(loss=loss)
        measured = monitor.measure()
    if distributed.get_rank() == 0:
        print(f"{check.checks} checks, {check.mismatches} found a difference")
        print(f"gradients were summed in {measured['sync_p50_s'] * 1e3:.1f} ms (median)")


def main() -> None:
    """Join the other processes and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("watched-run"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--flip", action="store_true", help="flip a bit on the last process")
    parser.add_argument("--port", type=int, help="serve metrics to Prometheus from here on")
    parser.add_argument("--metrics", type=Path, help="write them to this file, as lines of JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    distributed.init_process_group("gloo")
    try:
        train(options)
    finally:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()

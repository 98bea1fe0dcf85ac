"""Train a model that is sharded over processes, whatever their number, with a repository.

Each process holds its part of weights and optimizer state (FSDP2), and yet every commit is the one that a
single process would have made: it comes back on any number of processes, or as a plain
``model.safetensors``. Some batches are damaged, so the run also rolls back. Run it from the root of the
project, kill it, and start it again, on fewer or more processes:

    torchrun --nproc-per-node 4 examples/sharded_loop.py --folder sharded-run
    torchrun --nproc-per-node 2 examples/sharded_loop.py --folder sharded-run
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import random
import signal
from pathlib import Path

import numpy as np
import torch
from plain_loop import read_text
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional

from mvc_hooks import Checkpointer, rollback, stop

CONTEXT, BATCH, WIDTH, LAYERS = 32, 24, 64, 2
DAMAGE = range(150, 156)
"""Batches whose text is noise."""


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attend = nn.Linear(WIDTH, 3 * WIDTH)
        self.feed = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states after it, (batch, time, width)."""
        query, key, value = self.attend(self.norms[0](hidden)).chunk(3, dim=-1)
        hidden = hidden + functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        fed: Tensor = self.feed(self.norms[1](hidden))
        return hidden + fed


class CharModel(nn.Module):
    """A transformer over ASCII characters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(128, WIDTH)
        self.place = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, 128)

    def forward(self, text: Tensor) -> Tensor:
        """Return the logits of the next character."""
        places = self.place(torch.arange(text.shape[1]))
        logits: Tensor = self.head(self.blocks(self.embed(text) + places))
        return logits


def draw_batch(text: Tensor, number: int) -> Tensor:
    """Return this process's part of a batch, which depends on its number alone."""
    rank, size = distributed.get_rank(), distributed.get_world_size()
    draw = torch.Generator().manual_seed(number)
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=draw)[rank::size]
    if number in DAMAGE:
        return torch.randint(128, (len(starts), CONTEXT + 1), generator=draw)
    return torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()])


def train(options: argparse.Namespace) -> None:
    """Train on all processes of the group."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):  # all of them are committed
        seed(0)
    model = CharModel()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    text = read_text()
    with Checkpointer(
        options.folder,
        model=model,
        optimizer=optimizer,
        every=25,
        healthy_after=20,
        ladder=[rollback(min_steps_back=10, skip_batches=20), stop(after=3)],
    ) as ckpt:
        for step in ckpt.steps(options.steps):
            batch = draw_batch(text, ckpt.batch_index)
            logits = model(batch[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            if step == options.kill_at and distributed.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            ckpt.step(loss=loss)
    for report in ckpt.rollbacks if distributed.get_rank() == 0 else ():
        print(f"diverged at step {report.onset_step}, rolled back to step {report.to_step}")
    digest = hash_model(model)
    if distributed.get_rank() == 0:
        print(f"weights at the end: {digest}", flush=True)


def hash_model(model: nn.Module) -> str:
    """Return the SHA-256 of all weights, by name, each gathered from all processes."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        found.update(name.encode() + whole.numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    """Join the other processes and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("sharded-run"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--kill-at", type=int, help="kill process 1 in the middle of this step")
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

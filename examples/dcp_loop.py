"""A loop as torchtitan has it, which saves through PyTorch's Distributed Checkpoint (DCP) into a repository.

``MvcWriter`` stands where the writer of files would: every save is a commit of whole tensors in plain
safetensors, made while the training goes on, and the same one on any number of processes. Run it from the
root of the project, stop it, and start it again, on fewer or more processes:

    torchrun --nproc-per-node 2 examples/dcp_loop.py --folder dcp-run --steps 40
    torchrun --nproc-per-node 1 examples/dcp_loop.py --folder dcp-run --steps 80
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from plain_loop import read_text
from sharded_loop import CharModel, draw_batch, hash_model
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from mvc_hooks.dcp import MvcReader, MvcWriter


@dataclass
class ModelState:
    """The weights, under the names that they have unsharded."""

    model: nn.Module

    def state_dict(self) -> dict[str, Any]:
        """Return them; none is copied."""
        return get_model_state_dict(self.model)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them over."""
        set_model_state_dict(self.model, state)


@dataclass
class OptimizerState:
    """The optimizer's state, by the names of the weights."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return it."""
        return get_optimizer_state_dict(self.model, self.optimizer)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it over."""
        set_optimizer_state_dict(self.model, self.optimizer, state)


@dataclass
class TrainState:
    """How far the training is."""

    step: int = 0

    def state_dict(self) -> dict[str, Any]:
        """Return it."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it over."""
        self.step = state["step"]


def train(options: argparse.Namespace) -> None:
    """Train on all processes of the group, from the last commit on if there is one."""
    torch.manual_seed(0)
    model = CharModel()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.9)
    progress = TrainState()
    states = {
        "model": ModelState(model),
        "optimizer": OptimizerState(model, optimizer),
        "scheduler": scheduler,
        "train_state": progress,
    }
    if (options.folder / ".mvc").exists():
        load(states, storage_reader=MvcReader(options.folder))
    if distributed.get_rank() == 0:
        print(f"begins at step {progress.step}", flush=True)
    # Of its own, so that what a save says does not get between what the training says.
    group = distributed.new_group(backend="gloo")
    text = read_text()
    pending: Any = None
    while progress.step < options.steps:
        batch = draw_batch(text, progress.step)
        logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
        scheduler.step()
        progress.step += 1
        if progress.step % options.every == 0:
            if pending is not None:
                pending.result()
            pending = async_save(
                states,
                storage_writer=MvcWriter(options.folder),
                checkpoint_id=f"step-{progress.step}",
                process_group=group,
            )
    if pending is not None:
        pending.result()
    digest = hash_model(model)
    if distributed.get_rank() == 0:
        print(f"weights at the end: {digest}", flush=True)


def main() -> None:
    """Join the other processes and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("dcp-run"))
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--every", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    try:
        train(options)
    finally:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()

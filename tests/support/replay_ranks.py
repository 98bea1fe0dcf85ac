"""A training of several ranks that can be replayed, for ``support.programs.call_ranks``."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from mvc import MvcError
from mvc_hooks import Checkpointer, Training
from mvc_lab import replay_steps

EVERY = 3
WIDTH = 12


def make_model(kind):
    torch.manual_seed(0)
    if kind == "2d":
        model = nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        return fully_shard(model, mesh=mesh["dp"])
    layers = [nn.Linear(8, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.1), nn.Linear(WIDTH, 1)]
    model = nn.Sequential(*layers)
    if kind in ("ddp", "ddp of four"):
        return DistributedDataParallel(model, forward_sync_buffers=False)
    return fully_shard(model, mesh=init_device_mesh("cpu", (distributed.get_world_size(),)))


def make(kind, after_step=lambda _run, _model: None):
    model = make_model(kind)
    torch.manual_seed(distributed.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.randn(96, 9, generator=torch.Generator().manual_seed(3))
    rank, size = distributed.get_rank(), distributed.get_world_size()
    if kind == "2d":  # the ranks of a row of the mesh see the same data
        rank, size = rank // 2, size // 2
    sampler = torch.utils.data.distributed.DistributedSampler(data, size, rank, shuffle=True)
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)

    def train_step(run):
        batch = run.next_batch()
        loss = (model(batch[:, :8]) - batch[:, 8:]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after_step(run, model)
        return {"loss": loss.detach()}

    parts = {"model": model, "optimizer": optimizer, "dataloader": loader}
    return Training(parts, train_step)


def on(rank, step):
    """Return a decorator of what one rank does after a step."""

    def decorate(act):
        def after_step(run, model):
            if run.step_count + 1 == step and distributed.get_rank() == rank:
                act(model)

        return after_step

    return decorate


@on(1, 5)
def spoil(model):
    shard = next(iter(model.parameters()))
    with torch.no_grad():
        (shard.to_local() if hasattr(shard, "to_local") else shard)[0, :3] += 1


@on(1, 6)
def draw(_model):
    torch.rand(1)


def train(path, rank, size, *, kind, totals):
    for total in totals:
        training = make(kind)
        with Checkpointer(path / kind, every=EVERY, parts=training.parts) as ckpt:
            for _ in ckpt.steps(total):
                ckpt.step(**training.train_step(ckpt))


def replay(path, rank, size, *, revision, steps, kind, act=None, folder=None):
    after_step = {} if act is None else {"after_step": globals()[act]}
    try:
        report = replay_steps(path / (folder or kind), revision, steps, lambda: make(kind, **after_step))  # fmt: skip
    except MvcError as error:
        return f"{type(error).__name__}: {error.message}"
    return {**report.fields(), "lines": list(report.lines()), "seconds": None}


def build():
    """Return the training as a process of torchrun has it: what ``mvc verify --replay`` is given."""
    distributed.init_process_group("gloo")
    print("said by the training")
    return make("fsdp")


def build_failing():
    """Return a training in which one rank fails and the other waits for it."""

    @on(1, 8)
    def fail(_model):
        raise ValueError("no more\nlines")

    distributed.init_process_group("gloo")
    return make("fsdp", fail)


def build_killed():
    distributed.init_process_group("gloo")
    return make("fsdp", on(0, 8)(lambda _model: os.kill(os.getpid(), signal.SIGKILL)))


def build_leaving():
    """Leave on one rank before there is a process group, which the other waits for."""
    if os.environ["RANK"] == "1":
        sys.exit(0)
    distributed.init_process_group("gloo")
    return make("fsdp")


def build_alone():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Training({"model": model, "optimizer": optimizer}, lambda _: {})


def build_endless():
    """Tell by a file that all is begun, and go on for ever."""

    def wait(_run, _model):
        Path(os.environ["BEGUN"], str(os.getpid())).touch()
        while True:
            time.sleep(60)

    distributed.init_process_group("gloo")
    return make("fsdp", wait)

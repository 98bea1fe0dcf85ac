"""One rank of runs whose gradients are compressed, made one after the other, for ``test_ranks``.

Each trains four models, each with a hook of its own.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from mvc import MvcError
from mvc_hooks import Checkpointer
from mvc_lab.compression import Bf16, Fp16, PowerSgd, SignSgd

HOOKS = {
    "fp16": lambda: Fp16(error_feedback=True),
    "bf16": Bf16,
    "power": lambda: PowerSgd(2, start_step=2),
    "sign": SignSgd,
}


def make_model(cap):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 24), nn.Linear(24, 4)
    )  # fmt: skip
    return DistributedDataParallel(model, bucket_cap_mb=cap)


def measure(ddp, step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    features = torch.randn(8, 24, generator=generator)
    return nn.functional.mse_loss(ddp(features), features[:, :4].sin())


def train(rank, folder, wanted):
    models = {name: make_model(wanted["cap"]) for name in HOOKS}
    hooks = {name: make() for name, make in HOOKS.items()}
    if wanted.get("mixed") and rank:
        hooks["power"] = PowerSgd(3, start_step=2)
    for name, hook in hooks.items():
        hook.attach(models[name])
    params = [param for model in models.values() for param in model.parameters()]
    optimizer = torch.optim.SGD(params, lr=0.05, momentum=0.9)
    said = {"ratios": {}, "steps": []}
    ckpt = Checkpointer(
        folder, model=models, optimizer=optimizer, compression=hooks, every=4, warm_up=None
    )
    with ckpt:
        said["resumed"] = ckpt.step_count
        for step in ckpt.steps(wanted["total"]):
            optimizer.zero_grad()
            loss = sum(measure(model, step, rank) for model in models.values())
            loss.backward()
            optimizer.step()
            ckpt.step(loss=loss)
            said["steps"].append(ckpt.step_count)
            if ckpt.step_count == wanted.get("back_step"):
                wanted.pop("back_step")
                ckpt.roll_back("last")
            if ckpt.step_count == wanted.get("kill_step"):
                ckpt.wait()
                distributed.barrier()
                os.kill(os.getpid(), signal.SIGKILL)
        said["ratios"] = {name: [one.ratio, one.expected_ratio] for name, one in hooks.items()}
        said["metrics"] = dict(next(ckpt.repo.log()).annotations.metrics) if rank == 0 else {}
    memory = {
        name: {key: one.capture().get(key) for key in ("errors", "factors")}
        for name, one in hooks.items()
    }
    ends = {name: model.module.state_dict() for name, model in models.items()}
    torch.save({"models": ends, "memory": memory}, Path(folder, f"out-{wanted['name']}-{rank}.pt"))
    return said


def compare_with_torch(rank):
    """Return which casts without error feedback give other gradients than PyTorch's own hooks."""
    odd = []
    for kind, own in (
        (Fp16, default_hooks.fp16_compress_hook),
        (Bf16, default_hooks.bf16_compress_hook),
    ):
        ours, theirs = make_model(0.003), make_model(0.003)
        kind().attach(ours)
        theirs.register_comm_hook(
            None, lambda state, bucket, own=own: own(state, bucket)
        )  # by name torch refuses one over gloo
        for step in range(3):
            for one in (ours, theirs):
                one.zero_grad()
                measure(one, step, rank).backward()
            pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
            if not all(torch.equal(left.grad, right.grad) for left, right in pairs):
                odd.append(kind.__name__)
    return odd


def make_runs(path, rank, size, runs):
    folder = path.parent
    logging.basicConfig(level=logging.INFO, filename=f"{folder}/log{rank}.txt")
    for wanted in runs:
        if wanted["name"] == "torch":
            said = {"odd": compare_with_torch(rank)}
        else:
            try:
                said = train(rank, Path(folder, wanted["folder"]), wanted)
            except MvcError as error:
                said = {"error": error.message}
        Path(folder, f"said-{wanted['name']}-{rank}.json").write_text(json.dumps(said))
        distributed.barrier()

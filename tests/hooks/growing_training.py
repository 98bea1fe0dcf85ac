"""A program for ``torchrun``: a run of one size, which measures itself and commits; rank 0 writes it down.

growing_training.py FOLDER FAULT

FAULT is ``flip``, then the last rank flips one bit of its weights after the commit, or ``none``.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn

from mvc import Identity
from mvc_hooks import Checkpointer

_STEPS = 6
_ME = Identity("A Tester", "tester@example.org")


def sync(model, times):
    """Average the gradients of all ranks, as DistributedDataParallel does."""
    for param in model.parameters():
        began_s = time.perf_counter()
        distributed.all_reduce(param.grad)
        param.grad /= distributed.get_world_size()
        times.append(time.perf_counter() - began_s)


def gather(value):
    found = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, value)
    return found


def compare(model):
    """Return whether all ranks have the same bits, and the largest difference from rank 0."""
    flat = torch.cat([param.detach().flatten() for param in model.parameters()])
    digests = gather(hashlib.sha256(flat.numpy().tobytes()).hexdigest())
    weights = gather(flat)
    return len(set(digests)) == 1, max(float((one - weights[0]).abs().max()) for one in weights)


def flip(model):
    words = next(model.parameters()).data.view(torch.int32)
    words[0, 0] ^= 1 << 22  # the largest bit of the mantissa


def main():
    folder, fault = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    times, checks, loss = [], [], None
    began_s = time.perf_counter()
    parts = {"model": model, "optimizer": optimizer, "identity": _ME}
    with Checkpointer(folder / "run", every=None, allow=["ranks"], **parts) as ckpt:
        recovery_s = time.perf_counter() - began_s
        draw = torch.Generator().manual_seed(100 * ckpt.step_count + rank)
        for _ in range(_STEPS):
            loss = model(torch.randn(4, 8, generator=draw)).square().mean()
            loss.backward()
            sync(model, times)
            optimizer.step()
            optimizer.zero_grad()
            ckpt.step()
            checks.append(compare(model))
        ckpt.commit(f"{size} ranks")
        if fault == "flip" and rank == size - 1:
            flip(model)
        checks.append(compare(model))
    total = sum(gather(float(loss))) / size
    if rank == 0:
        times.sort()
        measured = {
            "ranks": size,
            "checks": len(checks),
            "mismatches": sum(not is_same for is_same, _ in checks),
            "deviation_max": max(farthest for _, farthest in checks),
            "sync_p99_s": times[int(0.99 * (len(times) - 1))],
            "bandwidth_used": min(times) / (sum(times) / len(times)),
            "recovery_s": recovery_s,
            "loss": total,
        }
        (folder / "measured.json").write_text(json.dumps(measured))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

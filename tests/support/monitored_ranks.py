"""Ranks of a monitored training, for ``support.programs.call_ranks``."""

from __future__ import annotations

import copy
import hashlib
import io
import itertools
import urllib.request

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from mvc_hooks import Checkpointer
from mvc_hooks.ranks.syncing import TimedHook, install
from mvc_lab import Monitor


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(20, 8, sparse=True), nn.Linear(8, 3)

    def forward(self, inputs):
        return self.last(self.words((inputs * 8).long().abs().clamp(max=19)).mean(1))


def _make(kind, **options):
    torch.manual_seed(0)
    if kind == "sparse":
        model = Sparse()
    else:
        layers = [nn.Linear(16, 40), nn.Linear(40, 40), nn.Linear(40, 3)]
        model = nn.Sequential(*layers).to(getattr(torch, kind))
    return DistributedDataParallel(model, bucket_cap_mb=0.004, **options)


def _train(ddp, kind, *, rank, drops):
    optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(4):
        inputs = torch.randn(8, 16, generator=generator)
        inputs = inputs if kind == "sparse" else inputs.to(getattr(torch, kind))
        optimizer.zero_grad(set_to_none=drops)
        ddp(inputs).float().pow(2).mean().backward()
        optimizer.step()
    return [param.detach() for param in ddp.parameters()]


def compare_bits(root, rank, size):
    """Return for each case: what it is, whether it was timed, and whether the parameters are the same."""
    found = []
    kinds = ("float32", "bfloat16", "sparse")
    for kind, drops, view in itertools.product(kinds, (True, False), (False, True)):
        if kind == "sparse" and view:
            continue
        plain = _train(_make(kind, gradient_as_bucket_view=view), kind, rank=rank, drops=drops)
        ddp = _make(kind, gradient_as_bucket_view=view)
        hook = install(ddp)
        timed = _train(ddp, kind, rank=rank, drops=drops)
        is_timed = isinstance(hook, TimedHook)
        updates = hook.take() if is_timed else []
        found.append([kind, view, is_timed, len(updates), all(map(torch.equal, plain, timed))])
    return found


def look_at_hooks(root, rank, size):
    """Return what is known of several hooks: kept ones, a group of two, a copy."""
    pair = distributed.new_group([0, 1])
    said = {}
    other = _make("float32")
    other.register_comm_hook(None, default_hooks.fp16_compress_hook)
    said["other"] = install(other)
    mine = _make("float32")
    mine.register_comm_hook(None, Monitor(port=None).timed(default_hooks.fp16_compress_hook))
    hook = install(mine)
    _train(mine, "float32", rank=rank, drops=True)
    said["bytes of a wrapped one"] = [update.bus_bytes for update in hook.take()]
    said["again"] = install(mine) is hook
    if rank < 2:
        small = _make("float32", process_group=pair)
        hook = install(small)
        _train(small, "float32", rank=rank, drops=True)
        said["pair"] = [[one.size_bytes, one.bus_bytes, len(one.buckets)] for one in hook.take()]
    ddp = _make("float32")
    install(ddp)
    clone = copy.deepcopy(ddp)
    torch.save(ddp, io.BytesIO())
    _train(clone, "float32", rank=rank, drops=True)
    return said


def train(root, rank, size, total, watched):
    """Train to a step; return a digest of the parameters, and what the monitor knows."""
    monitor = Monitor(port=0) if watched else None
    ddp = _make("float32")
    optimizer = torch.optim.SGD(ddp.parameters(), 0.01, momentum=0.9)
    with Checkpointer(root, model=ddp, optimizer=optimizer, every=4, monitor=monitor) as ckpt:
        for step in ckpt.steps(total):
            inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(step * 7 + rank))
            optimizer.zero_grad()
            loss = ddp(inputs).pow(2).mean()
            loss.backward()
            optimizer.step()
            ckpt.step(loss=loss)
        said = (
            {"measure": monitor.measure(), "endpoints": list(monitor.endpoints)} if monitor else {}
        )
        if monitor:
            said["page"] = urllib.request.urlopen(monitor.endpoints[rank]).read().decode()
    data = b"".join(param.detach().numpy().tobytes() for param in ddp.parameters())
    return said | {"digest": hashlib.sha256(data).hexdigest()}

"""Trainings of several ranks in which bits flip, for ``support.programs.call_ranks``."""

from __future__ import annotations

import hashlib
import logging

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from mvc import Identity, MvcError, Repo
from mvc_hooks import Checkpointer
from mvc_hooks.parts.tree import to_local, walk_leaves
from mvc_lab import Consistency
from mvc_lab.consistency.kept import CheckedShare

ME = Identity("A Tester", "tester@example.org")
TOTAL = 7


class Lines(logging.Handler):
    """What this rank has logged."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def run_cases(root, rank, size, cases):
    """Run the cases in one group of processes; return what each came to."""
    heard, results = Lines(), []
    logging.getLogger("mvc_hooks").addHandler(heard)
    for number, case in enumerate(cases):
        heard.lines.clear()
        verb = VERBS[case.pop("verb", "alone")]
        result = verb(root / f"case-{number}", rank, size, **case)
        results.append({**result, "lines": list(heard.lines)})
    return results


# The model, and what it learns from.


def build(kind, size):
    torch.manual_seed(distributed.get_rank() if kind == "plain" else 0)
    layers = [nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 2, bias=False)]
    if kind == "norm":
        layers = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2, bias=False)]
    model = nn.Sequential(*layers)
    if kind == "hsdp":
        mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("copy", "shard"))
        return fully_shard(model, mesh=mesh)
    if kind == "fsdp":
        return fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    if kind == "tp":
        mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("data", "tp"))
        plan = {"0": ColwiseParallel(use_local_output=True), "2": RowwiseParallel()}
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        parallelize_module(model, mesh["tp"], plan)
        return fully_shard(model, mesh=mesh["data"])
    if kind == "plain":
        return model
    return DistributedDataParallel(model, broadcast_buffers=kind != "norm", bucket_cap_mb=1e-4)


def make_optimizer(model, name):
    if name == "coupled":
        return Coupled(model.parameters(), lr=0.01)
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1)
    return torch.optim.AdamW(model.parameters(), lr=0.01)


class Coupled(torch.optim.SGD):
    """Steps by a rate that depends on all gradients, and draws a number."""

    def step(self, closure=None):
        norms = [
            to_local(one.grad).norm() for group in self.param_groups for one in group["params"]
        ]
        for group in self.param_groups:
            group["lr"] = 0.01 / (1 + float(sum(norms)))
        return super().step(closure)


def make_batch(kind, rank, size, step):
    source = rank % (size // 2) if kind == "hsdp" else rank
    source = rank // (size // 2) if kind == "tp" else source
    generator = torch.Generator().manual_seed(100 * source + step)
    return torch.randn(5, 6, generator=generator), torch.randn(5, 2, generator=generator)


# Bits.


def flip(tensor, element=0, bit=0):
    """Flip one bit of what is here of a tensor, as a cosmic ray would: nothing counts it as a write."""
    here = to_local(tensor.detach())
    data = here.view(-1).view(torch.uint8).numpy()
    data[element * here.element_size() + bit // 8] ^= 1 << bit % 8


def flip_in(model, optimizer, what, name, element, bit):
    """Flip a bit of a parameter, a buffer, a gradient or of optimizer state."""
    params = dict(_inner(model).named_parameters())
    if what == "buffer":
        flip(dict(_inner(model).named_buffers())[name], element, bit)
    elif what == "gradient":
        flip(params[name].grad, element, bit)
    elif what == "state":
        param, _, key = name.rpartition(":")
        flip(optimizer.state[params[param]][key], element, bit)
    else:
        flip(params[name], element, bit)


def _inner(model):
    return model.module if isinstance(model, DistributedDataParallel) else model


def digest(model, optimizer):
    hasher = hashlib.sha256()
    state = [model.state_dict(), optimizer.state_dict()["state"]]
    for path, leaf in walk_leaves(state):
        if isinstance(leaf, torch.Tensor):
            hasher.update(repr(path).encode())
            hasher.update(
                to_local(leaf.detach()).contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            )
    return hasher.hexdigest()


def tell(report):
    return None if report is None else {
        "step": report.step, "cause": report.cause, "reason": report.reason, "answer": report.answer,
        "tensor": report.tensor, "tensors": list(report.tensors), "ranks": list(report.ranks),
        "index": list(report.index), "bits": report.bits, "max_delta": report.max_delta,
        "text": str(report), "right": report.deviations[0].right,
    }  # fmt: skip


# What goes wrong.


class Faults:
    """Flips one bit on one rank at one step, once."""

    def __init__(self, rank, fault):
        self._rank, self._fault = rank, fault or {}

    def strike(self, when, step, model, optimizer):
        one = self._fault
        if one.get("when") == when and one["step"] == step and one["rank"] in (self._rank, "all"):
            flip_in(
                model, optimizer, one["what"], one["name"], one.get("element", 0), one.get("bit", 0)
            )
            if not one.get("again"):
                self._fault = {}

    def hook(self, model, rank):
        """Have one rank get other sums than the rest, at the step of the fault."""

        def sum_up(state, bucket):
            work = distributed.all_reduce(
                bucket.buffer().div_(distributed.get_world_size()), async_op=True
            )

            def finish(future):
                (result,) = future.value()
                one = self._fault
                if (one.get("when"), one.get("rank"), one.get("step")) == ("sum", rank, self.step):
                    flip(result, 0, one["bit"])
                    self._fault = {}
                return result

            return work.get_future().then(finish)

        model.register_comm_hook(None, sum_up)


def train_step(model, optimizer, batch, faults, step, sums=True):
    inputs, targets = batch
    faults.step = step
    faults.strike("start", step, model, optimizer)
    functional.mse_loss(model(inputs), targets).backward()
    faults.strike("before", step, model, optimizer)
    optimizer.step()
    optimizer.zero_grad()
    faults.strike("after", step, model, optimizer)


def alone(
    folder, rank, size, *, kind="ddp", optimizer="adamw", fault=None, total=TOTAL, by_hook=False, every=1,
    share_bytes=1 << 24, extra=None, **options,
):  # fmt: skip
    """Train without a checkpointer."""
    model = build(kind, size)
    stepper = make_optimizer(model, optimizer)
    faults = Faults(rank, fault)
    if by_hook:
        faults.hook(model, rank)
    torch.manual_seed(rank)
    check = Consistency(every, share_bytes=share_bytes, **options)
    error = None
    real, late = CheckedShare.is_late, extra == "late"
    CheckedShare.is_late = property(lambda _: True) if late else real  # as on a device
    try:
        check.watch(model=model, optimizer=stepper)
        for step in range(1, total + 1):
            if extra == "eval":
                model.train(step > 5)
            train_step(model, stepper, make_batch(kind, rank, size, step), faults, step)
            if extra == "one rank" and rank == 1 and step == 5:
                _inner(model)[1].running_mean += 1
            check.step()
    except MvcError as caught:
        error = f"{type(caught).__name__}: {caught.message}"
    CheckedShare.is_late = real
    watching = check._watching
    check.remove()
    return {
        "reports": [tell(one) for one in check.reports], "end": digest(model, stepper), "error": error,
        "checks": check.checks, "mismatches": check.mismatches, "bytes": check.digested_bytes,
        "own": sorted(watching._learned.own), "shares": len(watching._shares),
    }  # fmt: skip


def kept(
    folder, rank, size, *, kind="ddp", optimizer="adamw", fault=None, total=TOTAL, by_hook=False,
    damage=False, every=1, **options,
):  # fmt: skip
    """Train with a checkpointer."""
    model = build(kind, size)
    stepper = make_optimizer(model, optimizer)
    faults = Faults(rank, fault)
    if by_hook:
        faults.hook(model, rank)
    torch.manual_seed(rank)
    check = Consistency(every, **options)
    error, back = None, []
    try:
        with Checkpointer(
            folder,
            model=model,
            optimizer=stepper,
            every=2,
            consistency=check,
            signals=False,
            identity=ME,
        ) as ckpt:
            for index in ckpt.steps(total):
                batch = make_batch(kind, rank, size, ckpt.batch_index + 1)
                if damage and index + 1 == fault["step"]:
                    ckpt.wait()
                    damage_packs(folder, rank)
                train_step(model, stepper, batch, faults, index + 1)
                report = ckpt.step()
                back += [] if report is None else [report.to_step]
    except MvcError as caught:
        error = f"{type(caught).__name__}: {caught.message}"
    distributed.barrier()
    alarms = [one.cause for one in Repo.open(folder).runs.read("main").alarms] if not rank else []
    return {
        "reports": [tell(one) for one in check.reports], "end": digest(model, stepper), "error": error,
        "back": back, "alarms": alarms,
    }  # fmt: skip


def twice(folder, rank, size, *, fault=None):
    """Do a step twice, in which one rank computes something else the second time."""
    model = build("norm", size)
    stepper = make_optimizer(model, "adamw")
    torch.manual_seed(rank)
    check = Consistency().watch(model=model, optimizer=stepper)
    calls = []

    def step():
        calls.append(1)
        inputs, targets = make_batch("norm", rank, size, 1)
        if fault and fault["rank"] == rank and len(calls) == 4:
            flip(inputs, 3, 28)
        functional.mse_loss(model(inputs), targets).backward()
        stepper.step()
        stepper.zero_grad()

    step()
    check.step()
    step()
    check.step()
    check.redo(step)
    check.remove()
    return {
        "reports": [tell(one) for one in check.reports], "error": None, "end": digest_parameters(model)
    }  # fmt: skip


def digest_parameters(model):
    return [one.detach().sum().item() for one in model.parameters()]


def damage_packs(folder, rank):
    """Flip bits all over every pack."""
    distributed.barrier()
    for path in sorted(folder.rglob("*.pack")) if not rank else ():
        if "objects" not in path.parts:
            data = bytearray(path.read_bytes())
            for at in range(64, len(data) - 64, 16):
                data[at] ^= 1
            path.chmod(0o600)
            path.write_bytes(data)
    distributed.barrier()


VERBS = {"alone": alone, "kept": kept, "twice": twice}

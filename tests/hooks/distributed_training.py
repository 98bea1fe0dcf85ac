"""One rank of runs on several processes, made one after the other, for ``test_ranks``.

What a run says is in FOLDER/NAME/said-RANK-N.json.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import shutil
import signal
import time
from itertools import islice
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import mvc_hooks
from mvc import MvcError, Repo
from support.damage import flip

WIDTH = 32


def make_model(wanted):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4),
    )  # fmt: skip


def wrap(model, wanted):
    return DistributedDataParallel(
        model,
        forward_sync_buffers=wanted.get("sync_buffers", True),
        bucket_cap_mb=wanted.get("bucket_cap_mb"),
    )


def shard(model):
    """Shard it as FSDP2 does; its batch norms have buffers that differ from rank to rank."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for layer in (model[0], model[4]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


class Split(torch.optim.SGD):
    """Keeps the momentum of every other parameter up to date; the ranks tell each other the rest."""

    @torch.no_grad()
    def step(self, closure=None):
        rank, size = distributed.get_rank(), distributed.get_world_size()
        params = [param for group in self.param_groups for param in group["params"]]
        for number, param in enumerate(params):
            momentum = self.state[param].setdefault("momentum_buffer", torch.zeros_like(param))
            if number % size == rank:
                momentum.mul_(0.9).add_(param.grad)
                param.sub_(momentum, alpha=1e-2)
            distributed.broadcast(param, number % size)


class Calls:
    """Counts what the training says to other ranks, by the step."""

    def __init__(self):
        self.by_step, self.names = {}, []
        for name in ("all_reduce", "broadcast_object_list", "all_gather_object", "gather_object", "barrier",
                     "send_object_list", "recv_object_list", "broadcast", "all_gather", "gather"):  # fmt: skip
            setattr(distributed, name, self.wrap(name, getattr(distributed, name)))

    def wrap(self, name, call):
        def counted(*args, **kwargs):
            self.names.append(name)
            return call(*args, **kwargs)

        return counted

    def end_step(self, step):
        self.by_step[step], self.names = self.names, []


CALLS = Calls()
LEFT_OPEN = []


def make_loader(rank, size):
    generator = torch.Generator().manual_seed(7)
    data = torch.utils.data.TensorDataset(
        torch.randn(96, 16, generator=generator), torch.randint(0, 4, (96,), generator=generator)
    )
    sampler = torch.utils.data.distributed.DistributedSampler(data, size, rank, shuffle=True)
    return torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler)


def compress(state, bucket):
    """PowerSGD bucket by bucket: over gloo, with several at once, the hook waits for itself."""
    future = power_sgd.powerSGD_hook(state, bucket)
    future.wait()
    return future


def train(rank, size, folder, wanted):  # noqa: PLR0912  a case for each thing that can happen
    model = make_model(wanted)
    torch.manual_seed(100 + rank + wanted.get("seed", 0))
    random.seed(rank)
    if wanted.get("stages"):
        ddp = nn.ModuleDict({str(at): model[at] for at in range(7) if (at > 3) == bool(rank)})
    else:
        ddp = shard(model) if wanted.get("shard") else wrap(model, wanted)
    parts = {}
    if "power_sgd" in wanted:
        state = power_sgd.PowerSGDState(None, **wanted["power_sgd"])
        ddp.register_comm_hook(state, compress)
        parts["power_sgd"] = state
    kind = Split if wanted.get("split") else torch.optim.AdamW
    optimizer = kind(ddp.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.8)
    loader = make_loader(rank, size)
    parts |= {"model": ddp, "optimizer": optimizer, "scheduler": scheduler, "dataloader": loader}
    options = dict(wanted.get("options", {}))
    if "ladder" in wanted:
        options["ladder"] = [mvc_hooks.rollback(**wanted["ladder"]), mvc_hooks.stop(after=2)]
    if "ring" in wanted:
        options["ring"] = mvc_hooks.Ring(**wanted["ring"])
    model.noise = torch.Generator() if rank in wanted.get("own_generators", ()) else None
    if wanted.get("diverse"):
        with torch.no_grad():
            model[0].weight += rank
    if wanted.get("warm_up"):
        options["warm_up"] = lambda: ddp(torch.randn(8, 16)).sum().backward()
    values = {"odd": print if (rank, wanted.get("odd_value_step")) == (1, 0) else 0}
    if "odd_value_step" in wanted:
        parts["parts"] = {"values": values}
    said = {"rollbacks": [], "steps": [], "losses": []}

    path = make_node(rank, size, Path(folder), wanted) if "nodes" in wanted else folder
    ckpt = mvc_hooks.Checkpointer(path, **{"every": 4, "healthy_after": 2, **options}, **parts)
    is_left_open = wanted.get("is_left_open", False)
    LEFT_OPEN.append(ckpt if is_left_open else None)
    with contextlib.nullcontext() if is_left_open else ckpt:
        said["resumed"] = ckpt.step_count
        most = wanted["total"] if is_left_open else None
        for step in islice(ckpt.steps(wanted["total"] + is_left_open), most):
            for _ in range(wanted.get("micro", 1)):
                features, targets = ckpt.next_batch()
                loss = nn.functional.cross_entropy(ddp(features), targets)
                loss.backward()
            noise = random.random()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            value = loss.detach() + 0 * noise
            value = value + spoil(rank, step + 1, wanted)
            if rank == wanted.get("signal_rank") and step + 1 == wanted["signal_step"]:
                signal.raise_signal(signal.SIGTERM)
            if rank == wanted.get("error_rank") and step + 1 == wanted["error_step"]:
                raise ValueError("on purpose")
            if rank == 0 and step + 1 == wanted.get("break_step"):
                (Path(folder) / ".mvc").rename(Path(folder) / "gone")
            stop_writer(ckpt, rank, step + 1, wanted)
            if (rank, step + 1) == (1, wanted.get("odd_value_step")):
                values["odd"] = print
            if (rank, step + 1) == (wanted.get("odd_rank"), wanted.get("odd_step")):
                optimizer.state[model[0].weight]["odd"] = torch.zeros(3)
            if (rank, step + 1) == (wanted.get("flip_rank"), wanted.get("flip_step")):
                model[4].weight.data.view(torch.int32)[3, 5] ^= 1 << 12
            CALLS.end_step("")
            ckpt.step(loss=None if wanted.get("quiet") else value)
            CALLS.end_step(ckpt.step_count)
            said["steps"].append(ckpt.step_count)
            if rank == wanted.get("kill_rank") and step + 1 == wanted["kill_step"]:
                os.kill(os.getpid(), signal.SIGKILL)
        said["rollbacks"] = [(one.from_step, one.to_step) for one in ckpt.rollbacks]
        said["commits"] = [one.step for one in ckpt.commits]
        said["errors"] = [one.error for one in ckpt.commits]
        said["skipped"] = ckpt.skipped
        said["disputed"] = [one.step for one in ckpt.commits if one.is_disputed]
        said["ids"] = [one.commit for one in ckpt.commits]
        said["calls"] = {step: names for step, names in CALLS.by_step.items() if step}
        said["changes"] = [list(map(str, one)) for one in ckpt.environment_changes]
    torch.save(
        {
            "model": gather(model.state_dict()), "optimizer": gather(optimizer.state_dict()),
            "rng": torch.get_rng_state(), "python": random.getstate(),
        },
        Path(folder) / f"out-{rank}.pt",
    )  # fmt: skip
    return said


def make_node(rank, size, folder, wanted):
    """Return the folder of a rank's machine, which is lost first if that is wanted."""
    number = wanted["nodes"][rank]
    path = folder / f"node{number}"
    if number in wanted.get("lost", ()):
        shutil.rmtree(path)
    if rank == 0 and wanted.get("store") and not path.exists():
        Repo.init(path, store=folder / "store")
    return path


def damage(folder):
    """Flip a bit of the parameters of the last commit, which only one rank reads."""
    packs = folder.glob(".mvc/chunks/packs/*.pack")
    flip(max(packs, key=lambda one: one.stat().st_mtime_ns))


def spoil(rank, step, wanted):
    """Return NaN where a rank is to have a bad loss, once, and otherwise 0."""
    if rank == wanted.get("bad_rank") and step in wanted["bad_steps"]:
        wanted["bad_steps"].remove(step)
        return float("nan")
    return 0.0


def stop_writer(ckpt, rank, step, wanted):
    """Send a signal to the writer of a rank before the end of a step."""
    number = wanted.get("writer", {}).get(str(step))
    if number == signal.SIGSTOP:
        ckpt.wait()  # or the training waits for it with what it still has to do
    if number is not None and rank == wanted["writer_rank"]:
        os.kill(ckpt._commits.queue.start_writer()._process.pid, number)


def gather(value):
    """Return a nested state with whole tensors."""
    if isinstance(value, dict):
        return {key: gather(item) for key, item in value.items()}
    return value.full_tensor() if hasattr(value, "full_tensor") else value


class EndedError(Exception):
    """What a signal does here once it is delivered."""


def end_by_signal(number, _):
    raise EndedError(signal.Signals(number).name)


def make_run(number, rank, size, folder, wanted):
    started_s = time.perf_counter()
    folder = Path(folder, wanted["name"])
    folder.mkdir(exist_ok=True)
    if wanted.get("damages") and rank == 0:
        damage(folder)
    try:
        said = train(rank, size, folder, wanted)
    except (MvcError, EndedError, ValueError, RuntimeError) as error:
        said = {"error": type(error).__name__, "message": getattr(error, "message", str(error))}
        if isinstance(error, MvcError):
            said["hint"] = error.hint
    said["seconds"] = time.perf_counter() - started_s
    Path(folder, f"said-{rank}-{number}.json").write_text(json.dumps(said))


def make_runs(path, rank, size, runs):
    folder = path.parent
    signal.signal(signal.SIGTERM, end_by_signal)
    logging.basicConfig(level=logging.INFO, filename=f"{folder}/log{rank}.txt")
    for number, wanted in enumerate(runs):
        make_run(number, rank, size, folder, wanted)
        distributed.barrier()

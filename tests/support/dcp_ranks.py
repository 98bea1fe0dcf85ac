"""Ranks that save and load through DCP: what ``support.programs.call_ranks`` calls."""

from __future__ import annotations

import os

import torch
from torch import distributed, nn
from torch.distributed import checkpoint as dcp
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import Shard as LocalShard
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.futures import Future

from mvc_hooks.dcp import MvcReader, MvcWriter
from mvc_hooks.dcp.meeting import meeting
from mvc_hooks.dcp.saving import give_up

end = meeting.close


def make_whole():
    """Return the state as one process has it."""
    torch.manual_seed(0)
    weight = torch.randn(700, 400)
    return {
        "model": {"rows": weight, "columns": weight.bfloat16() * 2, "same": weight[:9] * 3, "few": torch.randn(2)},
        "optimizer": {
            "state": {"rows": {"m": weight * 4, "step": torch.tensor(9.0)}},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": ["rows"]}],
        },
        "loader": {"position": 5, "blob": b"q" * 3000},
        "plain": torch.randn(11, 3),
    }  # fmt: skip


def spread(state, mesh):
    """Return that state as a rank of a mesh has it."""
    if mesh is None:
        return state
    dims = mesh.ndim
    model, optimizer = state["model"], state["optimizer"]["state"]["rows"]
    ways = {"rows": [Shard(0)] * dims, "columns": [Shard(1)] * dims, "same": [Replicate()] * dims}
    ways["few"] = [Replicate()] * (dims - 1) + [Shard(0)]
    for name, placements in ways.items():
        model[name] = distribute_tensor(model[name], mesh, placements)
    placements = [Shard(dim) for dim in range(dims)]
    optimizer["m"] = distribute_tensor(optimizer["m"], mesh, placements)
    return state


def make_state(size):
    shape = (size,) if size < 4 else (2, size // 2)
    names = ("dp", "tp")[: len(shape)]
    return spread(make_whole(), init_device_mesh("cpu", shape, mesh_dim_names=names))


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def empty(state):
    """Set every tensor to zero; return the state without its objects."""
    for key, value in state.items():
        if isinstance(value, dict):
            empty(value)
        elif isinstance(value, torch.Tensor):
            local(value).zero_()
        elif not isinstance(value, list):
            state[key] = None
    return state


def differ(one, other, path=()):
    """Yield the paths at which two states differ."""
    for key in one:
        if isinstance(one[key], dict):
            yield from differ(one[key], other[key], (*path, key))
        elif isinstance(one[key], torch.Tensor):
            if not torch.equal(local(one[key]), local(other[key])):
                yield ".".join((*path, key))
        elif one[key] != other[key]:
            yield ".".join((*path, key))


def save(path, rank, size, *, branch="main", times=1, only=False, **options):
    state = make_state(size)
    if only:
        state[f"of_{rank}"] = {"number": rank, "blob": b"k" * 2000 * (rank + 1)}
    commits = []
    for number in range(times):
        writer = MvcWriter(path, branch=branch, step=number)
        commits.append(dcp.save(state, storage_writer=writer, **options).storage_meta.save_id)
    return commits


def save_in_groups(path, rank, size):
    """Save what all have, told by the last rank, and what a group has; return the commits."""
    path, mesh = path.parent, init_device_mesh("cpu", (size,))
    state = {"w": distribute_tensor(torch.arange(24.0).view(6, 4), mesh, [Shard(0)])}
    writer = MvcWriter(path / "told-by-the-last")
    saved = dcp.save_state_dict(state, writer, coordinator_rank=size - 1)
    commits = [saved.storage_meta.save_id]
    groups = [list(range(1, size)), [0]]
    for members in groups:
        group = distributed.new_group(members)
        if rank in members:
            state = {"of": torch.tensor(members)}
            writer = MvcWriter(path / f"group-{len(members)}")
            saved = dcp.save(state, storage_writer=writer, process_group=group)
            commits.append(saved.storage_meta.save_id)
    return commits


def save_cached(path, rank, size):
    """Save with plans that DCP keeps: all new, all known, and one rank's new."""
    state, commits = make_state(size), []
    for number in range(4):
        if number == 2 and rank == 1:
            state["late"] = torch.arange(5.0)
        if number == 3:
            state["loader"]["position"] = 6
        planner = DefaultSavePlanner(enable_plan_caching=True)
        writer = MvcWriter(path, branch="cached", step=number)
        commits.append(dcp.save(state, storage_writer=writer, planner=planner).storage_meta.save_id)
    return commits


def load(path, rank, size, *, revision="HEAD", only=False, **options):
    target = empty(make_state(size))
    target["optimizer"]["param_groups"] = [{"lr": None, "betas": None, "params": None}]
    if only:
        target[f"of_{rank}"] = {"number": None, "blob": None}
    dcp.load(target, storage_reader=MvcReader(path, revision), **options)
    found = list(differ(make_state(size), target))
    return [*found, target[f"of_{rank}"]["number"]] if only else found


def enter(path, machine):
    """Go to a machine; return where its repository is, or is to be."""
    folder = path.parent / machine
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    return "run"


def save_on_machines(path, rank, size, *, machines, times=1):
    """Save where each machine has a folder of its own; return the commits, or what was said."""
    path = enter(path, machines[rank])
    commits = []
    for _ in range(times):
        writer = MvcWriter(path, message="of machines")
        try:
            saved = dcp.save(make_state(size), storage_writer=writer)
        except dcp.api.CheckpointException as error:
            return str(error)
        commits.append(saved.storage_meta.save_id)
    return commits


def load_on_machines(path, rank, size, *, machines, revision="HEAD"):
    target = empty(make_state(size))
    target["optimizer"]["param_groups"] = [{"lr": None, "betas": None, "params": None}]
    reader = MvcReader(enter(path, machines[rank]), revision)
    dcp.load(target, storage_reader=reader)
    return [
        str(reader.read_metadata().storage_meta.save_id),
        list(differ(make_state(size), target)),
    ]


def save_async(path, rank, size, *, kind):
    state = make_state(size)
    kind = dcp.state_dict_saver.AsyncCheckpointerType(kind)
    writer = MvcWriter(path, branch=f"async-{kind.value}")
    future = dcp.async_save(state, storage_writer=writer, async_checkpointer_type=kind)
    empty(state)
    return future.result().storage_meta.save_id


def save_shards(path, rank, size):
    """Save a ShardedTensor of which every rank has two shards, rows and columns."""
    whole = torch.arange(48.0).reshape(8, 6)
    boxes = [((0, 0), (4, 2)), ((0, 2), (4, 4)), ((4, 0), (4, 5)), ((4, 5), (4, 1))]
    mine = []
    for number, ((top, left), (rows, columns)) in enumerate(boxes):
        if number % size == rank:
            part = whole[top : top + rows, left : left + columns].clone()
            meta = ShardMetadata([top, left], [rows, columns], f"rank:{rank}/cpu")
            mine.append(LocalShard(part, meta))
    tensor = sharded_tensor.init_from_local_shards(mine, 8, 6)
    dcp.save({"t": tensor}, storage_writer=MvcWriter(path, branch="shards"))
    for shard in tensor.local_shards():
        shard.tensor.zero_()
    target = {"t": tensor}
    dcp.load(target, storage_reader=MvcReader(path, "shards"))
    for shard in target["t"].local_shards():
        (top, left), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
        assert torch.equal(shard.tensor, whole[top : top + rows, left : left + columns])


def make_module():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(9, 13), nn.ReLU(), nn.Linear(13, 5))


def train(model, optimizer):
    for number in range(2):
        torch.manual_seed(number)
        optimizer.zero_grad()
        model(torch.randn(4, 9)).square().mean().backward()
        optimizer.step()


def save_fsdp(path, rank, size, *, version):
    """Train a model of FSDP, save it, load it into another one; return what differs."""
    mesh = init_device_mesh("cpu", (size,))

    def make():
        model = make_module()
        if version == 2:
            fully_shard(model, mesh=mesh)
        else:
            model = FullyShardedDataParallel(
                model, device_mesh=mesh, device_id=torch.device("cpu"), use_orig_params=True
            )
            FullyShardedDataParallel.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    def describe(model, optimizer):
        return {
            "model": get_model_state_dict(model),
            "optimizer": get_optimizer_state_dict(model, optimizer),
        }

    model, optimizer = make()
    train(model, optimizer)
    branch = f"fsdp{version}"
    dcp.save(describe(model, optimizer), storage_writer=MvcWriter(path, branch=branch))
    other, fresh = make()
    train(other, fresh)
    target = describe(other, fresh)
    wanted = describe(model, optimizer)
    for key in ("model",):
        empty(target[key])
    dcp.load(target, storage_reader=MvcReader(path, branch))
    return list(differ(wanted, target))


def fail(path, rank, size, *, at):
    """Save with a planner that fails on rank 1; then save again."""

    class Failing(DefaultSavePlanner):
        def finish_plan(self, plan):
            if rank == 1 and at == "plan":
                raise RuntimeError("no plan today")
            return super().finish_plan(plan)

        def resolve_data(self, write_item):
            if rank == 1 and at == "data":
                raise RuntimeError("no data today")
            return super().resolve_data(write_item)

    class Silent(MvcWriter):
        def write_data(self, plan, planner):
            if rank != 1 or at != "told":
                return super().write_data(plan, planner)
            meeting.relieve()
            give_up(rank, plan, RuntimeError("not told today"))
            done = Future()
            done.set_result([])
            return done

    state = make_state(size)
    try:
        dcp.save(state, storage_writer=Silent(path, branch="fail"), planner=Failing())
    except dcp.api.CheckpointException as error:
        ranks, message = sorted(error.failures), str(error)
    again = dcp.save(state, storage_writer=MvcWriter(path, branch="fail"))
    return [ranks, message, again.storage_meta.save_id]

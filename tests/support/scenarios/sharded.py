"""Trainings over several processes: layouts of a model, and what people do besides; see ``sharded_runs``.

Each is a function of the rank and the number of ranks that builds a ``Run``, on every rank alike.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import distributed, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from support.training_runs import Run

if TYPE_CHECKING:
    from collections.abc import Callable

WORDS, WIDTH, LENGTH, BATCH = 11, 6, 4, 6

BUILDERS: dict[str, Builder] = {}
"""Name of a training → what builds it."""


@dataclass(frozen=True)
class Builder:
    """A training, and the numbers of processes that it is for."""

    build: Callable[[int, int], Run]
    sizes: tuple[int, ...] = (2,)


def sharded(name, sizes=(2,)):
    """Register a training."""

    def register(build):
        BUILDERS[name] = Builder(build, sizes)
        return build

    return register


class Block(nn.Module):
    """Attention's place is taken by a mix over positions: what matters here is how weights are held."""

    def __init__(self, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, hidden)
        self.drop = nn.Dropout(0.1)
        self.down = nn.Linear(hidden, WIDTH)

    def forward(self, inputs):
        return inputs + self.down(self.drop(functional.gelu(self.up(self.norm(inputs)))))


class Net(nn.Module):
    """A little language model."""

    def __init__(self, words=WORDS, hidden=8, *, is_tied=False, extra=None):
        super().__init__()
        self.table = nn.Embedding(words, WIDTH)
        self.blocks = nn.ModuleList(Block(hidden) for _ in range(2))
        self.extra = nn.Identity() if extra is None else extra
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, words, bias=False)
        if is_tied:
            self.head.weight = self.table.weight

    def forward(self, words):
        hidden = self.table(words)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(self.extra(hidden)))


def make_words(index, seed=0):
    generator = torch.Generator().manual_seed(1000 * seed + index)
    return torch.randint(0, WORDS, (BATCH, LENGTH + 1), generator=generator)


def feed(rank):
    """Return the data of a rank: index → batch."""
    return functools.partial(make_words, seed=rank)


def loss_of(model, batch):
    found = model(batch[:, :-1])
    return functional.cross_entropy(found.flatten(0, 1), batch[:, 1:].flatten())


def step_with(model, optimizer, *, before=None, after=None):
    def step(batch, between):
        loss = loss_of(model, batch)
        loss.backward()
        if before is not None:
            before()
        between()
        optimizer.step()
        optimizer.zero_grad()
        if after is not None:
            after()
        return loss.detach()

    return step


def over_data(model, mesh=None, **options):
    """Shard a model as FSDP2 does."""
    mesh = mesh or init_device_mesh("cpu", (distributed.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def over_tensors(model, mesh, *, sequence=False):
    """Split the layers of a model over a mesh."""
    for block in model.blocks:
        parallelize_module(
            block,
            mesh,
            {
                "up": ColwiseParallel(input_layouts=Replicate()),
                "down": RowwiseParallel(output_layouts=Shard(1) if sequence else Replicate()),
                **({"norm": SequenceParallel()} if sequence else {}),
            }
            | ({"up": ColwiseParallel(input_layouts=Shard(1))} if sequence else {}),
        )
    plan = {
        "table": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Shard(1) if sequence else Replicate()
        ),
        "head": ColwiseParallel(
            input_layouts=Shard(1) if sequence else Replicate(), output_layouts=Replicate()
        ),
    }
    if sequence:
        plan["norm"] = SequenceParallel()
    return parallelize_module(model, mesh, plan)


def simple(model, optimizer, rank, parts=None, **options):
    return Run(
        {"model": model, "optimizer": optimizer, **(parts or {})},
        step_with(model, optimizer, **options),
        feed(rank),
    )


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), 0.01, **options)


# FSDP2.


@sharded("fsdp-adamw-foreach")
def fsdp_foreach(rank, size):
    model = over_data(Net())
    return simple(model, adamw(model, foreach=True), rank)


@sharded("fsdp-adamw-fused")
def fsdp_fused(rank, size):
    model = over_data(Net())
    return simple(model, adamw(model, fused=True, amsgrad=True), rank)


@sharded("fsdp-sgd")
def fsdp_sgd(rank, size):
    model = over_data(Net(), reshard_after_forward=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True)
    return simple(model, optimizer, rank)


@sharded("fsdp-optimizers")
def fsdp_optimizers(rank, size):
    model = over_data(Net())
    kinds = [torch.optim.RMSprop, torch.optim.NAdam, torch.optim.Adagrad, torch.optim.Adamax,
             torch.optim.RAdam, torch.optim.Adadelta, torch.optim.ASGD]  # fmt: skip
    params = list(model.parameters())
    optimizers = [kind(params[at :: len(kinds)], 0.01) for at, kind in enumerate(kinds)]

    def step(batch, between):
        loss = loss_of(model, batch)
        loss.backward()
        between()
        for one in optimizers:
            one.step()
            one.zero_grad()
        return loss.detach()

    return Run({"model": model, "optimizers": optimizers}, step, feed(rank))


@sharded("fsdp-accumulation")
def fsdp_accumulation(rank, size):
    model = over_data(Net())
    optimizer = adamw(model)

    def step(batch, between):
        halves = batch.chunk(2)
        model.set_requires_gradient_sync(requires_gradient_sync=False)
        loss_of(model, halves[0]).backward()
        model.set_requires_gradient_sync(requires_gradient_sync=True)
        between()
        loss = loss_of(model, halves[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Run({"model": model, "optimizer": optimizer}, step, feed(rank))


@sharded("fsdp-accumulation-over-steps")
def fsdp_accumulation_over_steps(rank, size):
    """Gradients are averaged at once, and added up over three steps of the run."""
    model = over_data(Net())
    optimizer = adamw(model)
    count = {"micro": 0}

    def step(batch, between):
        loss = loss_of(model, batch)
        (loss / 3).backward()
        between()
        count["micro"] += 1
        if count["micro"] % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    parts = {"model": model, "optimizer": optimizer, "count": count}
    return Run(parts, step, feed(rank), with_gradients=True)


@sharded("fsdp-keep-gradients")
def fsdp_keep_gradients(rank, size):
    model = over_data(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step(batch, between):
        loss = loss_of(model, batch)
        loss.backward()
        between()
        optimizer.step()
        for param in model.parameters():
            param.grad.mul_(0.5)
        return loss.detach()

    return Run({"model": model, "optimizer": optimizer}, step, feed(rank), with_gradients=True)


@sharded("fsdp-clip")
def fsdp_clip(rank, size):
    model = over_data(Net())

    def clip():
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1).full_tensor()

    return simple(model, adamw(model), rank, before=clip)


@sharded("fsdp-mixed")
def fsdp_mixed(rank, size):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = over_data(Net(), mp_policy=policy)
    return simple(model, adamw(model), rank)


@sharded("fsdp-bfloat16-masters")
def fsdp_masters(rank, size):
    """Weights in bfloat16, and the optimizer steps copies in fp32."""
    model = over_data(Net().bfloat16())
    params = list(model.parameters())
    masters = [nn.Parameter(param.detach().float()) for param in params]
    optimizer = torch.optim.AdamW(masters, 0.01)

    def step(batch, between):
        loss = loss_of(model, batch)
        loss.backward()
        for master, param in zip(masters, params, strict=True):
            master.grad = param.grad.float()
            param.grad = None
        between()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for master, param in zip(masters, params, strict=True):
                param.copy_(master)
        return loss.detach()

    parts = {"model": model, "optimizer": optimizer, "masters": masters}
    return Run(parts, step, feed(rank))


@sharded("fsdp-checkpointing")
def fsdp_checkpointing(rank, size):
    model = Net()
    model.blocks = nn.ModuleList(checkpoint_wrapper(block) for block in model.blocks)
    over_data(model)
    return simple(model, adamw(model), rank)


@sharded("fsdp-frozen")
def fsdp_frozen(rank, size):
    model = Net()
    model.table.requires_grad_(requires_grad=False)
    model.blocks[0].requires_grad_(requires_grad=False)
    over_data(model)
    params = [param for param in model.parameters() if param.requires_grad]
    return simple(model, torch.optim.AdamW(params, 0.01), rank)


@sharded("fsdp-tied")
def fsdp_tied(rank, size):
    model = over_data(Net(is_tied=True))
    return simple(model, adamw(model), rank)


@sharded("fsdp-compile")
def fsdp_compile(rank, size):
    model = Net()
    for block in model.blocks:
        block.compile()
    over_data(model)
    return simple(model, adamw(model), rank)


class Norms(nn.Module):
    """Batch norms, whose buffers every rank has of its own, and a buffer that no state dict has."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(LENGTH)
        self.register_buffer("last", torch.zeros(()), persistent=False)

    def forward(self, inputs):
        self.last = inputs.detach().mean()
        return self.norm(inputs)


@sharded("fsdp-batchnorm")
def fsdp_batchnorm(rank, size):
    model = over_data(Net(extra=Norms()))
    return simple(model, adamw(model), rank)


@sharded("fsdp-ema")
def fsdp_ema(rank, size):
    model = Net()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    over_data(model)
    over_data(average.module)
    return simple(
        model,
        adamw(model),
        rank,
        {"average": average},
        after=lambda: average.update_parameters(model),
    )


@sharded("fsdp-swa")
def fsdp_swa(rank, size):
    model = Net()
    average = AveragedModel(model, use_buffers=True)
    over_data(model)
    over_data(average.module)
    optimizer = adamw(model)
    swa = torch.optim.swa_utils.SWALR(optimizer, 0.02, anneal_epochs=4)

    def after():
        average.update_parameters(model)
        swa.step()

    return simple(model, optimizer, rank, {"average": average, "swa": swa}, after=after)


@sharded("fsdp-ema-by-hand")
def fsdp_ema_by_hand(rank, size):
    model = over_data(Net())
    average = {name: param.detach().clone() for name, param in model.named_parameters()}

    def after():
        for name, param in model.named_parameters():
            average[name].lerp_(param.detach(), 0.1)

    return simple(model, adamw(model), rank, {"average": average}, after=after)


@sharded("fsdp-schedulers")
def fsdp_schedulers(rank, size):
    model = over_data(Net())
    optimizer = adamw(model)
    schedulers = torch.optim.lr_scheduler
    one = schedulers.SequentialLR(
        optimizer,
        [
            schedulers.LinearLR(optimizer, 0.1, total_iters=4),
            schedulers.CosineAnnealingLR(optimizer, 9),
        ],
        [4],
    )
    return simple(model, optimizer, rank, {"scheduler": one}, after=one.step)


@sharded("fsdp-gan")
def fsdp_gan(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    maker = fully_shard(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4)), mesh=mesh)
    judge = fully_shard(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1)), mesh=mesh)
    optimizers = {"maker": adamw(maker), "judge": torch.optim.RMSprop(judge.parameters(), 0.01)}

    def step(batch, between):
        noise = torch.randn(len(batch), 3)
        loss = judge(maker(noise).detach()).mean() - judge(batch[:, :4].float()).mean()
        loss.backward()
        optimizers["judge"].step()
        optimizers["judge"].zero_grad()
        between()
        other = -judge(maker(noise)).mean()
        other.backward()
        optimizers["maker"].step()
        for one in optimizers.values():
            one.zero_grad()
        return loss.detach()

    parts = {"models": {"maker": maker, "judge": judge}, "optimizers": optimizers}
    return Run(parts, step, feed(rank))


@sharded("fsdp-groups")
def fsdp_groups(rank, size):
    model = over_data(Net())
    named = list(model.named_parameters())
    groups = [
        {"params": [p for n, p in named if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for n, p in named if p.ndim < 2], "weight_decay": 0.0, "lr": 0.002},
    ]
    optimizer = torch.optim.AdamW(groups, torch.tensor(0.01))
    return simple(model, optimizer, rank)


@sharded("fsdp-uneven", (2, 4))
def fsdp_uneven(rank, size):
    """Rows that do not divide, and fewer rows than ranks."""
    model = Net(words=WORDS + 2, hidden=3, extra=nn.Linear(WIDTH, WIDTH, bias=False))
    model.gain = nn.Parameter(torch.ones(1))
    inner = model.extra.forward
    model.extra.forward = lambda hidden: inner(hidden) * model.gain
    over_data(model)
    return simple(model, adamw(model), rank)


@sharded("fsdp-by-columns")
def fsdp_by_columns(rank, size):
    def place(param):
        return Shard(1) if param.ndim > 1 and param.shape[1] % size == 0 else Shard(0)

    model = over_data(Net(), shard_placement_fn=place)
    return simple(model, adamw(model), rank)


@sharded("fsdp-offload")
def fsdp_offload(rank, size):
    model = over_data(Net(), offload_policy=CPUOffloadPolicy(pin_memory=False))
    return simple(model, adamw(model), rank)


class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.randn(WIDTH // 2 + 1, 3, dtype=torch.complex64))

    def forward(self, waves):
        return waves @ self.mix


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.back = Mix(), nn.Linear(3, WIDTH)

    def forward(self, inputs):
        waves = torch.view_as_complex(
            torch.stack(
                [inputs[..., : WIDTH // 2 + 1], inputs[..., -(WIDTH // 2 + 1) :]], -1
            ).contiguous()
        )
        return inputs + self.back(self.mix(waves).abs())


@sharded("fsdp-complex")
def fsdp_complex(rank, size):
    model = Net(extra=Waves())
    fully_shard(model.extra.mix)
    over_data(model)
    return simple(model, adamw(model, foreach=False), rank)


class Gain(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.0))

    def forward(self, inputs):
        return inputs * self.gain


@sharded("fsdp-scalar")
def fsdp_scalar(rank, size):
    """A parameter of no dimension, which FSDP2 leaves alone."""
    model = Net(extra=Gain())
    gain = model.extra.gain
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model, ignored_params={gain})

    def average():
        distributed.all_reduce(gain.grad)
        gain.grad /= size

    return simple(model, adamw(model, foreach=False), rank, before=average)


@sharded("fsdp-unused")
def fsdp_unused(rank, size):
    """A layer that is used from the eighth step on only."""
    model = Net(extra=nn.Linear(WIDTH, WIDTH))
    count = {"calls": 0}
    inner = model.extra.forward

    def forward(hidden):
        return inner(hidden) if count["calls"] >= 7 else hidden

    model.extra.forward = forward
    over_data(model)

    def after():
        count["calls"] += 1

    return simple(model, adamw(model), rank, {"count": count}, after=after)


def fsdp_group_added(at, rank, size):
    """A layer is thawed, and its parameters added to the optimizer, after a step."""
    model = Net(extra=nn.Linear(WIDTH, WIDTH))
    over_data(model)
    model.extra.requires_grad_(requires_grad=False)
    params = [param for param in model.parameters() if param.requires_grad]
    optimizer = torch.optim.AdamW(params, 0.01)
    count = {"steps": 0}

    def after():
        count["steps"] += 1
        if count["steps"] == at:
            model.extra.requires_grad_(requires_grad=True)
            optimizer.add_param_group({"params": list(model.extra.parameters()), "lr": 0.02})

    return simple(model, optimizer, rank, {"count": count}, after=after)


sharded("fsdp-group-added")(functools.partial(fsdp_group_added, 3))
sharded("fsdp-group-added-late")(functools.partial(fsdp_group_added, 7))


@sharded("fsdp-loader")
def fsdp_loader(rank, size):
    model = over_data(Net())
    optimizer = adamw(model)
    words = torch.stack([make_words(index)[0] for index in range(50)])
    data = torch.utils.data.TensorDataset(words)
    sampler = torch.utils.data.distributed.DistributedSampler(data, size, rank, shuffle=True)
    loader = torch.utils.data.DataLoader(data, batch_size=5, sampler=sampler)
    inner = step_with(model, optimizer)
    parts = {"model": model, "optimizer": optimizer, "dataloader": loader}
    return Run(parts, lambda batch, between: inner(batch[0], between), loader=loader)


@sharded("fsdp-named-optimizer")
def fsdp_named(rank, size):
    """An optimizer over named parameters, and a value with DTensors of its own."""
    model = over_data(Net())
    optimizer = torch.optim.AdamW(model.named_parameters(), 0.01)
    return simple(model, optimizer, rank)


@sharded("fsdp-scaler")
def fsdp_scaler(rank, size):
    model = over_data(Net())
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)

    def step(batch, between):
        loss = loss_of(model, batch)
        scaler.scale(loss).backward()
        between()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    return Run({"model": model, "optimizer": optimizer, "scaler": scaler}, step, feed(rank))


@sharded("fsdp-muon")
def fsdp_muon(rank, size):
    model = over_data(Net())
    wide = [param for param in model.parameters() if param.ndim == 2]
    thin = [param for param in model.parameters() if param.ndim != 2]
    optimizers = [torch.optim.Muon(wide, 0.01), torch.optim.AdamW(thin, 0.01)]

    def step(batch, between):
        loss = loss_of(model, batch)
        loss.backward()
        between()
        for one in optimizers:
            one.step()
            one.zero_grad()
        return loss.detach()

    return Run({"model": model, "optimizers": optimizers}, step, feed(rank))


# DDP; with more than two ranks the order counts in which it sums.


@sharded("ddp-adamw", (2, 4))
def ddp_adamw(rank, size):
    model = DistributedDataParallel(Net())
    return simple(model, adamw(model), rank)


@sharded("ddp-sgd-frozen-tied", (2, 4))
def ddp_frozen(rank, size):
    model = Net(is_tied=True)
    model.blocks[0].requires_grad_(requires_grad=False)
    model = DistributedDataParallel(model, static_graph=True)
    params = [param for param in model.parameters() if param.requires_grad]
    run = simple(model, torch.optim.SGD(params, 0.05, momentum=0.9), rank)
    return replace(run, warm_up=lambda: loss_of(model, make_words(0)).backward())


@sharded("ddp-accumulation", (2, 4))
def ddp_accumulation(rank, size):
    """Gradients of the ranks' own are added up over three steps of the run, then averaged."""
    model = DistributedDataParallel(Net())
    optimizer = adamw(model)
    count = {"micro": 0}

    def step(batch, between):
        count["micro"] += 1
        is_last = count["micro"] % 3 == 0
        model.require_backward_grad_sync = is_last
        loss = loss_of(model, batch)
        (loss / 3).backward()
        between()
        if is_last:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    parts = {"model": model, "optimizer": optimizer, "count": count}
    return Run(parts, step, feed(rank), with_gradients=True)


@sharded("ddp-batchnorm-compile", (2, 4))
def ddp_batchnorm(rank, size):
    model = Net(extra=Norms())
    model = torch.compile(DistributedDataParallel(model), backend="eager")
    return simple(model, adamw(model), rank)


@sharded("ddp-buckets", (2, 4))
def ddp_buckets(rank, size):
    """Several buckets of several types, and gradients that are views of them."""
    model = Net(extra=Wide())
    model = DistributedDataParallel(model, bucket_cap_mb=0.0003, gradient_as_bucket_view=True)
    return simple(model, adamw(model), rank)


@sharded("ddp-unused", (4,))
def ddp_unused(rank, size):
    model = Net(extra=Spare())
    return simple(DistributedDataParallel(model, find_unused_parameters=True), adamw(model), rank)


@sharded("ddp-inside", (4,))
def ddp_inside(rank, size):
    """The checkpointer gets the model that is wrapped, and one that holds what is wrapped."""
    model, other = Net(), Net()
    wrapped = DistributedDataParallel(model)
    outer = nn.Sequential(DistributedDataParallel(other))
    optimizer = adamw(nn.ModuleList([model, other]))

    def step(batch, between):
        loss = loss_of(wrapped, batch) + loss_of(outer, batch)
        loss.backward()
        between()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Run({"models": [model, outer], "optimizer": optimizer}, step, feed(rank))


@sharded("ddp-power-sgd", (4,))
def ddp_power_sgd(rank, size):
    model = DistributedDataParallel(Net(extra=Wide()), bucket_cap_mb=0.0003)
    state = power_sgd.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5
    )
    model.register_comm_hook(state, _compress)
    run = simple(model, adamw(model), rank)
    return replace(run, parts={**run.parts, "power_sgd": state})


def _compress(state, bucket):
    """PowerSGD bucket by bucket: over gloo, with several at once, the hook waits for itself."""
    future = power_sgd.powerSGD_hook(state, bucket)
    future.wait()
    return future


class Wide(nn.Module):
    """Computes in another type."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH).double()

    def forward(self, hidden):
        return hidden + self.lin(hidden.double()).float()


class Spare(nn.Module):
    """Has parameters that nothing uses."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5))

    def forward(self, hidden):
        return hidden


# Tensor parallel.


@sharded("tp-adamw")
def tp_adamw(rank, size):
    model = over_tensors(Net(), init_device_mesh("cpu", (size,)))
    return simple(model, adamw(model), 0)


@sharded("tp-sequence")
def tp_sequence(rank, size):
    model = over_tensors(Net(), init_device_mesh("cpu", (size,)), sequence=True)
    return simple(model, adamw(model, fused=True), 0)


@sharded("tp-sgd-clip-tied")
def tp_sgd(rank, size):
    model = Net(is_tied=True)
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
    over_tensors(model, mesh, sequence=True)

    def clip():
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    return simple(model, optimizer, 0, before=clip)


@sharded("tp-sequence-sgd")
def tp_sequence_sgd(rank, size):
    model = over_tensors(Net(), init_device_mesh("cpu", (size,)), sequence=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    return simple(model, optimizer, 0)


@sharded("tp-sequence-muon")
def tp_sequence_muon(rank, size):
    """The momentum of an embedding is whole on every rank, its parameter is not; Muon sees the difference."""
    model = over_tensors(Net(), init_device_mesh("cpu", (size,)), sequence=True)
    for name, param in model.named_parameters():
        param.requires_grad_(name == "table.weight")
    return simple(model, torch.optim.Muon([model.table.weight], lr=0.05), 0)


@sharded("tp-accumulation")
def tp_accumulation(rank, size):
    """Gradients are added up over three steps of the run."""
    model = over_tensors(Net(), init_device_mesh("cpu", (size,)), sequence=True)
    optimizer = adamw(model)
    count = {"micro": 0}

    def step(batch, between):
        loss = loss_of(model, batch)
        (loss / 3).backward()
        between()
        count["micro"] += 1
        if count["micro"] % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    parts = {"model": model, "optimizer": optimizer, "count": count}
    return Run(parts, step, feed(0), with_gradients=True)


# Two dimensions.


def make_grid(size, names):
    return init_device_mesh("cpu", (2, size // 2), mesh_dim_names=names)


@sharded("fsdp-tp", (2, 4))
def fsdp_tp(rank, size):
    mesh = make_grid(size, ("dp", "tp"))
    model = over_tensors(Net(), mesh["tp"])
    over_data(model, mesh["dp"])
    return simple(model, adamw(model), rank // (size // 2))


@sharded("fsdp-tp-sequence", (2, 4))
def fsdp_tp_sequence(rank, size):
    mesh = make_grid(size, ("dp", "tp"))
    model = over_tensors(Net(words=WORDS + 2), mesh["tp"], sequence=True)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    over_data(model, mesh["dp"], mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, fused=True)

    def clip():
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    return simple(model, optimizer, rank // (size // 2), before=clip)


@sharded("tp-fsdp", (2, 4))
def tp_fsdp(rank, size):
    """The dimensions of the mesh the other way round."""
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
    model = over_tensors(Net(), mesh["tp"])
    over_data(model, mesh["dp"])
    return simple(model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), rank // 2)


@sharded("hsdp", (2, 4))
def hsdp(rank, size):
    model = over_data(Net(), make_grid(size, ("replicate", "shard")))
    return simple(model, adamw(model), rank)


@sharded("hsdp-accumulation", (4,))
def hsdp_accumulation(rank, size):
    model = over_data(Net(), make_grid(size, ("replicate", "shard")))
    optimizer = adamw(model, fused=True)

    def step(batch, between):
        halves = batch.chunk(2)
        model.set_requires_all_reduce(requires_all_reduce=False)
        loss_of(model, halves[0]).backward()
        model.set_requires_all_reduce(requires_all_reduce=True)
        between()
        loss = loss_of(model, halves[1])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Run({"model": model, "optimizer": optimizer}, step, feed(rank))


@sharded("replicas-tp", (4,))
def replicas_tp(rank, size):
    from torch.distributed._composable.replicate_with_fsdp import replicate

    mesh = make_grid(size, ("dp", "tp"))
    model = over_tensors(Net(), mesh["tp"])
    for block in model.blocks:
        replicate(block, mesh=mesh["dp"])
    model = replicate(model, mesh=mesh["dp"])
    return simple(model, adamw(model), rank // (size // 2))

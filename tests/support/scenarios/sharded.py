"""Trainings over several processes: layouts of a model, and what people do besides; see ``sharded_runs``.

``BUILDERS`` has for each a function of the rank and the number of ranks that builds a ``Run``, on every rank
alike: ``build``, told what is out of the ordinary, or one of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

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
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from support.training_runs import Run

WORDS, WIDTH, LENGTH, BATCH = 11, 6, 4, 6


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
    return partial(make_words, seed=rank)


class Norms(nn.Module):
    """Batch norms, whose buffers every rank has of its own, and a buffer that no state dict has."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(LENGTH)
        self.register_buffer("last", torch.zeros(()), persistent=False)

    def forward(self, inputs):
        self.last = inputs.detach().mean()
        return self.norm(inputs)


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


class Gain(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.0))

    def forward(self, inputs):
        return inputs * self.gain


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


def loss_of(model, batch):
    logits = model(batch[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


# Where the parameters lie: (model, number of ranks) → model.


def over_data(model, _size=None, mesh=None, **options):
    """Shard a model as FSDP2 does."""
    mesh = mesh or init_device_mesh("cpu", (distributed.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def over_tensors(model, mesh, *, sequence=False):
    """Split the layers of a model over a mesh."""
    inside = Shard(1) if sequence else Replicate()
    norm = {"norm": SequenceParallel()} if sequence else {}
    for block in model.blocks:
        up = ColwiseParallel(input_layouts=inside)
        plan = {"up": up, "down": RowwiseParallel(output_layouts=inside), **norm}
        parallelize_module(block, mesh, plan)
    table = RowwiseParallel(input_layouts=Replicate(), output_layouts=inside)
    head = ColwiseParallel(input_layouts=inside, output_layouts=Replicate())
    return parallelize_module(model, mesh, {"table": table, "head": head, **norm})


def over_all(model, size, *, names=None, **options):
    return over_tensors(model, init_device_mesh("cpu", (size,), mesh_dim_names=names), **options)


def over_columns(model, size):
    def place(param):
        return Shard(1) if param.ndim > 1 and param.shape[1] % size == 0 else Shard(0)

    return over_data(model, shard_placement_fn=place)


def make_grid(size, names=("dp", "tp")):
    return init_device_mesh("cpu", (2, size // 2), mesh_dim_names=names)


def over_both(model, size, *, sequence=False, mesh=None, **options):
    mesh = make_grid(size) if mesh is None else mesh
    model = over_tensors(model, mesh["tp"], sequence=sequence)
    return over_data(model, mesh=mesh["dp"], **options)


def over_both_turned(model, size):
    """The dimensions of the mesh the other way round."""
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
    return over_both(model, size, mesh=mesh)


def over_replicas_of_shards(model, size):
    return over_data(model, mesh=make_grid(size, ("replicate", "shard")))


def over_replicas_of_tensors(model, size):
    from torch.distributed._composable.replicate_with_fsdp import replicate

    mesh = make_grid(size)
    model = over_tensors(model, mesh["tp"])
    for block in model.blocks:
        replicate(block, mesh=mesh["dp"])
    return replicate(model, mesh=mesh["dp"])


def over_replicas(model, _size, **options):
    return DistributedDataParallel(model, **options)


def over_compiled_replicas(model, _size):
    return torch.compile(DistributedDataParallel(model), backend="eager")


# What steps them: model → optimizer, or several.


def list_trained(model):
    return [param for param in model.parameters() if param.requires_grad]


def adamw(model, **options):
    return torch.optim.AdamW(list_trained(model), 0.01, **options)


def sgd(model, lr=0.05, momentum=0.9, **options):
    return torch.optim.SGD(list_trained(model), lr, momentum=momentum, **options)


def make_seven(model):
    kinds = [torch.optim.RMSprop, torch.optim.NAdam, torch.optim.Adagrad, torch.optim.Adamax,
             torch.optim.RAdam, torch.optim.Adadelta, torch.optim.ASGD]  # fmt: skip
    params = list(model.parameters())
    return [kind(params[at :: len(kinds)], 0.01) for at, kind in enumerate(kinds)]


def make_groups(model):
    params = list(model.parameters())
    groups = [
        {"params": [p for p in params if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0, "lr": 0.002},
    ]
    return torch.optim.AdamW(groups, torch.tensor(0.01))


def make_named(model):
    return torch.optim.AdamW(model.named_parameters(), 0.01)


def make_muon(model):
    wide = [param for param in model.parameters() if param.ndim == 2]
    thin = [param for param in model.parameters() if param.ndim != 2]
    return [torch.optim.Muon(wide, 0.01), torch.optim.AdamW(thin, 0.01)]


def make_muon_of_table(model):
    """The momentum of an embedding is whole on every rank, its parameter is not; Muon sees the difference."""
    for name, param in model.named_parameters():
        param.requires_grad_(name == "table.weight")
    return torch.optim.Muon([model.table.weight], lr=0.05)


def make_without_extra(model):
    model.extra.requires_grad_(requires_grad=False)
    return adamw(model)


# What people do before a model is placed: model → what ``also`` gets.


def recompute(model):
    model.blocks = nn.ModuleList(checkpoint_wrapper(block) for block in model.blocks)


def freeze(model, *, table=True):
    model.blocks[0].requires_grad_(requires_grad=False)
    if table:
        model.table.requires_grad_(requires_grad=False)


def compile_blocks(model):
    for block in model.blocks:
        block.compile()


def leave_extra_until_the_eighth(model):
    count, inner = {"calls": 0}, model.extra.forward
    model.extra.forward = lambda hidden: inner(hidden) if count["calls"] >= 7 else hidden
    return count


def add_gain(model):
    """Give it a parameter that is smaller than the number of ranks."""
    model.gain, inner = nn.Parameter(torch.ones(1)), model.extra.forward
    model.extra.forward = lambda hidden: inner(hidden) * model.gain


def shard_mix(model):
    fully_shard(model.extra.mix)


# What a run has besides: (model, optimizer, what was prepared) → more parts, and what follows a step.


def keep_average(model, _optimizer, average):
    over_data(average.module)
    return {"average": average}, lambda: average.update_parameters(model)


def keep_stochastic_average(model, optimizer, average):
    parts, update = keep_average(model, optimizer, average)
    swa = torch.optim.swa_utils.SWALR(optimizer, 0.02, anneal_epochs=4)
    return {**parts, "swa": swa}, lambda: (update(), swa.step())


def keep_average_by_hand(model, _optimizer, _made):
    average = {name: param.detach().clone() for name, param in model.named_parameters()}

    def update():
        for name, param in model.named_parameters():
            average[name].lerp_(param.detach(), 0.1)

    return {"average": average}, update


def schedule(_model, optimizer, _made):
    warm_up = schedulers.LinearLR(optimizer, 0.1, total_iters=4)
    cosine = schedulers.CosineAnnealingLR(optimizer, 9)
    scheduler = schedulers.SequentialLR(optimizer, [warm_up, cosine], [4])
    return {"scheduler": scheduler}, scheduler.step


def count_calls(_model, _optimizer, count):
    return {"count": count}, lambda: count.update(calls=count["calls"] + 1)


def add_extra(at):
    """Thaw a layer, and add its parameters to the optimizer, after a step."""

    def thaw(model, optimizer, _made):
        count = {"steps": 0}

        def after():
            count["steps"] += 1
            if count["steps"] == at:
                model.extra.requires_grad_(requires_grad=True)
                group = {"params": list(model.extra.parameters()), "lr": 0.02}
                optimizer.add_param_group(group)

        return {"count": count}, after

    return thaw


def compress(model, _optimizer, _made):
    state = power_sgd.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5
    )
    model.register_comm_hook(state, _compress)
    return {"power_sgd": state}, None


def _compress(state, bucket):
    """PowerSGD bucket by bucket: over gloo, with several at once, the hook waits for itself."""
    future = power_sgd.powerSGD_hook(state, bucket)
    future.wait()
    return future


# Runs.


def build(
    rank, size, *, net=Net, prepare=None, place=over_data, optimize=adamw, also=None, seen=None, **steps
):  # fmt: skip
    """Build a run; ``seen`` says whose data a rank has, ``steps`` what is special about a step."""
    model = net()
    made = None if prepare is None else prepare(model)
    placed = place(model, size)
    optimizers = optimize(placed)
    more, after = ({}, None) if also is None else also(placed, optimizers, made)
    warm_up = None
    if steps.pop("warms_up", False):
        warm_up = lambda: loss_of(placed, make_words(0)).backward()  # noqa: E731
    step = Step(placed, optimizers, after=after, **steps)
    parts = {"model": placed, "optimizer": optimizers, **more}
    if step.over > 1:
        parts["count"] = step.count
    data = feed(rank if seen is None else seen(rank, size))
    with_gradients = step.over > 1 or step.decay > 0
    return Run(parts, step, data, with_gradients=with_gradients, warm_up=warm_up)


@dataclass
class Step:
    """A step of a run.

    Attributes:
        over: gradients are added up over so many steps of the run.
        halves: the name of what a model is told not to do after the first half of a batch.
        decay: gradients live on, and are multiplied by this.
        clip: the largest norm.
        before: called between backward pass and step.
        after: called in the end.
    """

    model: Any
    optimizers: Any
    over: int = 1
    halves: str = ""
    decay: float = 0
    clip: float = 0
    before: Any = None
    after: Any = None

    def __post_init__(self):
        self.count = {"micro": 0}

    def __call__(self, batch, between):
        self.count["micro"] += 1
        is_last = self.count["micro"] % self.over == 0
        if self.over > 1 and hasattr(self.model, "require_backward_grad_sync"):
            self.model.require_backward_grad_sync = is_last
        if self.halves:
            set_synced = getattr(self.model, f"set_{self.halves}")
            first, batch = batch.chunk(2)
            set_synced(False)
            loss_of(self.model, first).backward()
            set_synced(True)
        loss = loss_of(self.model, batch)
        (loss / self.over).backward()
        if self.before is not None:
            self.before(self.model)
        between()
        if is_last:
            self.take()
        if self.after is not None:
            self.after()
        return loss.detach()

    def take(self):
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        several = isinstance(self.optimizers, list)
        for optimizer in self.optimizers if several else [self.optimizers]:
            optimizer.step()
            if not self.decay:
                optimizer.zero_grad()
        for param in self.model.parameters() if self.decay else ():
            param.grad.mul_(self.decay)


def average_gain(model):
    gain = model.extra.gain
    distributed.all_reduce(gain.grad)
    gain.grad /= distributed.get_world_size()


def leave_gain(model, _size):
    """FSDP2 leaves a parameter of no dimension alone."""
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model, ignored_params={model.extra.gain})


def build_masters(rank, size):
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


def build_gan(rank, size):
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
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        return loss.detach()

    parts = {"models": {"maker": maker, "judge": judge}, "optimizers": optimizers}
    return Run(parts, step, feed(rank))


def build_with_loader(rank, size):
    run = build(rank, size)
    data = torch.utils.data.TensorDataset(torch.stack([make_words(at)[0] for at in range(50)]))
    sampler = torch.utils.data.distributed.DistributedSampler(data, size, rank, shuffle=True)
    loader = torch.utils.data.DataLoader(data, batch_size=5, sampler=sampler)
    parts = {**run.parts, "dataloader": loader}
    return Run(parts, lambda batch, between: run.step(batch[0], between), loader=loader)


def build_with_scaler(rank, size):
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


def build_inside(rank, size):
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


@dataclass(frozen=True)
class Builder:
    """A training, and the numbers of processes that it is for."""

    build: Any
    sizes: tuple[int, ...] = (2,)


def make_linear():
    return Net(extra=nn.Linear(WIDTH, WIDTH))


def make_average(model):
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))


TIED = partial(Net, is_tied=True)
MIXED = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
FSDP = {
    "adamw-foreach": {"optimize": partial(adamw, foreach=True)},
    "adamw-fused": {"optimize": partial(adamw, fused=True, amsgrad=True)},
    "sgd": {"place": partial(over_data, reshard_after_forward=False), "optimize": partial(sgd, nesterov=True)},
    "optimizers": {"optimize": make_seven},
    "accumulation": {"halves": "requires_gradient_sync"},
    "accumulation-over-steps": {"over": 3},
    "keep-gradients": {"optimize": partial(sgd, lr=0.01, momentum=0), "decay": 0.5},
    "clip": {"clip": 0.1},
    "mixed": {"place": partial(over_data, **MIXED)},
    "bfloat16-masters": build_masters,
    "checkpointing": {"prepare": recompute},
    "frozen": {"prepare": freeze},
    "tied": {"net": TIED},
    "compile": {"prepare": compile_blocks},
    "batchnorm": {"net": lambda: Net(extra=Norms())},
    "ema": {"prepare": make_average, "also": keep_average},
    "swa": {"prepare": partial(AveragedModel, use_buffers=True), "also": keep_stochastic_average},
    "ema-by-hand": {"also": keep_average_by_hand},
    "schedulers": {"also": schedule},
    "gan": build_gan,
    "groups": {"optimize": make_groups},
    "by-columns": {"place": over_columns},
    "offload": {"place": partial(over_data, offload_policy=CPUOffloadPolicy(pin_memory=False))},
    "complex": {
        "net": lambda: Net(extra=Waves()), "prepare": shard_mix, "optimize": partial(adamw, foreach=False),
    },
    "scalar": {
        "net": lambda: Net(extra=Gain()), "place": leave_gain, "before": average_gain,
        "optimize": partial(adamw, foreach=False),
    },
    "unused": {"net": make_linear, "prepare": leave_extra_until_the_eighth, "also": count_calls},
    "group-added": {"net": make_linear, "optimize": make_without_extra, "also": add_extra(3)},
    "group-added-late": {"net": make_linear, "optimize": make_without_extra, "also": add_extra(7)},
    "loader": build_with_loader,
    "named-optimizer": {"optimize": make_named},
    "scaler": build_with_scaler,
    "muon": {"optimize": make_muon},
}  # fmt: skip
TENSORS = {
    "tp-adamw": {"place": over_all},
    "tp-sequence": {"place": partial(over_all, sequence=True), "optimize": partial(adamw, fused=True)},
    "tp-sgd-clip-tied": {
        "net": TIED, "place": partial(over_all, sequence=True, names=("tp",)), "optimize": sgd, "clip": 0.1,
    },
    "tp-sequence-sgd": {"place": partial(over_all, sequence=True), "optimize": sgd},
    "tp-sequence-muon": {"place": partial(over_all, sequence=True), "optimize": make_muon_of_table},
    "tp-accumulation": {"place": partial(over_all, sequence=True), "over": 3},
}  # fmt: skip
# With more than two ranks the order counts in which DDP sums.
ANY_SIZE = {
    "fsdp-uneven": {  # rows that do not divide, and fewer rows than ranks
        "net": lambda: Net(words=WORDS + 2, hidden=3, extra=nn.Linear(WIDTH, WIDTH, bias=False)), "prepare": add_gain,
    },
    "ddp-adamw": {"place": over_replicas},
    "ddp-sgd-frozen-tied": {
        "net": TIED, "prepare": partial(freeze, table=False), "place": partial(over_replicas, static_graph=True),
        "optimize": sgd, "warms_up": True,
    },
    "ddp-accumulation": {"place": over_replicas, "over": 3, "clip": 0.5},
    "ddp-batchnorm-compile": {"net": lambda: Net(extra=Norms()), "place": over_compiled_replicas},
    "ddp-buckets": {  # several of several types, and gradients that are views of them
        "net": lambda: Net(extra=Wide()),
        "place": partial(over_replicas, bucket_cap_mb=0.0003, gradient_as_bucket_view=True),
    },
    "fsdp-tp": {"place": over_both, "seen": lambda rank, size: rank // (size // 2)},
    "fsdp-tp-sequence": {
        "net": partial(Net, words=WORDS + 2), "place": partial(over_both, sequence=True, **MIXED),
        "optimize": partial(adamw, fused=True), "clip": 0.1, "seen": lambda rank, size: rank // (size // 2),
    },
    "tp-fsdp": {"place": over_both_turned, "optimize": sgd, "seen": lambda rank, _: rank // 2},
    "hsdp": {"place": over_replicas_of_shards},
}  # fmt: skip
FOUR = {
    "ddp-unused": {
        "net": lambda: Net(extra=Spare()), "place": partial(over_replicas, find_unused_parameters=True),
    },
    "ddp-inside": build_inside,
    "ddp-power-sgd": {
        "net": lambda: Net(extra=Wide()), "place": partial(over_replicas, bucket_cap_mb=0.0003), "also": compress,
    },
    "hsdp-accumulation": {
        "place": over_replicas_of_shards, "optimize": partial(adamw, fused=True), "halves": "requires_all_reduce",
        "clip": 0.1,
    },
    "replicas-tp": {"place": over_replicas_of_tensors, "seen": lambda rank, size: rank // (size // 2)},
}  # fmt: skip


def _list_builders():
    fsdp = {f"fsdp-{name}": how for name, how in FSDP.items()}
    tensors = {name: {**how, "seen": lambda *_: 0} for name, how in TENSORS.items()}
    for table, sizes in ((fsdp | tensors, (2,)), (ANY_SIZE, (2, 4)), (FOUR, (4,))):
        for name, how in table.items():
            yield name, Builder(how if callable(how) else partial(build, **how), sizes)


BUILDERS = dict(_list_builders())
"""Name of a training → what builds it."""

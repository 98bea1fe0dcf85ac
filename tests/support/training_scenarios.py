"""The trainings of ``support.training_runs``: one of each kind of object that people train with."""

from __future__ import annotations

import functools
import json.decoder
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset

from support.training_runs import Run

WIDTH = 8
BATCH = 6


@dataclass
class Scenario:
    """A training, or several that take their steps in turn.

    Attributes:
        rewinds: whether its data goes back with a rollback.
        builds: name → makes a run.
    """

    rewinds: bool = True
    builds: dict[str, Any] = field(default_factory=dict)

    def build(self):
        runs = {name: build() for name, build in self.builds.items()}
        return next(iter(runs.values())) if len(runs) == 1 else _join(runs)


SCENARIOS: dict[str, Scenario] = {}


def scenario(name, *, beside=None, rewinds=True, when=True):
    """Name a training; those beside one another share one checkpointer, which costs less."""

    def take(build):
        if when:
            SCENARIOS.setdefault(beside or name, Scenario(rewinds)).builds[name] = build
        return build

    return take


def _join(runs):
    """Return one run whose step takes a step of each."""

    def step(batch, between):
        losses = {}
        for name, run in runs.items():
            losses[name] = run.step(batch, _nothing if len(losses) + 1 < len(runs) else between)
        return sum(losses.values())

    parts = {name.replace("-", "_"): run.parts for name, run in runs.items()}
    also = {f"{name} besides": run.also for name, run in runs.items() if run.also}
    return Run(parts, step, windows, also=also)


def _nothing():
    return None


# Data: the bytes of Python's own sources.


@functools.cache
def read_text():
    data = Path(json.decoder.__file__).read_bytes()
    return torch.tensor(list(data), dtype=torch.uint8)


def windows(index, *, size=BATCH, width=WIDTH):
    """Return inputs (size, width) in 0..1 and the bytes that follow, of batch number ``index``."""
    text = read_text()
    starts = (torch.arange(size) + index * size) * 37 % (len(text) - width - 1)
    rows = torch.stack([text[start : start + width + 1] for start in starts.tolist()])
    return rows[:, :-1].float() / 128, (rows[:, -1] % 4).long()


class Windows(Dataset):
    """Batch elements of the text, changed by random augmentation where asked."""

    def __init__(self, count=40, augment=False):
        self.count = count
        self.augment = augment

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        inputs, targets = windows(index, size=1)
        if self.augment:
            inputs = inputs + random.random() + torch.rand(()) + float(np.random.rand())
        return inputs[0], targets[0]


# Steps.


def make_net(*, norm=True, dropout=0.2):
    layers = [nn.Linear(WIDTH, 12), nn.BatchNorm1d(12) if norm else nn.LayerNorm(12), nn.GELU()]
    return nn.Sequential(*layers, nn.Dropout(dropout), nn.Linear(12, 4))


def loss_of(model, batch):
    inputs, targets = batch
    return functional.cross_entropy(model(inputs), targets)


def make_step(model, optimizers, *, schedulers=(), after=None):
    """Return one ordinary step."""
    optimizers = optimizers if isinstance(optimizers, (list, tuple)) else [optimizers]

    def step(batch, between):
        for one in optimizers:
            one.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        between()
        for one in optimizers:
            one.step()
        for one in schedulers:
            one.step(loss.item()) if isinstance(one, lr_scheduler.ReduceLROnPlateau) else one.step()
        if after is not None:
            after()
        return loss.item()

    return step


def simple(model, optimizer, **parts):
    return Run(
        {"model": model, "optimizer": optimizer, **parts}, make_step(model, optimizer), windows
    )


def _with_optimizer(make):
    def build():
        model = make_net()
        return simple(model, make(model.parameters()))

    return build


# Optimizers.

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "sgd-momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "adamw-plain": lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "amsgrad": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True, weight_decay=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, 0.01),
    "rprop": lambda p: torch.optim.Rprop(p, 0.01),
    "tensor-lr": lambda p: torch.optim.AdamW(p, torch.tensor(0.01), foreach=False),
}
for _name, _make in OPTIMIZERS.items():
    scenario(_name, beside="optimizers")(_with_optimizer(_make))


@scenario("lbfgs", beside="special-optimizers")
def lbfgs():
    model = make_net(norm=False, dropout=0.0)
    optimizer = torch.optim.LBFGS(model.parameters(), 0.5, max_iter=3, history_size=4)

    def step(batch, between):
        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            between()
            return loss

        return optimizer.step(closure).item()

    return Run({"model": model, "optimizer": optimizer}, step, windows)


@scenario("muon", beside="special-optimizers", when=hasattr(torch.optim, "Muon"))
def muon():
    model = make_net()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    pair = [torch.optim.Muon(matrices, 0.02), torch.optim.AdamW(others, 0.01)]
    return Run({"model": model, "optimizers": pair}, make_step(model, pair), windows)


class SignDescent(torch.optim.Optimizer):
    """An optimizer of the user's: state of tensors, numbers and lists, and an attribute."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr, "beta": 0.9})
        self.steps_taken = 0

    @torch.no_grad()
    def step(self):
        self.steps_taken += 1
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param]
                if not state:
                    state.update(
                        mean=torch.zeros_like(param, dtype=torch.float64), count=0, norms=[]
                    )
                state["mean"].lerp_(param.grad.double(), 1 - group["beta"])
                state["count"] += 1
                state["norms"] = [*state["norms"][-3:], param.grad.norm().item()]
                lr = group["lr"] / (1 + self.steps_taken / 10) * (1 + sum(state["norms"]))
                param.sub_((state["mean"].sign() * lr).to(param.dtype))

    def state_dict(self):
        return {**super().state_dict(), "steps_taken": self.steps_taken}

    def load_state_dict(self, state_dict):
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "steps_taken"})
        self.steps_taken = state_dict["steps_taken"]


@scenario("custom-optimizer", beside="special-optimizers")
def custom_optimizer():
    model = make_net()
    return simple(model, SignDescent(model.parameters(), 0.01))


@scenario("sparse-adam", beside="special-optimizers")
def sparse_adam():
    table = nn.Embedding(256, 4, sparse=True)
    head = nn.Linear(4, 4)
    model = nn.ModuleDict({"table": table, "head": head})
    pair = {
        "sparse": torch.optim.SparseAdam(table.parameters(), 0.05),
        "dense": torch.optim.Adam(head.parameters(), 0.05),
    }

    def step(batch, between):
        inputs, targets = batch
        for one in pair.values():
            one.zero_grad()
        loss = functional.cross_entropy(head(table((inputs * 128).long()).mean(1)), targets)
        loss.backward()
        pair["sparse"].step()  # killed with one of two steps taken
        between()
        pair["dense"].step()
        return loss.item()

    return Run({"model": model, "optimizers": pair}, step, windows)


# Schedulers.

SCHEDULERS = {
    "onecycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=24),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "warm-restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=1, cooldown=1),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, 0.1, total_iters=7), lr_scheduler.ExponentialLR(o, 0.8)],
        milestones=[7],
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.2, 8), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=4),
}


def _with_scheduler(make):
    def build():
        model = make_net(norm=False)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        scheduler = make(optimizer)
        step = make_step(model, optimizer, schedulers=[scheduler])
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        return Run(parts, step, windows)

    return build


for _name, _make in SCHEDULERS.items():
    scenario(_name, beside="schedulers")(_with_scheduler(_make))


# What happens between backward and step.


@scenario("grad-scaler")
def grad_scaler():
    model = make_net()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=2)
    skipped = {"steps": 0}

    def step(batch, between):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        # Every third batch overflows by itself, and the scale is far too large at first.
        scaler.scale(loss * (1e6 if int(batch[1].sum()) % 3 == 0 else 1)).backward()
        between()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped["steps"] += scaler.get_scale() < before
        return loss.item()

    parts = {"model": model, "optimizer": optimizer, "scaler": scaler, "skipped": skipped}
    return Run(parts, step, windows)


@scenario("accumulation")
def accumulation():
    model = make_net()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    micro = {"count": 0}

    def step(batch, between):
        loss = loss_of(model, batch)
        (loss / 4).backward()
        micro["count"] += 1
        between()
        if micro["count"] == 4:
            optimizer.step()
            optimizer.zero_grad()
            micro["count"] = 0
        return loss.item()

    parts = {"model": model, "optimizer": optimizer, "micro": micro}
    return Run(parts, step, windows, with_gradients=True)


@scenario("bf16-autocast", beside="precision")
def bf16_autocast():
    model = make_net(norm=False)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)

    def step(batch, between):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, batch)
        loss.backward()
        between()
        optimizer.step()
        return loss.item()

    return Run({"model": model, "optimizer": optimizer}, step, windows)


@scenario("bf16-masters", beside="precision")
def bf16_masters():
    """16-bit weights with 32-bit masters, which the optimizer knows and the model does not."""
    model = make_net(norm=False).bfloat16()
    masters = [nn.Parameter(p.detach().float().clone()) for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, 0.01)

    def step(batch, between):
        model.zero_grad()
        loss = functional.cross_entropy(model(batch[0].bfloat16()), batch[1])
        loss.backward()
        for master, param in zip(masters, model.parameters(), strict=True):
            master.grad = param.grad.float()
        between()
        optimizer.step()
        with torch.no_grad():
            for master, param in zip(masters, model.parameters(), strict=True):
                param.copy_(master)
        return loss.item()

    plain = [master.detach() for master in masters]
    return Run({"model": model, "optimizer": optimizer, "masters": plain}, step, windows)


@scenario("bf16-model", beside="precision")
def bf16_model():
    model = make_net(norm=False).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    step = make_step(lambda x: model(x.bfloat16()), optimizer)
    return Run({"model": model, "optimizer": optimizer}, step, windows)


@scenario("checkpointed-activations", beside="precision")
def checkpointed_activations():
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    forward = functools.partial(torch.utils.checkpoint.checkpoint, model, use_reentrant=False)
    return Run({"model": model, "optimizer": optimizer}, make_step(forward, optimizer), windows)


# Models.


@scenario("ema-averaged-model", beside="averages")
def ema_averaged():
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    step = make_step(model, optimizer, after=lambda: ema.update_parameters(model))
    return Run({"model": model, "optimizer": optimizer, "ema": ema}, step, windows)


@scenario("swa", beside="averages")
def swa():
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    average = AveragedModel(model)
    scheduler = SWALR(optimizer, swa_lr=0.01, anneal_epochs=5)
    step = make_step(
        model, optimizer, schedulers=[scheduler], after=lambda: average.update_parameters(model)
    )
    parts = {"model": model, "optimizer": optimizer, "swa": average, "scheduler": scheduler}
    return Run(parts, step, windows)


class HandmadeEma:
    """An average of the user's, with a state of its own."""

    def __init__(self, model):
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.updates = 0

    def update(self, model):
        self.updates += 1
        decay = min(0.99, (1 + self.updates) / (10 + self.updates))
        for name, param in model.named_parameters():
            self.shadow[name] = self.shadow[name].lerp(param.detach(), 1 - decay)

    def state_dict(self):
        return {"shadow": self.shadow, "updates": self.updates}

    def load_state_dict(self, state_dict):
        self.shadow = dict(state_dict["shadow"])
        self.updates = state_dict["updates"]


@scenario("ema-handmade", beside="averages")
def ema_handmade():
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    ema = HandmadeEma(model)
    values = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update():
        ema.update(model)
        for name, param in model.named_parameters():
            values[name].lerp_(param.detach(), 0.1)

    step = make_step(model, optimizer, after=update)
    parts = {"model": model, "optimizer": optimizer, "ema": ema, "ema_values": values}
    return Run(parts, step, windows)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(256, 6)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 256, bias=False)
        self.head.weight = self.table.weight

    def forward(self, inputs):
        return self.head(self.mix(self.table((inputs * 128).long()).mean(1)))[:, :4]


@scenario("tied-embeddings", beside="models")
def tied_embeddings():
    model = Tied()
    return simple(model, torch.optim.Adam(model.parameters(), 0.01))


@scenario("frozen-then-trained", beside="models")
def frozen_then_trained():
    model = make_net()
    model[0].requires_grad_(requires_grad=False)
    model[1].eval()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    inner = make_step(model, optimizer)
    steps = {"done": 0}

    def step(batch, between):
        if steps["done"] == 7:
            model[0].requires_grad_(requires_grad=True)
            model[1].train()
        steps["done"] += 1
        return inner(batch, between)

    return Run({"model": model, "optimizer": optimizer, "steps": steps}, step, windows)


class Branching(nn.Module):
    """Uses its second layer from the eighth call on."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 4), nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs):
        self.calls += 1
        hidden = self.first(inputs)
        return self.second(hidden) if self.calls > 7 else hidden


@scenario("lazily-created-state", beside="models")
def lazily_created_state():
    model = Branching()
    return simple(model, torch.optim.Adam(model.parameters(), 0.01))


class Remembering(nn.Module):
    """Has buffers that are in no state dict, one of which is made late."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, 4)
        self.register_buffer("mean", torch.zeros(WIDTH), persistent=False)
        self.register_buffer("late", None, persistent=False)

    def forward(self, inputs):
        with torch.no_grad():
            self.mean.lerp_(inputs.mean(0), 0.1)
            if self.late is None:
                self.late = inputs.mean(0)
        return self.inner(inputs - self.mean + self.late)


@scenario("non-persistent-buffer", beside="models")
def non_persistent_buffer():
    model = Remembering()
    return simple(model, torch.optim.SGD(model.parameters(), 0.1))


@scenario("spectral-norm", beside="models")
def spectral_norm():
    model = make_net()
    nn.utils.parametrizations.spectral_norm(model[0])
    nn.utils.parametrizations.weight_norm(model[4])
    return simple(model, torch.optim.SGD(model.parameters(), 0.1))


@scenario("lstm", beside="models")
def lstm():
    inner = nn.LSTM(1, 4, num_layers=2, dropout=0.3)
    model = nn.ModuleDict({"inner": inner})
    optimizer = torch.optim.RMSprop(model.parameters(), 0.01, centered=True)
    carried = [torch.zeros(2, BATCH, 4), torch.zeros(2, BATCH, 4)]

    def forward(inputs):
        outputs, state = inner(inputs.T.unsqueeze(-1), tuple(one.clone() for one in carried))
        for mine, new in zip(carried, state, strict=True):
            mine.copy_(new.detach())
        return outputs[-1]

    parts = {"model": model, "optimizer": optimizer, "carried": carried}
    return Run(parts, make_step(forward, optimizer), windows)


@scenario("channels-last", beside="models")
def channels_last():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4)
    ).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)

    def forward(inputs):
        image = inputs.repeat(1, 6).reshape(BATCH, 3, 4, 4)
        return model(image.to(memory_format=torch.channels_last))

    return Run({"model": model, "optimizer": optimizer}, make_step(forward, optimizer), windows)


class Odd(nn.Module):
    """Parameters and buffers of unusual types, strides and sizes, and extra state."""

    def __init__(self):
        super().__init__()
        self.turned = nn.Parameter(torch.randn(4, WIDTH).T)
        self.scalar = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.wave = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.register_buffer("flags", torch.zeros(4, dtype=torch.bool))
        self.seen = []

    def forward(self, inputs):
        self.seen.append(float(inputs[0, 0]))
        hidden = inputs @ self.turned * self.scalar.float() + self.wave.abs()
        self.flags ^= hidden.detach().mean(0) > 0
        return hidden + self.flags + len(self.seen) / 100

    def get_extra_state(self):
        return {"seen": list(self.seen)}

    def set_extra_state(self, state):
        self.seen = list(state["seen"])


@scenario("odd-tensors", beside="models")
def odd_tensors():
    model = Odd()
    run = simple(model, torch.optim.AdamW(model.parameters(), 0.01, foreach=False))
    run.also["seen"] = _Seen(model)
    return run


class _Seen:
    def __init__(self, model):
        self._model = model

    def state_dict(self):
        return self._model.seen


def _compiled(backend):
    def build():
        torch._dynamo.reset()
        model = make_net()
        compiled = torch.compile(model, backend=backend)
        optimizer = torch.optim.AdamW(compiled.parameters(), 0.01)
        step = make_step(compiled, optimizer)
        return Run({"model": compiled, "optimizer": optimizer}, step, windows)

    return build


scenario("compiled-eager", beside="compiled")(_compiled("eager"))
scenario("compiled-aot", beside="compiled")(_compiled("aot_eager"))
scenario("compiled-inductor")(_compiled("inductor"))


@scenario("gan")
def gan():
    models = {"generator": nn.Linear(3, WIDTH), "judge": make_net(norm=False)}
    optimizers = {
        "generator": torch.optim.Adam(models["generator"].parameters(), 0.01),
        "judge": torch.optim.RMSprop(models["judge"].parameters(), 0.01),
    }
    noise = torch.Generator().manual_seed(int(torch.randint(1000, ())))

    def step(batch, between):
        real = batch[0]
        fake = models["generator"](torch.randn(BATCH, 3, generator=noise))
        optimizers["judge"].zero_grad()
        judged = models["judge"](real)[:, 0], models["judge"](fake.detach())[:, 0]
        loss = functional.softplus(-judged[0]).mean() + functional.softplus(judged[1]).mean()
        loss.backward()
        optimizers["judge"].step()
        between()
        optimizers["generator"].zero_grad()
        other = functional.softplus(-models["judge"](fake)[:, 0]).mean()
        other.backward()
        optimizers["generator"].step()
        return loss.item() + other.item()

    return Run({"models": models, "optimizers": optimizers, "noise": noise}, step, windows)


# Randomness and data.


@scenario("augmentation", beside="values")
def augmentation():
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    named = np.random.default_rng(int(torch.randint(1000, ())))
    other = random.Random(int(torch.randint(1000, ())))

    def augment(inputs):
        shift = random.gauss(0, 1) + np.random.randn() + named.normal() + other.random()
        return model(inputs + float(shift) + torch.randn_like(inputs))

    parts = {"model": model, "optimizer": optimizer, "named": named, "other": other}
    return Run(parts, make_step(augment, optimizer), windows)


@scenario("seen-history", beside="values")
def seen_history():
    """Values of the user's: a window of losses and a table that steer the training."""
    from collections import deque

    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses, table = deque(maxlen=4), np.zeros(4)
    inner = make_step(model, optimizer)

    def step(batch, between):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (1 + sum(losses) + table.max())
        loss = inner(batch, between)
        losses.append(loss)
        np.add.at(table, batch[1].numpy(), 0.01)
        return loss

    parts = {"model": model, "optimizer": optimizer, "losses": losses, "table": table}
    return Run(parts, step, windows)


def _with_loader(make, *, iterates=False):
    def build():
        model = make_net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        loader = make()
        run = simple(model, optimizer, dataloader=loader)
        run.data, run.loader, run.iterates = None, loader, iterates
        return run

    return build


def _stateful(workers, **options):
    from torchdata.stateful_dataloader import StatefulDataLoader

    data = Windows(augment=not workers)
    return StatefulDataLoader(data, batch_size=7, shuffle=True, num_workers=workers, **options)


LOADERS = {
    "loader-plain": lambda: DataLoader(Windows(augment=True), batch_size=7, shuffle=True),
    "loader-generator": lambda: DataLoader(
        Windows(), batch_size=7, shuffle=True, drop_last=True,
        generator=torch.Generator().manual_seed(int(torch.randint(1000, ()))),
    ),
    "loader-weighted": lambda: DataLoader(
        Windows(), batch_size=9, sampler=torch.utils.data.WeightedRandomSampler(range(40), 30)
    ),
    "loader-workers": lambda: DataLoader(
        Windows(augment=True), batch_size=7, shuffle=True, num_workers=1
    ),
    "loader-distributed": lambda: DataLoader(
        Windows(),
        batch_size=7,
        sampler=torch.utils.data.DistributedSampler(Windows(), num_replicas=2, rank=1, seed=3),
    ),
    "stateful-0": lambda: _stateful(0),
    "stateful-2": lambda: _stateful(2),
    "stateful-persistent": lambda: _stateful(1, persistent_workers=True),
}  # fmt: skip
for _name, _make in LOADERS.items():
    scenario(_name)(_with_loader(_make))
scenario("stateful-0-own", rewinds=False)(_with_loader(lambda: _stateful(0), iterates=True))
scenario("stateful-2-own", rewinds=False)(_with_loader(lambda: _stateful(2), iterates=True))


class Stream:
    """A loader of the user's: an endless iterable with a state, which packs what is left over."""

    def __init__(self):
        self.index = 0
        self.left = []

    def __iter__(self):
        while True:
            self.left += [windows(self.index, size=4)]
            self.index += 1
            if len(self.left) == 2:
                inputs, targets = zip(*self.left, strict=True)
                self.left = self.left[1:] if self.index % 3 else []
                yield torch.cat(inputs), torch.cat(targets)

    def state_dict(self):
        return {"index": self.index, "left": list(self.left)}

    def load_state_dict(self, state_dict):
        self.index, self.left = state_dict["index"], list(state_dict["left"])


scenario("loader-of-the-user")(_with_loader(Stream))


# Everything at once.


class Gpt(nn.Module):
    """A small transformer language model over bytes, its head tied to its embedding."""

    def __init__(self, width=16, context=24):
        super().__init__()
        self.table = nn.Embedding(128, width)
        self.places = nn.Embedding(context, width)
        layer = functools.partial(
            nn.TransformerEncoderLayer, width, 2, 32, dropout=0.1, batch_first=True
        )
        self.layers = nn.ModuleList([layer(), layer()])
        self.head = nn.Linear(width, 128, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, tokens):
        hidden = self.table(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            hidden = layer(hidden, src_mask=self.mask, is_causal=True)
        return self.head(hidden)


class Lines(Dataset):
    """Stretches of the text."""

    def __len__(self):
        return 30

    def __getitem__(self, index):
        text = read_text().long() % 128
        return text[index * 300 : index * 300 + 25]


@scenario("language-model")
def language_model():
    from torchdata.stateful_dataloader import StatefulDataLoader

    model = Gpt()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, 3e-3, betas=(0.9, 0.95))
    scheduler = lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=40)
    scaler = torch.amp.GradScaler("cpu", growth_interval=4)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
    loader = StatefulDataLoader(Lines(), batch_size=4, shuffle=True)
    micro = {"count": 0}

    def step(tokens, between):
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        scaler.scale(loss / 2).backward()
        between()
        micro["count"] += 1
        if micro["count"] % 2 == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            optimizer.zero_grad()
            ema.update_parameters(model)
        return loss.item()

    parts = {
        "model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler,
        "ema": ema, "dataloader": loader, "micro": micro,
    }  # fmt: skip
    return Run(parts, step, loader=loader, with_gradients=True)

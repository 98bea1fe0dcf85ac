"""Models with something unusual about them."""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.nn import functional

from support.scenarios.basics import (
    BATCH,
    WIDTH,
    adamw,
    loss_of,
    make_net,
    scenario,
    sgd,
    simple,
    windows,
)
from support.training_runs import Run


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


def _at_the_eighth(act):
    """Return a count of steps, and what counts them and acts before the eighth."""
    steps = {"done": 0}

    def count(_batch):
        if steps["done"] == 7:
            act()
        steps["done"] += 1

    return steps, count


@scenario("frozen-then-trained", beside="models")
def frozen_then_trained():
    model = make_net()
    model[0].requires_grad_(requires_grad=False)
    model[1].eval()

    def thaw():
        model[0].requires_grad_(requires_grad=True)
        model[1].train()

    steps, count = _at_the_eighth(thaw)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    return simple(model, optimizer, before=count, steps=steps)


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
    return simple(model, sgd(model))


@scenario("spectral-norm", beside="models")
def spectral_norm():
    model = make_net()
    nn.utils.parametrizations.spectral_norm(model[0])
    nn.utils.parametrizations.weight_norm(model[4])
    return simple(model, sgd(model))


@scenario("lstm", beside="models")
def lstm():
    inner = nn.LSTM(1, 4, num_layers=2, dropout=0.3)
    model = nn.ModuleDict({"inner": inner})
    carried = [torch.zeros(2, BATCH, 4), torch.zeros(2, BATCH, 4)]

    def forward(inputs):
        outputs, state = inner(inputs.T.unsqueeze(-1), tuple(one.clone() for one in carried))
        for mine, new in zip(carried, state, strict=True):
            mine.copy_(new.detach())
        return outputs[-1]

    optimizer = torch.optim.RMSprop(model.parameters(), 0.01, centered=True)
    return simple(model, optimizer, forward=forward, carried=carried)


@scenario("channels-last", beside="models")
def channels_last():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4)
    ).to(memory_format=torch.channels_last)

    def forward(inputs):
        image = inputs.repeat(1, 6).reshape(BATCH, 3, 4, 4)
        return model(image.to(memory_format=torch.channels_last))

    return simple(model, adamw(model), forward=forward)


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
    run = simple(model, adamw(model, foreach=False))
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
        model = torch.compile(make_net(), backend=backend)
        return simple(model, adamw(model))

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


class Growing(nn.Module):
    """Remembers batches in a buffer that grows."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 6), nn.Linear(6, 4)
        self.register_buffer("bank", torch.zeros(1, WIDTH))

    def forward(self, inputs):
        self.bank = torch.cat([self.bank, inputs[:1].detach()])
        return self.second(self.first(inputs + self.bank.mean(0)))


@scenario("growing", beside="models")
def growing():
    """A second group of parameters is added on the way; gradients decay and are never cleared."""
    model = Growing()
    model.second.requires_grad_(requires_grad=False)
    optimizer = torch.optim.Adam(model.first.parameters(), 0.01)

    def thaw():
        model.second.requires_grad_(requires_grad=True)
        optimizer.add_param_group({"params": list(model.second.parameters()), "lr": 0.02})

    steps, count = _at_the_eighth(thaw)

    def step(batch, between):
        count(batch)
        for param in model.parameters():
            if param.grad is not None:
                param.grad *= 0.5
        loss = loss_of(model, batch)
        loss.backward()
        between()
        optimizer.step()
        return loss.item()

    return Run({"model": model, "optimizer": optimizer, "steps": steps}, step, windows)


@scenario("quantisation-aware", beside="models")
def quantisation_aware():
    model = nn.Sequential(nn.Linear(WIDTH, 6), nn.ReLU(), nn.Linear(6, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch means to give them up
        model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
        torch.ao.quantization.prepare_qat(model.train(), inplace=True)
    return simple(model, sgd(model))

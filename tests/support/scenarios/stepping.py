"""What happens between backward and step: scalers, accumulation, low precision."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn import functional

from support.scenarios.basics import adamw, loss_of, make_net, scenario, sgd, simple, windows
from support.training_runs import Run


@scenario("grad-scaler")
def grad_scaler():
    model = make_net()
    optimizer = adamw(model)
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
    optimizer = adamw(model)
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

    def forward(inputs):
        with torch.autocast("cpu", torch.bfloat16):
            return model(inputs)

    return simple(model, adamw(model), forward=forward)


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
    return simple(model, adamw(model), forward=lambda x: model(x.bfloat16()))


@scenario("checkpointed-activations", beside="precision")
def checkpointed_activations():
    model = make_net()
    forward = functools.partial(torch.utils.checkpoint.checkpoint, model, use_reentrant=False)
    return simple(model, sgd(model), forward=forward)

"""Averages of the parameters."""

from __future__ import annotations

import torch
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from support.scenarios.basics import make_net, make_step, scenario, windows
from support.training_runs import Run


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

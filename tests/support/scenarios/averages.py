"""Averages of the parameters."""

from __future__ import annotations

from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from support.scenarios.basics import make_net, scenario, sgd, simple


@scenario("ema-averaged-model", beside="averages")
def ema_averaged():
    model = make_net()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    return simple(model, sgd(model), after=lambda: ema.update_parameters(model), ema=ema)


@scenario("swa", beside="averages")
def swa():
    model = make_net()
    optimizer, average = sgd(model), AveragedModel(model)
    scheduler = SWALR(optimizer, swa_lr=0.01, anneal_epochs=5)
    return simple(
        model, optimizer, schedulers=[scheduler], after=lambda: average.update_parameters(model),
        swa=average, scheduler=scheduler,
    )  # fmt: skip


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
    ema = HandmadeEma(model)
    values = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update():
        ema.update(model)
        for name, param in model.named_parameters():
            values[name].lerp_(param.detach(), 0.1)

    return simple(model, sgd(model), after=update, ema=ema, ema_values=values)

"""Small runs with every optimizer and scheduler."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import SWALR


def make_net(width=6):
    return nn.Sequential(
        nn.Linear(width, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1)
    )


def make_run(make_optimizer, net=make_net, make_scheduler=None, *, shift=0.0):
    def build():
        model = net()
        optimizer = make_optimizer(model.parameters())
        parts = {"model": model, "optimizer": optimizer}
        if make_scheduler is not None:
            parts["scheduler"] = make_scheduler(optimizer)

        def closure():
            optimizer.zero_grad()
            dtype = next(model.parameters()).dtype
            loss = (model(torch.rand(5, 6, dtype=dtype) + shift) - 1).square().mean()
            loss.backward()
            return loss

        def train():
            if isinstance(optimizer, torch.optim.LBFGS):
                optimizer.step(closure)
                return
            loss = closure()
            optimizer.step()
            if make_scheduler is not None:
                if isinstance(parts["scheduler"], schedulers.ReduceLROnPlateau):
                    parts["scheduler"].step(loss.detach())
                else:
                    parts["scheduler"].step()

        return SimpleNamespace(parts=parts, train=train, model=model, optimizer=optimizer)

    return build


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, foreach=False),
    "adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "tensor-lr": lambda p: torch.optim.AdamW(p, torch.tensor(0.01), foreach=False),
    "radam": lambda p: torch.optim.RAdam(p, 0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5, centered=True),
    "asgd": lambda p: torch.optim.ASGD(p, 0.01),
    "rprop": lambda p: torch.optim.Rprop(p, 0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, 0.01),
    "lbfgs": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3, history_size=3),
    "lbfgs-wolfe": lambda p: torch.optim.LBFGS(p, max_iter=2, line_search_fn="strong_wolfe"),
}


class Warmup:
    """A scheduling object with a state of its own."""

    def __init__(self):
        self.calls = 0

    def __call__(self, step):
        self.calls += 1
        return 1 / (1 + step + 0.1 * self.calls)


SCHEDULERS = {
    "one-cycle": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=20),
    "cosine": lambda o: schedulers.CosineAnnealingLR(o, 10),
    "restarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 2, 2),
    "plateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=0, threshold=0.5),
    "lambda": lambda o: schedulers.LambdaLR(o, Warmup()),
    "cyclic": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, 2, cycle_momentum=False),
    "multistep": lambda o: schedulers.MultiStepLR(o, [2, 4]),
    "swa": lambda o: SWALR(o, 0.05, anneal_epochs=5),
    "sequential": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, total_iters=2), schedulers.ExponentialLR(o, 0.9)], [2]
    ),
    "chained": lambda o: schedulers.ChainedScheduler(
        [schedulers.LinearLR(o, 0.1, total_iters=3), schedulers.ExponentialLR(o, 0.9)]
    ),
}

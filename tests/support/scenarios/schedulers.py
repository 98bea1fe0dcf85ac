"""Schedulers of the learning rate."""

from __future__ import annotations

from torch.optim import lr_scheduler

from support.scenarios.basics import make_net, scenario, sgd, simple


class Warmup:
    """A scheduling object with a state of its own."""

    def __init__(self):
        self.calls = 0

    def __call__(self, step):
        self.calls += 1
        return 1 / (1 + step + 0.1 * self.calls)


SCHEDULERS = {
    "onecycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=24),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "warm-restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=1, cooldown=1),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "lambda-object": lambda o: lr_scheduler.LambdaLR(o, Warmup()),
    "multistep": lambda o: lr_scheduler.MultiStepLR(o, [2, 4]),
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
        optimizer = sgd(model, momentum=0.9)
        scheduler = make(optimizer)
        return simple(model, optimizer, schedulers=[scheduler], scheduler=scheduler)

    return build


for _name, _make in SCHEDULERS.items():
    scenario(_name, beside="schedulers")(_with_scheduler(_make))

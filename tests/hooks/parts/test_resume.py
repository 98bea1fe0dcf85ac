"""Runs of every kind: stopped and brought back, they end on the bits of the one that went on."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mvc_hooks.parts.restoring import capture_parts, restore_parts
from support.part_runs import OPTIMIZERS, SCHEDULERS, make_net, make_run

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_scheduler(lab, kind):
    make = lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)  # noqa: E731
    lab.check_resume(make_run(make, make_scheduler=SCHEDULERS[kind]), after=3)


def test_first_step_after_a_resume_uses_the_stored_rate_not_that_of_the_constructor(lab):
    build = make_run(OPTIMIZERS["momentum"], make_scheduler=SCHEDULERS["one-cycle"])
    lab.check_resume(build, before=6, after=1)


def test_gradient_scaler_that_overflows(lab):
    def build():
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        count = iter(range(100))

        def train():
            optimizer.zero_grad()
            loss = model(torch.rand(3, 4)).sum()
            scaler.scale(loss * (float("inf") if next(count) == 1 else 1)).backward()
            scaler.step(optimizer)
            scaler.update()

        return SimpleNamespace(
            parts={"model": model, "optimizer": optimizer, "scaler": scaler}, train=train
        )

    first = lab.make(build, 0)
    for _ in range(3):
        first.train()
    assert first.parts["scaler"].get_scale() != 2.0**10
    source = lab.commit(first.live)
    second = lab.make(build, 1)
    restore_parts(source, second.live)
    assert second.parts["scaler"].state_dict() == first.parts["scaler"].state_dict()
    assert second.parts["scaler"]._scale is None  # made by the first scale(), not by a restore
    assert capture_parts(second.live)["scaler"]["_growth_tracker"] == 1


@pytest.mark.parametrize("use_buffers", [False, True])
def test_moving_average(lab, use_buffers):
    def build():
        model = make_net()
        ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=use_buffers)
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)

        def train():
            optimizer.zero_grad()
            model(torch.rand(5, 6)).mean().backward()
            optimizer.step()
            ema.update_parameters(model)

        parts = {"model": model, "ema": ema, "optimizer": optimizer}
        return SimpleNamespace(parts=parts, train=train)

    found = lab.check_resume(build)
    assert "n_averaged" in found.source.load({})["ema"]


def test_moving_average_by_hand(lab):
    def build():
        model = nn.Linear(6, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        shadow = copy.deepcopy(model.state_dict())
        shadow = dict(shadow)

        def train():
            optimizer.zero_grad()
            model(torch.rand(5, 6)).mean().backward()
            optimizer.step()
            for name, value in model.state_dict().items():
                shadow[name].lerp_(value, 0.1)

        parts = {"model": model, "shadow": shadow, "optimizer": optimizer}
        return SimpleNamespace(parts=parts, train=train)

    lab.check_resume(build)

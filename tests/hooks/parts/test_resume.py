"""Runs of every kind: stopped and brought back, they end on the bits of the one that went on."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mvc_hooks.parts.restoring import capture_parts, restore_parts
from support.scenarios import SCENARIOS

pytestmark = pytest.mark.torch

NAMES = [
    one for one in SCENARIOS if not one.startswith(("loader", "stateful", "language", "compiled-"))
]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_goes_on_as_if_nothing_had_been(lab, name):
    """Committed before its eighth step, at which some change what they train, and after it."""
    for before in (5, 9):
        lab.check_scenario(SCENARIOS[name].build, before=before)


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

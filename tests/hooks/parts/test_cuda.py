"""The same on a CUDA device; the state itself knows no device."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mvc_hooks.parts.make import make_parts
from mvc_hooks.parts.restoring import capture_parts, restore_parts

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def _build(**options):
    def build():
        torch.cuda.manual_seed_all(torch.initial_seed())
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.4), nn.Linear(8, 1)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), 0.01, **options)

        def train():
            optimizer.zero_grad()
            model(torch.rand(5, 4, device="cuda")).sum().backward()
            optimizer.step()

        parts = {"model": model, "optimizer": optimizer, "scaler": torch.amp.GradScaler("cuda")}
        return SimpleNamespace(parts=parts, train=train, model=model, optimizer=optimizer)

    return build


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"capturable": True}, {"foreach": False}])
def test_state_lies_where_the_optimizer_had_it(lab, options):
    found = lab.check_resume(_build(**options))
    new = lab.make(_build(**options), 5)
    restore_parts(found.source, new.live)
    for param in new.model.parameters():
        for name, value in new.optimizer.state[param].items():
            was = found.first.optimizer.state[next(found.first.model.parameters())][name]
            assert value.device == was.device


def test_the_generators_of_all_devices_come_back(lab):
    torch.cuda.init()
    parts = make_parts({"noise": torch.Generator("cuda").manual_seed(1)})
    source = lab.commit(parts)
    expected = [torch.rand(3, device=f"cuda:{n}") for n in range(torch.cuda.device_count())]
    restore_parts(source, parts)
    for index, values in enumerate(expected):
        assert torch.equal(torch.rand(3, device=f"cuda:{index}"), values)
    assert len(capture_parts(parts)["rng"]["cuda"]) == torch.cuda.device_count()

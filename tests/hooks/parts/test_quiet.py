"""Capturing changes nothing: not a number, not a gradient, not a mode, not a bit of what follows."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mvc_hooks.parts.gradients import GradsPart
from mvc_hooks.parts.make import GRADIENTS, make_parts
from mvc_hooks.parts.names import ParameterNames
from mvc_hooks.parts.restoring import capture_parts

pytestmark = pytest.mark.torch


def _build():
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 1))
    model[3].weight.requires_grad_(False)
    model[1].eval()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=50)
    scaler = torch.amp.GradScaler("cpu", enabled=True)
    loader = DataLoader(TensorDataset(torch.rand(20, 4)), batch_size=4, shuffle=True)
    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    objects |= {"scaler": scaler, "dataloader": loader, "noise": torch.Generator().manual_seed(1)}
    parts = make_parts(objects)
    parts[GRADIENTS] = GradsPart([optimizer], ParameterNames(objects))
    return SimpleNamespace(**objects, parts=parts)


def _look(run):
    """Everything that a capture might change."""
    tensors = [*run.model.parameters(), *run.model.buffers()]
    return {
        "rng": [
            repr(random.getstate()),
            repr(np.random.get_state()),
            torch.get_rng_state().tolist(),
        ],
        "noise": run.noise.get_state().tolist(),
        "values": [t.tolist() for t in tensors],
        "places": [t.data_ptr() for t in tensors],
        "versions": [t._version for t in tensors],
        "grads": [None if t.grad is None else t.grad.tolist() for t in tensors],
        "wanted": [t.requires_grad for t in tensors],
        "modes": [m.training for m in run.model.modules()],
        "state": {i: sorted(s) for i, s in enumerate(run.optimizer.state.values())},
        "groups": repr(run.optimizer.param_groups),
        "schedule": repr(run.scheduler.state_dict()),
        "scale": run.scaler._scale is None,
        "iterator": run.dataloader._iterator,
    }


def test_nothing_changes_in_a_fresh_run_nor_in_one_under_way():
    run = _build()
    for step in range(3):
        before = _look(run)
        capture_parts(run.parts)
        assert _look(run) == before
        if not step:
            assert not run.optimizer.state
        run.model(torch.rand(5, 4)).sum().backward()
        before = _look(run)
        capture_parts(run.parts)
        assert _look(run) == before
        run.optimizer.step()


def _train(run, *, capturing):
    losses = []
    for _ in range(8):
        if capturing:
            capture_parts(run.parts)
        (batch,) = run.parts["dataloader"].next_batch()
        if capturing:
            capture_parts(run.parts)
        run.optimizer.zero_grad()
        loss = run.model(batch + random.random() + np.random.rand()).sum()
        loss.backward()
        if capturing:
            capture_parts(run.parts)
        run.optimizer.step()
        run.scheduler.step()
        losses.append(loss.item())
    return losses, _look(run)["values"], _look(run)["rng"]


def test_training_has_the_same_bits_with_and_without_a_capture_at_every_turn():
    assert _train(_build(), capturing=True) == _train(_build(), capturing=False)

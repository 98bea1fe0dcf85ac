"""What ``test_replay`` names as FILE.py:FUNCTION."""

from __future__ import annotations

import torch
from torch import nn

from mvc_hooks import Training, skip_step
from mvc_hooks.divergence.watch import as_detector


def build(*, width=16, rate=0.05):
    model = nn.Sequential(
        nn.Linear(8, width), nn.BatchNorm1d(width), nn.Dropout(0.2), nn.Linear(width, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.9)
    generator = torch.Generator().manual_seed(3)
    data = torch.randn(48, 9, generator=generator)
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)

    def train_step(run):
        batch = run.next_batch()
        loss = (model(batch[:, :8]) - batch[:, 8:]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return {"loss": loss, "samples": len(batch)}

    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "dataloader": loader}
    return Training(parts, train_step)


def build_other_rate():
    return build(rate=0.5)


def build_larger():
    return build(width=17)


def build_noisy():
    training = build()

    def train_step(run):
        torch.rand(1)
        return training.train_step(run)

    return {"parts": training.parts, "train_step": train_step}


def build_checked():
    """A training in which every fourth step is skipped."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def train_step(run):
        batch = torch.randn(4, 8)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        run.check(loss=loss)
        optimizer.step()
        return {}

    def judge(history):
        return history.latest.step % 4 == 0

    return Training(
        {"model": model, "optimizer": optimizer},
        train_step,
        [as_detector(judge)],
        [skip_step(1000)],
    )


def build_nothing():
    return 7

"""Schedules that are stretched go through the same rates in 10 % more steps."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler as schedules

from mvc_hooks import Checkpointer
from mvc_lab.compression import PowerSgd
from mvc_lab.compression.run import extend, stretch

MAKES = {
    "cosine": lambda opt, n: schedules.CosineAnnealingLR(opt, n, eta_min=0.01),
    "one cycle": lambda opt, n: schedules.OneCycleLR(opt, 1.0, total_steps=n),
    "three phases": lambda opt, n: schedules.OneCycleLR(opt, 1.0, total_steps=n, three_phase=True),
    "linear": lambda opt, n: schedules.LinearLR(opt, 1.0, 0.1, total_iters=n),
    "polynomial": lambda opt, n: schedules.PolynomialLR(opt, n, power=2.0),
    "sequence": lambda opt, n: schedules.SequentialLR(
        opt,
        [schedules.LinearLR(opt, 0.1, total_iters=n // 10), schedules.CosineAnnealingLR(opt, n - n // 10)],
        [n // 10],
    ),
    "chain": lambda opt, n: schedules.ChainedScheduler(
        [schedules.ConstantLR(opt, 0.5, n // 2), schedules.PolynomialLR(opt, n)]
    ),
}  # fmt: skip


def _make(kind, total):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    return optimizer, MAKES[kind](optimizer, total)


def _run(optimizer, schedule, steps):
    rates = [optimizer.param_groups[0]["lr"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a sequence calls its schedules in a way that they warn of
        for _ in range(steps):
            optimizer.step()
            schedule.step()
            rates.append(optimizer.param_groups[0]["lr"])
    return rates


@pytest.mark.parametrize("kind", MAKES)
def test_a_stretched_schedule_is_that_of_more_steps(kind):
    optimizer, schedule = _make(kind, 100)
    assert list(stretch([schedule])) == []
    last = 110 - ("cycle" in kind or "phases" in kind)
    assert _run(optimizer, schedule, last) == pytest.approx(_run(*_make(kind, 110), last))


@pytest.mark.parametrize("kind", ["cosine", "one cycle", "three phases", "linear", "polynomial"])
def test_one_stretched_on_the_way_is_where_it_would_be(kind):
    optimizer, schedule = _make(kind, 100)
    _run(optimizer, schedule, 40)
    stretch_names = list(stretch([schedule]))
    assert stretch_names == []
    rates = _run(optimizer, schedule, 69)
    expected = _run(*_make(kind, 110), 109)
    assert rates[1:] == pytest.approx(expected[41:])


def test_schedules_without_a_horizon_are_named():
    optimizer, _ = _make("cosine", 10)
    found = [
        schedules.StepLR(optimizer, 3), schedules.LambdaLR(optimizer, lambda _: 1.0),
        schedules.ChainedScheduler([schedules.ExponentialLR(optimizer, 0.9)]),
    ]  # fmt: skip
    assert list(stretch(found)) == ["StepLR", "LambdaLR", "ExponentialLR"]


def test_ten_per_cent_more():
    assert [extend(steps) for steps in (0, 1, 10, 11, 1000, 1001)] == [0, 2, 11, 13, 1100, 1102]


def _train(folder, total, *, extend, stop=None, kind="cosine"):
    """Train 10 steps, or more; return the steps that were taken, and the rates."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Linear(400, 400, bias=False))
    hook = PowerSgd(1, start_step=2, extend=extend)
    hook.attach(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    schedule = MAKES[kind](optimizer, total) if kind in MAKES else schedules.StepLR(optimizer, 3)
    rates = []
    with Checkpointer(
        folder, model=ddp, optimizer=optimizer, scheduler=schedule, compression=hook, every=4
    ) as ckpt:
        for step in ckpt.steps(total):
            ddp(torch.ones(1, 400)).mean().backward()
            optimizer.step()
            schedule.step()
            rates.append(optimizer.param_groups[0]["lr"])
            ckpt.step()
            if step + 1 == stop:
                break
        return ckpt.step_count, rates


def test_a_run_takes_more_steps_once_also_after_a_resume(group, tmp_path, caplog):
    assert _train(tmp_path / "whole", 20, extend=True)[0] == 22
    (told,) = [one.message for one in caplog.records if "200:1" in one.message]
    assert told == (
        "PowerSgd compresses gradients 200:1, beyond 32:1: steps() takes 10 % more steps, and the "
        "schedule is stretched"
    )
    assert _train(tmp_path / "parted", 20, extend=True, stop=9)[0] == 9
    caplog.clear()
    steps, rates = _train(tmp_path / "parted", 20, extend=True)
    assert not [one for one in caplog.records if "T_max" in one.message]
    assert steps == 22
    assert rates[-1] == pytest.approx(0.01)  # eta_min, at the last of 22
    assert rates == _train(tmp_path / "again", 20, extend=True)[1][9:]


def test_a_run_that_is_not_asked_to_is_told(group, tmp_path, caplog):
    assert _train(tmp_path, 20, extend=False)[0] == 20
    (told,) = [one.message for one in caplog.records if "200:1" in one.message]
    assert told == (
        "PowerSgd compresses gradients 200:1, beyond 32:1: train 10 % more steps, or pass extend=True, "
        "which has steps() and the schedule take them"
    )


def test_a_run_that_is_asked_later_is_stretched_from_there(group, tmp_path):
    _train(tmp_path, 20, extend=False, stop=9)
    steps, rates = _train(tmp_path, 20, extend=True)
    assert steps == 22
    assert rates[-1] == pytest.approx(0.01)
    assert _train(tmp_path, 20, extend=True)[0] == 22


def test_a_schedule_that_cannot_be_stretched_is_named(group, tmp_path, caplog):
    _train(tmp_path, 20, extend=True, kind="steps")
    assert (
        "StepLR cannot be stretched: for 10 % more steps, change its arguments" in caplog.messages
    )

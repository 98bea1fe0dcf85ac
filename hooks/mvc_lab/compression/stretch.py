"""Ten per cent more steps: of the run, and of the schedules of its learning rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.optim import lr_scheduler

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_HORIZONS = {
    lr_scheduler.CosineAnnealingLR: "T_max",
    lr_scheduler.LinearLR: "total_iters",
    lr_scheduler.PolynomialLR: "total_iters",
    lr_scheduler.ConstantLR: "total_iters",
    lr_scheduler.OneCycleLR: "total_steps",
}
_OUTER = (lr_scheduler.SequentialLR, lr_scheduler.ChainedScheduler)


def extend(steps: int) -> int:
    """Return 10 % more, rounded up."""
    return steps + -(-steps // 10)


def stretch(schedulers: Iterable[Any]) -> Iterator[str]:
    """Make the horizons of schedules 10 % longer, and yield the names of those that have none."""
    for scheduler in schedulers:
        horizon = _HORIZONS.get(type(scheduler))
        if isinstance(scheduler, _OUTER):
            yield from stretch(scheduler._schedulers)  # noqa: SLF001  there is no public way
            if isinstance(scheduler, lr_scheduler.SequentialLR):
                steps = [extend(step) for step in scheduler._milestones]  # noqa: SLF001
                scheduler._milestones = steps  # noqa: SLF001
        elif horizon is None:
            yield type(scheduler).__name__
        else:
            _stretch_one(scheduler, horizon)


def _stretch_one(scheduler: Any, horizon: str) -> None:
    """Make a horizon longer; in the middle of it, the rate becomes what it would be by now."""
    before = _rates(scheduler)
    old = getattr(scheduler, horizon)
    setattr(scheduler, horizon, extend(old))
    phases = getattr(scheduler, "_schedule_phases", ())
    for number, phase in enumerate(phases):
        # A phase ends 1 step before a share of all steps, the middle one 2.
        early = 2 if 0 < number < len(phases) - 1 else 1
        phase["end_step"] = (phase["end_step"] + early) * extend(old) / old - early
    for group, was, rate in zip(
        scheduler.optimizer.param_groups, before, _rates(scheduler), strict=False
    ):
        if was != rate and was:
            group["lr"] *= rate / was


def _rates(scheduler: Any) -> list[float]:
    """Return the rates at the current step in closed form, if the schedule has one and has begun."""
    compute = getattr(scheduler, "_get_closed_form_lr", None)
    return [] if compute is None or scheduler.last_epoch <= 0 else compute()

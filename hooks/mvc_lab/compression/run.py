"""What compressing hooks add to the run that they are parts of: ten per cent more steps, and schedules to match."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from mvc import UsageError
from mvc_hooks.extension import Contribution, Extension, Host
from mvc_hooks.parts.tree import walk_leaves
from mvc_lab.compression.hook import Compression

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mvc_hooks.parts.part import Entry


_MUCH = 32.0  # a run whose gradients are compressed by more takes 10 % more steps
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


class CompressedRun(Extension):
    """The compressing hooks among the parts of a run."""

    name = "compression"

    def __init__(self, entries: Sequence[Entry], _: Mapping[str, object]) -> None:
        """Take the hooks among the parts, all of which must be attached; no option is for it."""
        self._hooks: list[Compression] = []
        for entry in entries:
            if isinstance(entry.part, Compression):
                name = entry.path[-1]
                if not entry.part.is_attached:
                    raise UsageError(
                        f"{name} is a {type(entry.part).__name__} that no DistributedDataParallel has",
                        hint=f"call {name}.attach(ddp) before the checkpointer",
                    )
                self._hooks.append(entry.part)
        self._told: list[str] = []

    def agree(self) -> str:
        """Return kinds and settings of the hooks."""
        texts = []
        for hook in self._hooks:
            settings = hook.settings | {"extend": hook.extend}
            kind = settings.pop("kind")
            texts.append(
                f"{kind}({', '.join(f'{name}={value}' for name, value in settings.items())})"
            )
        return " and ".join(texts)

    def open(self, host: Host) -> None:
        """Know the schedules of the run."""
        self._host = host

    def begin(self) -> None:
        """Stretch the schedules: before a resume, since those of the commit were stretched, too."""
        self._told = list(self._take_longer())

    def start(self) -> None:
        """Stretch what is new since the resume, and tell what was done."""
        self._host.log.doubt(dict.fromkeys([*self._told, *self._take_longer()]))

    def _take_longer(self) -> Iterator[str]:
        """Stretch schedules if a hook asks for it; yield what was, or should be, done."""
        leaves = [leaf for _, leaf in walk_leaves(self._host.objects)]
        schedulers = [leaf for leaf in leaves if isinstance(leaf, LRScheduler)]
        for hook in self._hooks:
            ratio = hook.expected_ratio
            if ratio <= _MUCH or hook.is_extended:
                continue
            finding = (
                f"{type(hook).__name__} compresses gradients {ratio:.0f}:1, beyond {_MUCH:.0f}:1"
            )
            if not hook.extend:
                yield f"{finding}: train 10 % more steps, or pass extend=True, which has steps() and the schedule take them"
                continue
            yield f"{finding}: steps() takes 10 % more steps, and the schedule is stretched"
            hook.is_extended = True
            for name in stretch(schedulers):
                yield f"{name} cannot be stretched: for 10 % more steps, change its arguments"

    def plan_steps(self, total: int) -> int:
        """Take 10 % more steps, if a hook asks for that."""
        return extend(total) if any(hook.is_extended for hook in self._hooks) else total

    def describe(self, step: int) -> Contribution:  # noqa: ARG002  of every commit
        """Tell the ratio really sent, of several hooks the first's, once there is one."""
        ratios = (hook.ratio for hook in self._hooks)
        ratio = next((ratio for ratio in ratios if ratio is not None), None)
        return Contribution(metrics={} if ratio is None else {"compression": ratio})


make_extension = CompressedRun

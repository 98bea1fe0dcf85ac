"""One model on several devices, in several dtypes or with several numbers of threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mvc import UsageError
from mvc_lab.behaviour.comparing import PlacedModel, run_both
from mvc_lab.behaviour.modules import ModuleSums

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from mvc_lab.behaviour.inputs import InputBatch
    from mvc_lab.behaviour.modules import ModuleReport

BOUND = 1e-5
_DTYPES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_MOST_THREADS = 1024
_NAMES = ("devices", "dtypes", "threads")


@dataclass(frozen=True, slots=True)
class BehaviourSettings:
    """Where and how models run; the first of each list is what the others are compared with."""

    devices: tuple[torch.device, ...] = ()
    dtypes: tuple[torch.dtype, ...] = ()
    threads: tuple[int, ...] = ()

    @property
    def is_comparison(self) -> bool:
        """Whether there is more than one setting to run a model with."""
        return any(len(values) > 1 for values in (self.devices, self.dtypes, self.threads))

    def place(self, model: nn.Module, changed: dict[str, Any] | None = None) -> PlacedModel:
        """Return a model that runs with the first of all settings, but for those that changed."""
        chosen = {name: next(iter(getattr(self, name)), None) for name in _NAMES} | (changed or {})
        if chosen["dtypes"] is not None or chosen["devices"] is not None:
            model = model.to(device=chosen["devices"], dtype=chosen["dtypes"])
        return PlacedModel(model, chosen["devices"], chosen["threads"])


@dataclass(frozen=True, slots=True)
class SettingReport:
    """One model run in two ways: ``setting`` is ``devices``, ``dtypes`` or ``threads``."""

    setting: str
    old: str
    new: str
    modules: ModuleReport


def parse_settings(devices: str, dtypes: str, threads: str) -> BehaviourSettings:
    """Return the settings that comma-separated lists name, after checking that this machine has them.

    Raises:
        UsageError: a name that means nothing, or a device that is not here.
    """
    counts = []
    for text in _split(threads):
        if not text.isdecimal() or not 1 <= int(text) <= _MOST_THREADS:
            raise UsageError(f"{text!r} is not a number of threads from 1 to {_MOST_THREADS}")
        counts.append(int(text))
    return BehaviourSettings(
        tuple(map(_parse_device, _split(devices))),
        tuple(map(_parse_dtype, _split(dtypes))),
        tuple(counts),
    )


def _split(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")] if text else []
    if len(set(names)) < len(names) or "" in names:
        raise UsageError(f"{text!r} is empty or names a value twice", hint="write A,B")
    return names


def _parse_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"{name!r} is not a device", hint='such as "cpu" or "cuda:1"') from None
    if device.type == "meta":
        raise UsageError("device 'meta' cannot compute")
    try:
        torch.empty(1, device=device)
    except Exception as error:  # each backend has its own
        raise UsageError(f"device {name!r} is not available here") from error
    return device


def _parse_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, _DTYPES.get(name, name), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(
            f"{name!r} is not a floating-point dtype", hint=f"such as {', '.join(_DTYPES)}"
        )
    return dtype


def compare_settings(
    load: Callable[[], nn.Module],
    settings: BehaviourSettings,
    batches: Sequence[InputBatch],
    *,
    bound: float | None = BOUND,
    cosine: float | None = None,
    seed: int = 0,
) -> list[SettingReport]:
    """Run one model with the first of all settings and with each other one.

    Args:
        load: returns the model, a new one each time.
        settings: those to compare.
        batches: what it is run on.
        bound: the largest relative L2 difference of a module's outputs that passes.
        cosine: the least cosine that passes, or None.
        seed: of the random number generators.
    """
    reports = []
    samples = sum(batch.rows for batch in batches)
    for name in _NAMES:
        values = getattr(settings, name)
        for other in values[1:]:
            sums = ModuleSums(cosine, bound)
            sides = (settings.place(load()), settings.place(load(), {name: other}))
            run_both(sides, batches, modules=sums, seed=seed)
            old, new = (str(value).removeprefix("torch.") for value in (values[0], other))
            reports.append(SettingReport(name, old, new, sums.judge(samples)))
    return reports

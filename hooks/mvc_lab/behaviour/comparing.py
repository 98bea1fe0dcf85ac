"""Runs two models on the same inputs and finds where their outputs differ."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mvc import MvcError, UsageError
from mvc_lab.behaviour.inputs import InputBatch, Inputs, describe_error, make_batches
from mvc_lab.behaviour.modules import ModuleReport, ModuleSums
from mvc_lab.behaviour.outputs import OutputReport, OutputScores
from mvc_lab.behaviour.turns import PlacedModel, run_in_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn


COSINE = 0.9999
SIGNIFICANCE = 0.01
AGREEMENT = 0.99
BATCH_SIZE = 8


def compare_modules(
    old: nn.Module,
    new: nn.Module,
    inputs: Inputs,
    *,
    cosine: float | None = COSINE,
    bound: float | None = None,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
) -> ModuleReport:
    """Compare what each module of two models returns for the same inputs.

    Both run in evaluation mode without gradients, from the same seed and with deterministic kernels
    where there are any. They run in turns, module by module, so that one output of each is held.
    Afterwards the models and the settings of this process are as before.

    Args:
        old: the model to compare with.
        new: the other one; modules are paired by name.
        inputs: a tensor, a tuple of tensors, a mapping of names to tensors, or a list of mappings
            (one for each sample); the first dimension counts the samples.
        cosine: the least cosine that passes.
        bound: the largest relative L2 difference that passes.
        batch_size: samples that are run at once.
        seed: of the random number generators that the models may draw from.

    Raises:
        UsageError: inputs that do not fit, a model that fails on them, or a threshold out of range.
    """
    check_thresholds(cosine, bound)
    _check_models(old, new)
    batches, sums = make_batches(inputs, None, old, batch_size), ModuleSums(cosine, bound)
    run_both((PlacedModel(old), PlacedModel(new)), batches, modules=sums, seed=seed)
    return sums.judge(sum(batch.rows for batch in batches))


def compare_outputs(
    old: nn.Module,
    new: nn.Module,
    inputs: Inputs,
    *,
    targets: object = None,
    significance: float = SIGNIFICANCE,
    agreement: float = AGREEMENT,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
) -> OutputReport:
    """Test whether two models' outputs for the same inputs have the same distribution.

    Args:
        old: the model to compare with.
        new: the other one.
        inputs: as for ``compare_modules``; the samples have to be independent of each other.
        targets: what the models should return: the index of the right class (-100 where none counts),
            or numbers. Inputs named ``targets`` or ``labels`` are taken for them as well.
        significance: the chance of a failure where no model differs, for all tests together.
        agreement: the share of top predictions that has to be the same.
        batch_size: samples that are run at once.
        seed: of the random number generators that the models may draw from.

    Raises:
        UsageError: inputs or targets that do not fit, a model that fails on them, or a level that is
            out of range.
    """
    check_shares(significance, agreement)
    _check_models(old, new)
    batches, scores = make_batches(inputs, targets, old, batch_size), OutputScores()
    run_both((PlacedModel(old), PlacedModel(new)), batches, outputs=scores, seed=seed)
    return scores.judge(significance, agreement, seed)


def _check_models(*models: object) -> None:
    for model in models:
        if not isinstance(model, torch.nn.Module):
            raise UsageError(f"a {type(model).__name__} is not a torch.nn.Module")


def check_thresholds(cosine: float | None, bound: float | None) -> None:
    """Check the thresholds of modules."""
    if cosine is None and bound is None:
        raise UsageError("there is nothing to judge by", hint="give a `cosine` or a `bound`")
    if cosine is not None and not -1 <= cosine <= 1:
        raise UsageError(f"a cosine of {cosine} is not between -1 and 1")
    if bound is not None and not bound >= 0:
        raise UsageError(f"a bound of {bound} is not at least 0")


def check_shares(significance: float, agreement: float) -> None:
    """Check the levels of the tests of outputs."""
    if not 1e-6 <= significance <= 0.5:  # noqa: PLR2004  more swaps than can be tried; a coin
        raise UsageError(f"a significance of {significance} is not between 0.000001 and 0.5")
    if not 0 < agreement <= 1:
        raise UsageError(f"an agreement of {agreement} is not above 0 and at most 1")


def run_both(
    sides: tuple[PlacedModel, PlacedModel],
    batches: Sequence[InputBatch],
    *,
    modules: ModuleSums | None = None,
    outputs: OutputScores | None = None,
    seed: int = 0,
) -> None:
    """Run two models on all batches and pass on their outputs."""
    with _settled([side.model for side in sides]), _translated():
        for batch in batches:
            calls = [batch.fit(side.model, side.device) for side in sides]
            turns = run_in_turns(sides, calls, seed=seed, with_modules=modules is not None)
            for old, new in turns:
                if modules is not None:
                    modules.add(old, new)
                if outputs is not None and old is not None and new is not None and not old.name:
                    outputs.add(old.output, new.output, batch)


def run_once(model: nn.Module, batch: InputBatch) -> None:
    """Run a model on a batch, to check that it runs."""
    with _translated(), _settled((model,)), torch.no_grad():
        call = batch.fit(model, None)
        model(*call.args, **call.kwargs)


@contextmanager
def _translated() -> Iterator[None]:
    """Turn an error of a model into one line, chained to its cause."""
    try:
        yield
    except MvcError:
        raise
    except Exception as error:
        raise UsageError(
            f"the model fails on the inputs: {describe_error(error)}",
            hint="named inputs are passed by name, others by position",
        ) from error


@contextmanager
def _settled(models: Sequence[nn.Module]) -> Iterator[None]:
    """Make models evaluate, deterministically where possible, and put everything back afterwards."""
    training = [module for model in models for module in model.modules() if module.training]
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    threads, random = torch.get_num_threads(), torch.get_rng_state()
    try:
        for module in training:
            module.training = False
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
        yield
    finally:
        torch.use_deterministic_algorithms(mode=was_deterministic, warn_only=only_warned)
        for module in training:
            module.training = True
        torch.set_num_threads(threads)
        torch.set_rng_state(random)


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

"""The inputs of both models: read from a file without executing any of it, cut into batches."""

from __future__ import annotations

import inspect
import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mvc import FormatError, NotFoundError, UsageError
from mvc_lab.behaviour.turns import ModelCall

if TYPE_CHECKING:
    from torch import nn

TARGETS = ("targets", "target", "labels", "label")
_SUFFIXES = (".safetensors", ".npz", ".npy", ".pt", ".pth", ".bin", ".json", ".jsonl")
_UNNAMED = re.compile(r"arr_\d+|\d+")
_MOST_BYTES = 1 << 32
_HINT = (
    "write .safetensors, .npz, .npy, .pt, .json or .jsonl; the first dimension counts the samples"
)

Inputs = Any
"""A tensor, a sequence of tensors (positional), or a mapping of names to tensors (keywords); or a list
of mappings, one for each sample."""


@dataclass(frozen=True, slots=True)
class InputBatch:
    """Some samples: what a model is called with, and what it should return, if that is known."""

    call: ModelCall
    targets: torch.Tensor | None
    rows: int

    def first(self) -> InputBatch:
        """Return the first sample alone."""
        kwargs = {name: value[:1] for name, value in self.call.kwargs.items()}
        own = None if self.targets is None else self.targets[:1]
        return InputBatch(ModelCall([value[:1] for value in self.call.args], kwargs), own, 1)

    def fit(self, model: nn.Module, device: torch.device | None) -> ModelCall:
        """Return the call for a model: on its device, numbers in the dtype of its parameters."""
        like = next((param for param in model.parameters() if param.is_floating_point()), None)
        dtype = None if like is None else like.dtype
        if device is None and like is not None:
            device = like.device

        def place(value: torch.Tensor) -> torch.Tensor:
            is_float = value.is_floating_point() and dtype is not None
            return value.to(device=device, dtype=dtype if is_float else value.dtype)

        kwargs = {name: place(value) for name, value in self.call.kwargs.items()}
        return ModelCall([place(value) for value in self.call.args], kwargs)


def read_inputs(path: str | Path) -> Inputs:
    """Return what a file holds; nothing in it is run.

    Raises:
        NotFoundError: there is no such file.
        FormatError: it is not what its name says, or holds no numbers.
    """
    file = Path(path)
    if not file.is_file():
        raise NotFoundError(f"inputs {str(path)!r} do not exist", hint=_HINT)
    if file.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"inputs {str(path)!r} have an unknown format", hint=_HINT)
    if file.stat().st_size > _MOST_BYTES:
        raise UsageError(f"inputs {str(path)!r} are longer than 4 GiB", hint="give fewer samples")
    try:
        return _read(file)
    except Exception as error:  # any reader, any damage
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise FormatError(f"cannot read inputs {str(path)!r}: {said}", hint=_HINT) from error


def describe_error(error: BaseException) -> str:
    """Return the class of an error of other code, and the first line of its message."""
    lines = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0]}"


def _read(file: Path) -> Inputs:
    match file.suffix.lower():
        case ".safetensors":
            from safetensors.torch import load_file  # noqa: PLC0415  one format of many

            return load_file(file)
        case ".npz":
            with zipfile.ZipFile(file) as archive:
                if sum(member.file_size for member in archive.infolist()) > _MOST_BYTES:
                    raise FormatError("its arrays are longer than 4 GiB")
            with np.load(file, allow_pickle=False) as arrays:
                return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        case ".npy":
            return torch.from_numpy(np.load(file, allow_pickle=False))
        case ".json":
            return json.loads(file.read_text(encoding="utf-8"))
        case ".jsonl":
            lines = file.read_text(encoding="utf-8").splitlines()
            samples = [json.loads(line) for line in lines if line.strip()]
            return [sample if isinstance(sample, Mapping) else {"0": sample} for sample in samples]
    return torch.load(file, map_location="cpu", weights_only=True)


def make_batches(
    inputs: Inputs, targets: object, model: nn.Module, batch_size: int
) -> list[InputBatch]:
    """Return inputs as batches that fit a model's ``forward``.

    Inputs named ``targets`` or ``labels`` are what the model should return; they are passed on only
    if it takes them.

    Raises:
        UsageError: not tensors, of different lengths, or names that the model does not take.
    """
    if batch_size < 1:
        raise UsageError(f"a batch of {batch_size} samples is too small", hint="take at least 1")
    batches: list[InputBatch] = []
    for named in _runs(inputs):
        wanted = _tensor("targets", targets) if targets is not None else None
        rows = _count_rows(named if wanted is None else {**named, "targets": wanted})
        for at in range(0, rows, batch_size):
            part = {name: value[at : at + batch_size] for name, value in named.items()}
            own = None if wanted is None else wanted[at : at + batch_size]
            batches.append(_make_batch(part, own, model, min(batch_size, rows - at)))
    if not batches:
        raise UsageError("the inputs hold no sample")
    return batches


def _runs(inputs: Inputs) -> Iterator[dict[str, torch.Tensor]]:
    """Yield name → tensor with one row a sample; samples of one shape that follow each other as one."""
    if (
        isinstance(inputs, list)
        and inputs
        and all(isinstance(sample, Mapping) for sample in inputs)
    ):
        run: list[dict[str, torch.Tensor]] = []
        for sample in inputs:
            tensors = {str(name): _tensor(name, value)[None] for name, value in sample.items()}
            if run and _form(run[0]) != _form(tensors):
                yield _stack(run)
                run = []
            run.append(tensors)
        yield _stack(run)
    elif isinstance(inputs, Mapping):
        yield {str(name): _tensor(name, value) for name, value in inputs.items()}
    elif isinstance(inputs, tuple) or (
        isinstance(inputs, list)
        and inputs
        and all(isinstance(value, (torch.Tensor, np.ndarray)) for value in inputs)
    ):
        yield {str(place): _tensor(place, value) for place, value in enumerate(inputs)}
    else:
        yield {"0": _tensor("inputs", inputs)}


def _form(tensors: Mapping[str, torch.Tensor]) -> list[tuple[str, torch.Size]]:
    return [(name, value.shape) for name, value in tensors.items()]


def _stack(run: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([sample[name] for sample in run]) for name in run[0]}


def _tensor(name: object, value: object) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach()
    try:
        array = np.asarray(value)
        if array.dtype == np.float64 and not isinstance(value, np.ndarray):
            array = array.astype(np.float32)
        return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"input {str(name)!r} is not an array of numbers",
            hint="its rows must have equal lengths; only .jsonl allows samples of different lengths",
        ) from error


def _count_rows(named: Mapping[str, torch.Tensor]) -> int:
    if not named:
        raise UsageError("the inputs hold no sample")
    rows = {name: value.shape[0] if value.dim() else None for name, value in named.items()}
    if None in rows.values():
        name = next(name for name, count in rows.items() if count is None)
        raise UsageError(f"input {name!r} has no sample dimension", hint=_HINT)
    if len(set(rows.values())) > 1:
        each = ", ".join(f"{name} {count}" for name, count in rows.items())
        raise UsageError(f"the inputs have different numbers of samples: {each}", hint=_HINT)
    return next(iter(rows.values())) or 0


def _make_batch(
    part: Mapping[str, torch.Tensor], targets: torch.Tensor | None, model: nn.Module, rows: int
) -> InputBatch:
    takes, takes_any = _find_parameters(model)
    own = next((part[name] for name in TARGETS if name in part), None)
    args, kwargs = [], {}
    for name, value in part.items():
        if name in takes:
            kwargs[name] = value
        elif _UNNAMED.fullmatch(name):
            args.append(value)
        elif name in TARGETS:
            continue
        elif takes_any:
            kwargs[name] = value
        else:
            raise UsageError(
                f"the model takes no input {name!r}", hint=f"it takes {', '.join(takes) or 'none'}"
            )
    return InputBatch(ModelCall(args, kwargs), own if targets is None else targets, rows)


def _find_parameters(model: nn.Module) -> tuple[list[str], bool]:
    """Return the names that a model's ``forward`` takes, and whether it takes any other."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return [], True
    kinds = {parameter.name: parameter.kind for parameter in parameters}
    any_name, any_place = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    names = [name for name, kind in kinds.items() if kind not in (any_name, any_place)]
    return names, any_name in kinds.values()

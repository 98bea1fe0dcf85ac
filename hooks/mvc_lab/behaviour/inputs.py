"""The inputs of both models: read from a file without executing any of it, cut into batches."""

from __future__ import annotations

import inspect
import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mvc import FormatError, NotFoundError, UsageError
from mvc_lab.behaviour.turns import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

TARGETS = ("targets", "target", "labels", "label")
_UNNAMED = re.compile(r"arr_\d+|\d+")
_MOST_BYTES = 1 << 32
_HINT = (
    "write .safetensors, .npz, .npy, .pt, .json or .jsonl; the first dimension counts the samples"
)

Inputs = Any
"""A tensor, a sequence of tensors (positional), or a mapping of names to tensors (keywords); or a list
of mappings, one for each sample."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some samples: what a model is called with, and what it should return, if that is known."""

    call: Call
    targets: torch.Tensor | None
    rows: int

    def first(self) -> Batch:
        """Return the first sample alone."""
        kwargs = {name: value[:1] for name, value in self.call.kwargs.items()}
        own = None if self.targets is None else self.targets[:1]
        return Batch(Call([value[:1] for value in self.call.args], kwargs), own, 1)

    def fit(self, model: nn.Module, device: torch.device | None) -> Call:
        """Return the call for a model: on its device, numbers in the dtype of its parameters."""
        like = next((one for one in model.parameters() if one.is_floating_point()), None)
        dtype = None if like is None else like.dtype
        if device is None and like is not None:
            device = like.device

        def place(value: torch.Tensor) -> torch.Tensor:
            is_float = value.is_floating_point() and dtype is not None
            return value.to(device=device, dtype=dtype if is_float else value.dtype)

        kwargs = {name: place(value) for name, value in self.call.kwargs.items()}
        return Call([place(value) for value in self.call.args], kwargs)


def read_inputs(path: str | Path) -> Inputs:
    """Return what a file holds; nothing in it is run.

    Raises:
        NotFoundError: there is no such file.
        FormatError: it is not what its name says, or holds no numbers.
    """
    file = Path(path)
    if not file.is_file():
        raise NotFoundError(f"inputs {str(path)!r} do not exist", hint=_HINT)
    read = _READERS.get(file.suffix.lower())
    if read is None:
        raise UsageError(f"inputs {str(path)!r} have an unknown format", hint=_HINT)
    if file.stat().st_size > _MOST_BYTES:
        raise UsageError(f"inputs {str(path)!r} are longer than 4 GiB", hint="give fewer samples")
    try:
        return read(file)
    except Exception as error:  # any reader, any damage
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise FormatError(f"cannot read inputs {str(path)!r}: {said}", hint=_HINT) from error


def _read_safetensors(file: Path) -> Inputs:
    from safetensors.torch import load_file  # noqa: PLC0415  one format of many

    return load_file(file)


def _read_npz(file: Path) -> Inputs:
    with zipfile.ZipFile(file) as archive:
        if sum(one.file_size for one in archive.infolist()) > _MOST_BYTES:
            raise FormatError("its arrays are longer than 4 GiB")
    with np.load(file, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def _read_npy(file: Path) -> Inputs:
    return torch.from_numpy(np.load(file, allow_pickle=False))


def _read_torch(file: Path) -> Inputs:
    return torch.load(file, map_location="cpu", weights_only=True)


def _read_json(file: Path) -> Inputs:
    return json.loads(file.read_text(encoding="utf-8"))


def _read_json_lines(file: Path) -> Inputs:
    lines = file.read_text(encoding="utf-8").splitlines()
    samples = [json.loads(line) for line in lines if line.strip()]
    return [one if isinstance(one, Mapping) else {"0": one} for one in samples]


_READERS: dict[str, Callable[[Path], Inputs]] = {
    ".safetensors": _read_safetensors,
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".pt": _read_torch,
    ".pth": _read_torch,
    ".bin": _read_torch,
    ".json": _read_json,
    ".jsonl": _read_json_lines,
}


def make_batches(inputs: Inputs, targets: object, model: nn.Module, batch_size: int) -> list[Batch]:
    """Return inputs as batches that fit a model's ``forward``.

    Inputs named ``targets`` or ``labels`` are what the model should return; they are passed on only
    if it takes them.

    Raises:
        UsageError: not tensors, of different lengths, or names that the model does not take.
    """
    if batch_size < 1:
        raise UsageError(f"a batch of {batch_size} samples is too small", hint="take at least 1")
    batches: list[Batch] = []
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
    if isinstance(inputs, list) and inputs and all(isinstance(one, Mapping) for one in inputs):
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
    elif isinstance(inputs, tuple) or (isinstance(inputs, list) and _has_tensors(inputs)):
        yield {str(place): _tensor(place, value) for place, value in enumerate(inputs)}
    else:
        yield {"0": _tensor("inputs", inputs)}


def _has_tensors(inputs: Sequence[object]) -> bool:
    return bool(inputs) and all(isinstance(one, (torch.Tensor, np.ndarray)) for one in inputs)


def _form(tensors: Mapping[str, torch.Tensor]) -> list[tuple[str, torch.Size]]:
    return [(name, value.shape) for name, value in tensors.items()]


def _stack(run: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([one[name] for one in run]) for name in run[0]}


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
) -> Batch:
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
    return Batch(Call(args, kwargs), own if targets is None else targets, rows)


def _find_parameters(model: nn.Module) -> tuple[list[str], bool]:
    """Return the names that a model's ``forward`` takes, and whether it takes any other."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return [], True
    names = [
        one.name for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]
    return names, any(one.kind is one.VAR_KEYWORD for one in parameters)

"""Models as an entry builds them, with the weights of a checkpoint: to the bit, or an error.

An entry that takes no argument builds a model, and its weights are loaded here. One that takes an argument
gets the path of the checkpoint and loads it itself, as libraries do that keep weights in another form
than their models.
"""

from __future__ import annotations

import inspect
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mvc import ConflictError, MvcError, NotFoundError, UsageError, open_model
from mvc_lab.behaviour.comparing import run_once
from mvc_lab.behaviour.inputs import InputBatch, describe_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import ExitStack

    from torch import nn

    from mvc import Model, ModelTensor, Repo

_NAMED = 3
_HINT = (
    "it returns the model: without arguments as it is before weights are loaded, "
    "or with one, the path of a checkpoint, as it is loaded from there"
)


class ModelLoader:
    """Makes models of an entry; ``sample`` is what each runs on once before it gets its weights."""

    def __init__(
        self, build: Callable[..., object], repo: Repo | None, seed: int, stack: ExitStack
    ) -> None:
        self._build, self._repo, self._seed, self._stack = build, repo, seed, stack
        self._takes_path = _count_arguments(build) == 1
        self._folders: dict[str, Path] = {}  # of commits whose files were written
        self.sample: InputBatch | None = None

    def load(self, operand: str | None) -> nn.Module:
        """Return a new model with the weights of a revision, of the worktree or of files."""
        model = self.make(operand)
        if self.sample is not None and not self._takes_path:
            run_once(model, self.sample)  # makes what modules make when they first run
        self.fill(model, operand)
        return model

    def make(self, operand: str | None) -> nn.Module:
        """Return what the entry builds, from the seed.

        Raises:
            UsageError: the entry fails or returns something else.
        """
        arguments = [self._find_path(operand)] if self._takes_path else []
        torch.manual_seed(self._seed)
        try:
            model = self._build(*arguments)
        except MvcError:
            raise
        except (Exception, SystemExit) as error:
            raise UsageError(f"the entry failed: {describe_error(error)}", hint=_HINT) from error
        if not isinstance(model, torch.nn.Module):
            raise UsageError(
                f"the entry returned {type(model).__name__}, not a torch.nn.Module", hint=_HINT
            )
        return model

    def fill(self, model: nn.Module, operand: str | None) -> None:
        """Load weights into a model, unless its entry did."""
        if not self._takes_path:
            with open_model(operand, self._repo) as stored:
                load_weights(model, stored)

    def _find_path(self, operand: str | None) -> str:
        """Return the file or folder of a checkpoint; a revision's is written to a scratch folder."""
        if operand is None:
            assert self._repo is not None
            return str(self._repo.worktree)
        with open_model(operand, self._repo) as stored:
            commit = stored.commit
        if commit is None or self._repo is None:
            return operand
        if commit not in self._folders:
            scratch = tempfile.TemporaryDirectory(prefix="mvc-verify-")
            self._folders[commit] = Path(self._stack.enter_context(scratch), "files")
            self._repo.export(commit, self._folders[commit])
        return str(self._folders[commit] / operand.partition(":")[2])


def _count_arguments(build: Callable[..., object]) -> int:
    """Return how many arguments an entry needs."""
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):
        return 0
    needed = [
        parameter
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(needed) > 1:
        raise UsageError(f"the entry takes {len(needed)} arguments", hint=_HINT)
    return len(needed)


def load_weights(model: nn.Module, stored: Model) -> None:
    """Give a model the weights of a checkpoint, bit for bit and in their dtypes.

    Of several files those that hold none of the model's names (an optimizer's, say) are passed over, and
    so is what is beside a model whose names all begin alike, as in ``{"model": ..., "optimizer": ...}``.
    A tensor that the checkpoint lacks may be tied to one that it has.

    Raises:
        NotFoundError: the checkpoint lacks a tensor, or holds one that the model does not have.
        ConflictError: a shape differs, two files hold the same name, several models are stored, or
            tied tensors differ.
    """
    live = _find_live(model)
    chosen = choose_tensors(stored, live)
    for name, tensor in chosen.items():
        if tuple(live[name].shape) != tuple(tensor.view.shape):
            raise ConflictError(
                f"tensor {name!r} of {stored.label} has shape {list(tensor.view.shape)}, "
                f"the model that the entry builds {list(live[name].shape)}"
            )
    tied = {_key(live[name]): live[name] for name in chosen}
    absent = [(value, tied[_key(value)]) for name, value in live.items() if name not in chosen]
    filled: dict[int, str] = {}
    with torch.no_grad():
        for name, tensor in chosen.items():
            _fill(live[name], tensor.read("torch"), name, filled)
        for value, partner in absent:
            # A partner that took another dtype has other memory now.
            if _key(value) != _key(partner):
                value.data = partner.data


def _find_live(model: nn.Module) -> dict[str, torch.Tensor]:
    live: dict[str, Any] = model.state_dict(keep_vars=True)
    for name, value in live.items():
        if not isinstance(value, torch.Tensor):
            raise UsageError(
                f"the model's state {name!r} is a {type(value).__name__}, not a tensor"
            )
        if value.is_meta:
            raise UsageError(
                f"tensor {name!r} of the model that the entry builds is on the meta device",
                hint="build the model on the CPU",
            )
    return live


def choose_tensors(stored: Model, live: Mapping[str, torch.Tensor]) -> dict[str, ModelTensor]:
    """Return name → tensor of the files that hold a model, after checking that they fit it."""
    prefix = _find_prefix(stored, live)
    named = [
        (tensor.name.removeprefix(prefix), tensor)
        for tensor in stored.tensors
        if tensor.name.startswith(prefix)
    ]
    files = {tensor.path for name, tensor in named if name in live}
    chosen: dict[str, ModelTensor] = {}
    for name, tensor in named:
        if tensor.path not in files:
            continue
        if name in chosen:
            raise ConflictError(
                f"{chosen[name].path} and {tensor.path} both hold a tensor {tensor.name!r}",
                hint="name one of the files: REV:PATH",
            )
        chosen[name] = tensor
    has = {_key(live[name]) for name in chosen.keys() & live.keys()}
    _refuse([name for name, value in live.items() if _key(value) not in has], stored, "lacks")
    _refuse([name for name in chosen if name not in live], stored, "holds")
    return chosen


def _find_prefix(stored: Model, live: Mapping[str, torch.Tensor]) -> str:
    """Return what the names of a stored model begin with: nothing, if any is one of the live model's."""
    counts: Counter[str] = Counter()
    for name in {tensor.name for tensor in stored.tensors}:
        if name in live:
            return ""
        dots = (place + 1 for place, letter in enumerate(name) if letter == ".")
        counts.update(name[:place] for place in dots if name[place:] in live)
    most = max(counts.values(), default=0)
    prefixes = sorted(prefix for prefix, count in counts.items() if count == most)
    if len(prefixes) > 1:
        raise ConflictError(
            f"{stored.label} holds several models: {_list(prefixes)}",
            hint="give the entry one argument, the path, and let it load the right one",
        )
    return "".join(prefixes)


def _refuse(names: Sequence[str], stored: Model, verb: str) -> None:
    if not names:
        return
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    rest = "" if verb == "lacks" else ", which the model that the entry builds does not have"
    held = ", ".join(tensor.name for tensor in stored.tensors[:_NAMED])
    raise NotFoundError(
        f"{stored.label} {verb} {_list(names)}{more}{rest}", hint=f"it holds {held}, …"
    )


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(repr, list(names)[:_NAMED]))


def _key(value: torch.Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return what two tied tensors have in common, whether or not they are one object."""
    return value.data_ptr() or id(value), tuple(value.shape), tuple(value.stride())


def _fill(target: torch.Tensor, value: torch.Tensor, name: str, filled: dict[int, str]) -> None:
    """Copy a value in place, so that what is tied stays tied; a tensor of another dtype takes it."""
    before = filled.setdefault(id(target), name)
    if before != name:
        is_alike = target.dtype == value.dtype and target.shape == value.shape
        mine, other = (side.contiguous().reshape(-1).view(torch.uint8) for side in (target, value))
        if not (is_alike and mine.equal(other)):
            raise ConflictError(
                f"tensors {before!r} and {name!r} are one in the model, but differ in the checkpoint"
            )
    if target.dtype == value.dtype:
        target.copy_(value)
    else:
        target.data = value

"""Loads a checkpoint's weights into a model built for them: to the bit, or an error."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from mvc import ConflictError, NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import nn

    from mvc import Model, ModelTensor

_NAMED = 3


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
    absent = [(one, tied[_key(one)]) for name, one in live.items() if name not in chosen]
    filled: dict[int, str] = {}
    with torch.no_grad():
        for name, tensor in chosen.items():
            _fill(live[name], tensor.read("torch"), name, filled)
        for one, partner in absent:
            if _key(one) != _key(
                partner
            ):  # the partner took another dtype, and with it other memory
                one.data = partner.data


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
        (one.name.removeprefix(prefix), one)
        for one in stored.tensors
        if one.name.startswith(prefix)
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
    _refuse([name for name, one in live.items() if _key(one) not in has], stored, "lacks")
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
    if before != name and not _is_same(target, value):
        raise ConflictError(
            f"tensors {before!r} and {name!r} are one in the model, but differ in the checkpoint"
        )
    if target.dtype == value.dtype:
        target.copy_(value)
    else:
        target.data = value


def _is_same(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return first.contiguous().view(torch.uint8).equal(second.contiguous().view(torch.uint8))

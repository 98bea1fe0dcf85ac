"""Making the part that fits an object.

The memory of DDP's PowerSGD communication hook belongs to *buckets*, which DDP rebuilds after its first backward pass, in the order in
which gradients arrived. A restored state compresses from its first step on, so in a fresh process
it would meet the buckets from before that: if sizes differ, it fails; if they do not, it adds the
errors of one parameter to another. So the hook must have run once in this process before a state
with memory is restored, as its ``iter`` shows. ``ranks.buckets`` sees to that.
"""

from __future__ import annotations

import reprlib
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mvc import ConflictError, UnsupportedError, UsageError
from mvc_hooks.parts.data import DataPart
from mvc_hooks.parts.module import ModulePart
from mvc_hooks.parts.names import ParameterNames
from mvc_hooks.parts.optimizer import OptimizerPart
from mvc_hooks.parts.optimizer_state import find_optimizers
from mvc_hooks.parts.part import DETAILS, Group, Part, RestoreOrder
from mvc_hooks.parts.reach import GENERATORS
from mvc_hooks.parts.rng import GeneratorPart, RngPart
from mvc_hooks.parts.tree import (
    ABSENT,
    Difference,
    Steps,
    compare_arrays,
    compare_keys,
    find_at,
    format_path,
    list_items,
)
from mvc_hooks.parts.value import Stateful, StatefulPart, ValuePart

_MEMORY = ("error_dict", "p_memory_dict", "q_memory_dict")


class PowerSgdPart(Part):
    """The state of DDP's PowerSGD hook, which has no ``state_dict``; the process group stays."""

    _LEFT = ("process_group",)

    def __init__(self, state: Any) -> None:
        self._state = state

    def capture(self) -> dict[str, object]:
        """Return all of its fields, and the state of its generator."""
        names = [name for name in type(self._state).__slots__ if name not in self._LEFT]
        fields = {name: getattr(self._state, name) for name in names}
        return fields | {"rng": self._state.rng.get_state(legacy=False)}

    def compare(self, live: Any, stored: Any, path: Steps) -> Iterator[Difference]:
        """Compare the fields; there must be no stored memory before DDP has made its final buckets."""
        has_memory = any(find_at(stored, (name,)) not in ({}, ABSENT) for name in _MEMORY)
        if has_memory and find_at(live, ("iter",)) == 0:
            raise ConflictError(
                f"{format_path(path)} is of buckets that DistributedDataParallel has not made yet",
                hint="make it before the checkpointer, or pass warm_up=..., which runs one forward and "
                "backward pass",
            )
        yield from compare_keys(live, stored, path)
        for difference in compare_arrays(live, stored, path):
            key = difference.path[len(path) :]
            if (difference.live is not None and difference.stored is not None) or not str(
                key[0]
            ).endswith("_dict"):
                yield difference

    def targets(self, captured: Any, stored: Any) -> object:  # noqa: ARG002  what fits is picked
        """Return the buckets' memory."""
        return {key: value for key, value in captured.items() if key.endswith("_dict")}

    def restore(self, stored: Any) -> None:
        """Set all fields; new memory of buckets goes where the gradients are."""
        live = self.capture()
        for name, value in stored.items():
            if name == "rng":
                self._state.rng.set_state(value)
            elif isinstance(value, dict):
                mine = getattr(self._state, name)
                placed = {key: self._place(item, live, name, key) for key, item in value.items()}
                mine.clear()
                mine.update(placed)
            else:
                setattr(self._state, name, value)

    def _place(self, value: Any, live: object, name: str, key: object) -> Any:
        mine = find_at(live, (name, key))
        if isinstance(mine, torch.Tensor):
            return value.to(mine.device)
        name_group = getattr(self._state.process_group, "name", None)
        is_nccl = name_group is not None and "nccl" in str(name_group()).lower()
        return value.to("cuda") if is_nccl else value


RNG = "rng"  # the top-level name of the generators of the process
GRADIENTS = "gradients"  # the top-level name of accumulated gradients
_RESERVED = (RNG, DETAILS, GRADIENTS)
_SCALARS = (bool, int, float, complex, str, bytes, np.generic, np.dtype, range, slice)
_TORCH_SCALARS = (torch.Size, torch.dtype, torch.device)
_CONTAINERS = (dict, list, tuple, deque, set, frozenset, bytearray, np.ndarray, torch.Tensor)
_PLAIN = (*_SCALARS, *_TORCH_SCALARS, *_CONTAINERS)
_SURELY_PARTS = (
    *(nn.Module, Optimizer, LRScheduler, torch.amp.GradScaler, torch.utils.data.DataLoader),
    *GENERATORS,
)
_FSDP = ("FSDP1", "shard it by fully_shard() of torch.distributed.fsdp, which is FSDP2")
_ZERO = (
    "DeepSpeed's ZeRO",
    "train with its stage 0 (zero_optimization), or DistributedDataParallel",
)
_SHARDERS = {
    "FullyShardedDataParallel": _FSDP,
    **dict.fromkeys(("DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3"), _ZERO),
    "ZeroRedundancyOptimizer": (
        "ZeRO (ZeroRedundancyOptimizer)",
        "use its optimizer_class directly, or shard the model by fully_shard(), which is FSDP2",
    ),
}
"""Name of class → what shards the object, and what to do instead."""
_NEAR, _SIMILAR = 0.85, 0.6  # "loader" is 0.83 like "ladder"


def join_parts(
    named: Mapping[str, object], parts: Mapping[str, object] | None, options: Collection[str]
) -> dict[str, object]:
    """Return all parts: those passed by name, which ``check_named`` has to accept, and the others."""
    for name, value in named.items():
        if isinstance(value, type):
            raise UsageError(
                f"{name} is the class {value.__name__}, not an object",
                hint="pass an instance of it",
            )
    check_named(named, options)
    if parts is None:
        return dict(named)
    given: object = parts
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise UsageError("parts is not a dict of parts by name", hint='parts={"model": model}')
    for name in named.keys() & parts.keys():
        raise UsageError(f"part {name!r} is passed twice: by name and in parts")
    return {**named, **parts}


def check_named(named: Mapping[str, object], options: Collection[str]) -> None:
    """Refuse what is passed by name but may be a mistyped option, or has no state."""
    for name, value in named.items():
        is_near = bool(get_close_matches(name, options, 1, _NEAR))
        if is_near and not isinstance(value, _SURELY_PARTS):
            reason = "is not an option"
        elif value is None or name == "model" or _has_state(value):
            continue
        elif isinstance(value, (*_PLAIN, nn.Module)):
            reason = "is neither an option nor an object with state"
        else:
            continue  # make_part says what is wrong with it
        similar = get_close_matches(name, options, 1, _SIMILAR)
        shown = type(value).__name__ if isinstance(value, nn.Module) else reprlib.repr(value)
        raise UsageError(
            f"{name}={shown} {reason}",
            hint=(f"did you mean {similar[0]}? " if similar else "")
            + f'parts={{"{name}": ...}} makes any value a part of the run',
        )


def _has_state(value: object) -> bool:
    if isinstance(value, nn.Module):
        return any(True for _ in chain(value.parameters(), value.buffers()))
    if isinstance(value, (dict, list, tuple)):
        return any(_has_state(item) for _, item in list_items(value) or ())
    return isinstance(value, (torch.Tensor, np.ndarray)) or _holds_objects(value)


def make_parts(objects: Mapping[str, object], reserved: Sequence[str] = ()) -> dict[str, Part]:
    """Return the parts of a run, and the generators of the process as ``rng``.

    Names in ``reserved`` are refused, besides those of this module.
    """
    for name in (*_RESERVED, *reserved):
        if name in objects:
            raise UsageError(
                f"{name!r} is a reserved name; choose another name for the part",
                hint=f"reserved names are {', '.join([*_RESERVED, *reserved])}",
            )
    names = ParameterNames(objects)
    parts = {name: make_part(name, value, names) for name, value in objects.items()}
    return {**parts, RNG: RngPart()}


def make_part(name: str, value: Any, names: Mapping[int, str] | None = None) -> Part:
    """Return the part that fits an object; ``names`` are those of all parameters."""
    if hasattr(type(value), "make_part"):  # a loader of ours, say
        value = value.make_part(name)
    part = value if isinstance(value, Part) else _find_part(name, value, names or {})
    if part is not None:
        return part
    if isinstance(value, (dict, list, tuple)) and _holds_objects(value):
        items = list_items(value) or ()
        members = {key: make_part(f"{name}.{key}", item, names) for key, item in items}
        return Group(next(kind for kind in (dict, list, tuple) if isinstance(value, kind)), members)
    if value is None or isinstance(value, _PLAIN):
        return ValuePart(name, value)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise UsageError(
        f"{name} is a {kind}, which has no state_dict and is not a plain value",
        hint="give it state_dict() and load_state_dict(), or pass its values",
    )


def _refuse_shards(name: str, value: object) -> None:
    owners = [value, *value.modules()] if isinstance(value, nn.Module) else [value]
    kinds = {kind.__name__ for owner in owners for kind in type(owner).__mro__}
    if isinstance(value, nn.Module) and any(hasattr(p, "ds_id") for p in value.parameters()):
        kinds.add("DeepSpeedZeroOptimizer")  # the third stage marks the parameters
    for kind in _SHARDERS.keys() & kinds:
        scheme, instead = _SHARDERS[kind]
        raise UnsupportedError(
            f"{name} is sharded by {scheme}: each rank holds a piece of it, a commit holds the whole",
            hint=f"{instead}; or gather the whole state yourself and commit it with "
            "Repo.commit_state",
        )


def _find_part(name: str, value: Any, names: Mapping[int, str]) -> Part | None:
    _refuse_shards(name, value)
    if isinstance(value, nn.Module):
        return ModulePart(name, value)
    if isinstance(value, Optimizer):
        return OptimizerPart(name, value, names)
    if isinstance(value, GENERATORS):
        return GeneratorPart(value)
    if _is_power_sgd(value):
        return PowerSgdPart(value)
    if isinstance(value, Stateful) and not isinstance(value, torch.utils.data.DataLoader):
        return _make_stateful(name, value)
    is_loader = hasattr(type(value), "__iter__") and not isinstance(value, _PLAIN)
    return DataPart(name, value) if is_loader else None


def _make_stateful(name: str, value: Any) -> Part:
    is_fixed = isinstance(value, (LRScheduler, torch.amp.GradScaler))
    if is_fixed:
        return StatefulPart(name, value, RestoreOrder.SCHEDULER)
    if find_optimizers(value):
        return StatefulPart(name, value, RestoreOrder.OPTIMIZER)
    return DataPart(name, value) if hasattr(value, "__iter__") else StatefulPart(name, value)


def _holds_objects(value: object) -> bool:
    """Return whether a container holds live objects, not only values."""
    if isinstance(value, (dict, list, tuple)):
        return any(_holds_objects(item) for _, item in list_items(value) or ())
    kinds = (Stateful, Part, torch.utils.data.DataLoader, *GENERATORS)
    return isinstance(value, kinds) or _is_power_sgd(value)


def _is_power_sgd(value: object) -> bool:
    return any(
        kind.__name__ == "PowerSGDState" and "error_dict" in getattr(kind, "__slots__", ())
        for kind in type(value).__mro__
    )

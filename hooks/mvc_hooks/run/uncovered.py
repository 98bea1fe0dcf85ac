"""What hangs on the objects of a run outside of what their own state has, and tokens that tell whether it changes.

A token is different whenever a value is, and costs little to read.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from mvc_hooks.installed import is_library_class
from mvc_hooks.parts.names import clean_name, unwrap_module
from mvc_hooks.parts.reach import GENERATORS
from mvc_hooks.parts.rng import find_attribute
from mvc_hooks.parts.tree import count_writes, find_changes, list_items, read_bits, walk_leaves
from mvc_hooks.parts.value import Stateful

MAX_ATTRIBUTES = 50_000
_OF_LOADERS = ("dataset", "sampler", "batch_sampler", "batch_sampler.sampler", "collate_fn")
_OF_TORCH = frozenset(vars(nn.Module())) | {
    "defaults", "state", "param_groups", "_warned_capturable_if_run_uncaptured", "_opt_called",
    "_zero_grad_profile_name", "_step_count", "_step_supports_amp_scaling", "grad_scale", "found_inf",
}  # fmt: skip
"""What modules and optimizers keep on themselves for torch."""
_PLAIN_BASES = ("torch", "builtins", "abc", "typing", "collections", "torchdata")
"""Packages whose classes a user extends without sharing private names with them."""
MAX_DEPTH, MAX_ITEMS = 3, 64
_MAX_BYTES, _MAX_BITS = 2**20, 2**16
PLAIN = (bool, int, float, complex, str, bytes)
PARTS = (nn.Module, Optimizer, LRScheduler)
STEPPED = (Optimizer, LRScheduler, torch.amp.GradScaler)


def walk_uncovered(objects: Mapping[str, object]) -> Iterator[tuple[str, Any, Any]]:
    """Yield place, owner and value of everything on the run's objects that their own state leaves out."""
    seen: set[int] = set()
    for name, value in objects.items():
        for place, owner in _owners(name, value):
            if id(owner) in seen or not hasattr(owner, "__dict__"):
                continue
            seen.add(id(owner))
            values = vars(owner).copy()
            covered = values.keys() if is_library_class(type(owner)) else _find_covered(owner)
            for key, held in values.items():
                if key not in covered or isinstance(held, GENERATORS):
                    yield f"{place}.{key}", owner, held


def _owners(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield place and object of everything that may carry attributes."""
    if isinstance(value, nn.Module):
        for name, module in unwrap_module(value).named_modules():
            yield f"{place}.{clean_name(name)}".rstrip("."), module
        return
    items = list_items(value, MAX_ATTRIBUTES)
    for key, item in items or ():
        yield from _owners(f"{place}.{key}", item)
    if items is not None or isinstance(value, GENERATORS):
        return
    yield place, value
    for name, one in getattr(value, "audited", {}).items():  # by a part of an adapter
        yield f"{place}.{name}", one
    if isinstance(value, DataLoader):
        for path in _OF_LOADERS:
            owner = find_attribute(value, path)
            if owner is not None:
                yield f"{place}.{path}", owner


def _find_covered(owner: Any) -> Collection[str]:
    """Return the attributes of a user's object that its own state has, or that are a library's.

    Those that ``set_epoch`` uses come back with the epoch.
    """
    set_epoch = getattr(type(owner), "set_epoch", None)
    names = {*_OF_TORCH, *getattr(getattr(set_epoch, "__code__", None), "co_names", ())}
    bases = [kind for kind in type(owner).__mro__ if is_library_class(kind)]
    if any(kind.__module__.partition(".")[0] not in _PLAIN_BASES for kind in bases):
        names.update(name for name in vars(owner) if name.startswith("_"))
    state = _read_state(owner)
    return names.union(map(str, state)) if isinstance(state, Mapping) else vars(owner)


def _read_state(owner: Any) -> object:
    if isinstance(owner, nn.Module):
        has_own = type(owner).get_extra_state is not nn.Module.get_extra_state
        return owner.get_extra_state() if has_own else {}
    if not isinstance(owner, Stateful):
        return {}
    with suppress(Exception):  # it may have none yet
        # That of torchdata's loaders would begin them, and is complete.
        return None if isinstance(owner, DataLoader) else owner.state_dict()
    return None


def is_in_state(owner: Any, value: Any) -> bool:
    """Return whether an object's own state is a value, or has it under another name."""
    state = _read_state(owner)
    inner = state.values() if isinstance(state, Mapping) else ()
    return any(next(find_changes(value, other), None) is None for other in (state, *inner))


# Tokens.


def read_script_token(value: Any, *, is_carried: bool = True) -> object:
    """Return what changes when a variable of the script does, or None for what is not state.

    What autograd made is of one step, and computed again, unless the loop is known to carry it.
    """
    if isinstance(value, nn.Module):
        return [count_writes(tensor) for tensor in (*value.parameters(), *value.buffers())]
    if isinstance(value, STEPPED):
        leaves = islice(walk_leaves(value.state_dict()), MAX_ITEMS)
        return [read_token(leaf, 1) for _, leaf in leaves]
    is_value = value is None or isinstance(
        value, (*PLAIN, torch.Tensor, np.ndarray, np.generic, set)
    )
    is_kept = is_value or list_items(value, 1) is not None
    return read_token(value, MAX_DEPTH, is_carried=is_carried) if is_kept else None


def holds_arrays(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Return whether a value has arrays of more than one element, modules or optimizers."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return math.prod(value.shape) > 1
    items = list_items(value, MAX_DEPTH) if depth else None
    return isinstance(value, PARTS + STEPPED) or any(
        holds_arrays(item, depth - 1) for _, item in items or ()
    )


def mark_value(value: Any) -> object:
    """Return by what ``is_lasting`` knows a value again, without keeping it alive."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return weakref.ref(value)
    return None if list_items(value, 1) is None else len(value)


def is_lasting(value: Any, mark: Any) -> bool:
    """Return whether an array is the one that was marked, or a container has grown; True for the rest."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return mark is not None and mark() is value
    return list_items(value, 1) is None or (mark is not None and len(value) > mark)


def name_kind(value: object) -> str:
    """Return what people know the type of a value as."""
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def read_token(value: Any, depth: int, *, is_carried: bool = False) -> object:
    """Return what changes when a value does, or None if it cannot be compared cheaply."""
    if value is None or isinstance(value, PLAIN):
        if isinstance(value, int):  # a bit mask may be too long for repr
            return type(value).__name__, value
        return type(value).__name__, hash(value) if isinstance(value, (str, bytes)) else repr(value)
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        return _array_token(value, is_carried=is_carried)
    if isinstance(value, (set, frozenset)):
        return "set", len(value)
    items = list_items(value, MAX_ITEMS + 1)
    if items is None:
        is_opaque = isinstance(value, PARTS) or callable(value) or is_library_class(type(value))
        items = [] if is_opaque else list(getattr(value, "__dict__", {}).items())
        length = len(items)
    else:
        length = len(value)
    if not items or not depth:
        return length
    if len(items) > MAX_ITEMS:
        items = [items[0], *([(-1, value[-1])] if isinstance(value, Sequence) else items[-1:])]
    return length, *(
        (str(key), read_token(item, depth - 1, is_carried=is_carried)) for key, item in items
    )


def _array_token(value: Any, *, is_carried: bool) -> object:
    if not isinstance(value, torch.Tensor):
        return value.tobytes() if value.nbytes <= _MAX_BYTES else id(value)
    if isinstance(value, nn.Parameter) or not (is_carried or value.grad_fn is None):
        return None  # parameters are their module's
    # The next tensor may have the place of one that is gone.
    is_small = value.device.type == "cpu" and value.numel() * value.itemsize <= _MAX_BITS
    return hash(bytes(read_bits(value)[1])) if is_small else (id(value), count_writes(value))

"""Tokens: what is different whenever a value is, and costs little to read."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mvc_hooks.installed import is_library_class
from mvc_hooks.parts.tree import count_writes, list_items, read_bits, walk_leaves

MAX_DEPTH, MAX_ITEMS = 3, 64
_MAX_BYTES, _MAX_BITS = 2**20, 2**16
PLAIN = (bool, int, float, complex, str, bytes)
PARTS = (nn.Module, Optimizer, LRScheduler)
STEPPED = (Optimizer, LRScheduler, torch.amp.GradScaler)


def read_script_token(value: Any, *, is_carried: bool = True) -> object:
    """Return what changes when a variable of the script does, or None for what is not state.

    What autograd made is of one step, and computed again, unless the loop is known to carry it.
    """
    if isinstance(value, nn.Module):
        return [count_writes(one) for one in (*value.parameters(), *value.buffers())]
    if isinstance(value, STEPPED):
        leaves = islice(walk_leaves(value.state_dict()), MAX_ITEMS)
        return [read_token(one, 1) for _, one in leaves]
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

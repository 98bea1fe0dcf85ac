"""What an object reaches through its attributes: the generators and loaders that its order depends on."""

from __future__ import annotations

import random
from collections import deque
from functools import partial
from types import MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from mvc_hooks.parts.tree import list_items

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
"""Classes of generators that have a state of their own."""
_CLOSED = (*GENERATORS, torch.Tensor, np.ndarray, nn.Module, ModuleType, type, str, bytes)
_MOST_OBJECTS, _MOST_ITEMS, _MOST_STEPS = 4000, 64, 8


def find_reachable(
    value: Any, kinds: type | tuple[type, ...], without: object = None
) -> dict[str, Any]:
    """Return path → object of these kinds, nearest first; an object at two paths has the first.

    Long containers, which hold data, are not looked into, nor are models, nor the object ``without``.
    """
    reachable = _walk(value, without)
    return {path: reached for path, reached in reachable if issubclass(type(reached), kinds)}


def find_loaders(value: Any) -> dict[str, DataLoader[Any]]:
    """Return path → torch DataLoader."""
    return find_reachable(value, DataLoader)


def walk_used(value: Any, is_end: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """Yield path and object of all that an object uses, itself first; of an end nothing further."""
    return _walk(value, None, is_end)


def _walk(
    value: Any, without: object, is_end: Callable[[Any], bool] | None = None
) -> Iterator[tuple[str, Any]]:
    pending, seen = deque([("", value)]), {id(value), id(without)}
    while pending:
        path, current = pending.popleft()
        yield path, current
        if is_end is not None and is_end(current):
            continue
        if path.count(".") >= _MOST_STEPS or len(seen) > _MOST_OBJECTS:
            continue
        for number, (key, child) in enumerate(_list_children(current)):
            if id(child) not in seen and not isinstance(child, (int, float, type(None))):
                seen.add(id(child))
                # The text of a tensor, as of a key of an optimizer's state, is all its numbers.
                name = number if isinstance(key, torch.Tensor) else key
                pending.append((f"{path}.{name}" if path else str(name), child))


def _list_children(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, _CLOSED):
        return []
    if isinstance(value, MethodType):
        return [("self", value.__self__)]
    if isinstance(value, partial):
        return [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
    items = list_items(value, _MOST_ITEMS + 1)
    if items is not None:
        return items if len(items) <= _MOST_ITEMS else []
    # An iterator belongs to one pass.
    attributes = getattr(value, "__dict__", {})
    return [
        (name, attribute)
        for name, attribute in list(attributes.items())  # a thread may add to them
        if name not in ("_iterator", "_get_iterator")
    ]

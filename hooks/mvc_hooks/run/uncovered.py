"""What hangs on the objects of a run, outside what their own state has."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from mvc_hooks.installed import is_library_class
from mvc_hooks.parts.names import clean_name, unwrap_module
from mvc_hooks.parts.reach import GENERATORS
from mvc_hooks.parts.rng import find_attribute
from mvc_hooks.parts.tree import find_changes, list_items
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


def walk_uncovered(objects: Mapping[str, object]) -> Iterator[tuple[str, Any, Any]]:
    """Yield place, owner and value of everything on the run's objects that their own state leaves out."""
    seen: set[int] = set()
    for name, value in objects.items():
        for place, owner in _owners(name, value):
            if id(owner) in seen or not hasattr(owner, "__dict__"):
                continue
            seen.add(id(owner))
            yield from _uncovered(place, owner)


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


def _uncovered(place: str, owner: Any) -> Iterator[tuple[str, Any, Any]]:
    values = vars(owner).copy()
    covered = values.keys() if is_library_class(type(owner)) else _find_covered(owner)
    for name, value in values.items():
        if name not in covered or isinstance(value, GENERATORS):
            yield f"{place}.{name}", owner, value


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
    return any(next(find_changes(value, one), None) is None for one in (state, *inner))

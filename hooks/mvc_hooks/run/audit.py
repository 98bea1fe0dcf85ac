"""What the commits of a run hold, and what they miss.

What no part covers cannot be told from types, so it is looked for: generators that hang on the run's
objects, and values on them, outside what their own state has, that change from step to step. A look
reads attributes of the user's classes; it calls nothing of theirs but ``state_dict``, draws nothing,
and pickles nothing. A library's own classes are trusted to have a complete state; only generators
are looked for on them.

A value that changes need not matter (a counter for a progress bar): that is for the user to judge.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from mvc_hooks.parts.data import DataPart
from mvc_hooks.parts.module import clean_name, unwrap_module
from mvc_hooks.parts.part import DETAILS
from mvc_hooks.parts.reach import GENERATORS, find_reachable
from mvc_hooks.parts.rng import GeneratorPart, RngPart, find_attribute, keep_rng
from mvc_hooks.parts.tree import find_changes, format_path, list_items, read_bits, walk_leaves
from mvc_hooks.parts.value import Stateful
from mvc_hooks.run.script import is_library_file, read_carried, read_scope

if TYPE_CHECKING:
    from mvc_hooks.parts.part import Entry, Part

_POSITIONS = {
    "exact": "its own state has the position",
    "drawn again": "the position comes back by drawing the batches again",
    "unknown": "the position does not come back",
}
_MAX_DEPTH = 3
_PASSED = "passed"
_MAX_ITEMS = 64
_MAX_BYTES, _MAX_BITS = 2**20, 2**16
_MAX_ATTRIBUTES = 50_000
_PLAIN = (bool, int, float, complex, str, bytes)
_PARTS = (nn.Module, Optimizer, LRScheduler)
_STEPPED = (Optimizer, LRScheduler, torch.amp.GradScaler)
_OF_LOADERS = ("dataset", "sampler", "batch_sampler", "batch_sampler.sampler", "collate_fn")
_OF_TORCH = frozenset(vars(nn.Module())) | {
    "defaults", "state", "param_groups", "_warned_capturable_if_run_uncaptured", "_opt_called",
    "_zero_grad_profile_name", "_step_count", "_step_supports_amp_scaling", "grad_scale", "found_inf",
}  # fmt: skip
"""What modules and optimizers keep on themselves for torch."""
_PLAIN_BASES = ("torch", "builtins", "abc", "typing", "collections", "torchdata")
"""Packages whose classes a user extends without sharing private names with them."""


@dataclass(frozen=True, slots=True)
class PartAudit:
    """One part of a run, and the tensors of its state."""

    name: str
    tensors: int
    size_bytes: int

    @property
    def size(self) -> str:
        """Both in words."""
        if not self.tensors:
            return "values, no tensors"
        return f"{self.tensors:,} tensor{'s' * (self.tensors > 1)}, {self.size_bytes:,} bytes"


@dataclass(frozen=True, slots=True)
class Audit:
    """What the commits of a run hold, and what they miss; its text is a list.

    Attributes:
        step: completed steps when this was looked at.
        parts: the parts, with their sizes.
        generators: random number generators that are captured, by name.
        loaders: (name, how its position comes back: ``exact``, ``drawn again`` or ``unknown``).
        missing: (place, what it is) of generators and changing values that no part covers, as far
            as they were seen by now.
    """

    step: int
    parts: tuple[PartAudit, ...]
    generators: tuple[str, ...]
    loaders: tuple[tuple[str, str], ...]
    missing: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        lines = [f"{one.name:<14} {one.size}" for one in self.parts]
        lines += [f"{'random':<14} {', '.join(self.generators)}"]
        lines += [f"{name:<14} {_POSITIONS[how]}" for name, how in self.loaders]
        lines += [f"not captured: {place} ({what})" for place, what in self.missing]
        return "\n".join(lines)

    @property
    def summary(self) -> str:
        """One line on what is captured."""
        parts = (
            f"{one.name} ({one.tensors:,} tensors)" if one.tensors else one.name
            for one in self.parts
        )
        loaders = (f"{name} (position {how})" for name, how in self.loaders)
        return ", ".join((*parts, *loaders, f"random numbers of {', '.join(self.generators)}"))


class StateWatch:
    """Looks for state of a run that no part covers."""

    def __init__(self, objects: Mapping[str, object], entries: Sequence[Entry]) -> None:
        self._objects = objects
        self._parts = [entry for entry in entries if entry.path[0] != DETAILS]
        self._passed = _find_passed(objects)
        self._beside: dict[str, Any] = {}
        self._carried: dict[str, object] = {}
        self._told: set[str] = set()
        self._before: dict[str, object] = {}
        self._kept: set[str] = set()
        self._missing: dict[str, str] = {}
        _ALL.add(self)

    @keep_rng()
    def note_script(self, frame: FrameType) -> None:
        """Note the generators that a frame sees, and compare what its loop carries with the last time."""
        found = _with_attributes(read_scope(frame))
        self._beside = {key: one for key, one in found.items() if issubclass(type(one), GENERATORS)}
        covered = {at for one in list(_ALL) for at in _find_reached(one._objects)}  # noqa: SLF001  its own class
        tokens: dict[str, object] = {}
        for place, value in _with_attributes(read_carried(frame), covered).items():
            token = None
            with suppress(Exception):  # whatever an object of the script does, a look ends no run
                token = _script_token(value)
                if _is_covered(value, covered):  # until the script makes another one
                    token = _PASSED if isinstance(value, (*_PARTS, *_STEPPED)) else None
            if token is None:
                continue
            tokens[place] = token
            if token != _PASSED and self._carried.get(place, token) != token:
                self._missing.setdefault(place, f"{_kind(value)}, changes between steps")
                if not _holds_arrays(value):
                    self._told.add(place)  # a sum for a report, more often than not
        self._carried = tokens

    def report(self, step: int) -> Audit:
        """Return what commits hold and, after another look, what they miss."""
        self._look()
        parts, generators, loaders = [], [], []
        for entry in self._parts:
            name, part = format_path(entry.path), entry.part
            generators += [f"{name}.{one}".strip(".") for one in part.generators()]
            if isinstance(part, DataPart):
                loaders.append((name, part.position))
            elif not isinstance(part, (RngPart, GeneratorPart)):
                parts.append(_measure(name, part))
        generators = [name.removeprefix("rng.") for name in generators]
        return Audit(
            step, tuple(parts), tuple(generators), tuple(loaders), tuple(self._missing.items())
        )

    def look(self) -> dict[str, str]:
        """Compare with the last look; return what is newly found missing: place → what it is.

        Plain numbers that only the script has are for ``report`` alone.
        """
        self._look()
        new = {place: what for place, what in self._missing.items() if place not in self._told}
        self._told.update(new)
        return new

    @keep_rng()
    def _look(self) -> None:
        now: dict[str, object] = {}
        beside = dict(self._beside)
        # Some are made late.
        captured = {id(one) for entry in self._parts for one in entry.part.generators().values()}
        captured |= {id(torch.default_generator), id(np.random.mtrand._rand)}  # noqa: SLF001  those of the process
        by_adapter = {id(o) for v in self._objects.values() for o in getattr(v, "covered", ())}
        for place, owner, value in _walk(self._objects):
            if id(value) in by_adapter:
                continue
            if isinstance(value, GENERATORS):
                if id(value) not in captured:
                    self._missing.setdefault(place, f"a {_kind(value)} of its own")
                continue
            if not isinstance(value, _PLAIN):
                inner = find_reachable(value, GENERATORS).items()
                beside |= {f"{place}.{path}": one for path, one in inner}
            token = None if id(value) in self._passed else _token(value, _MAX_DEPTH)
            if token is None:
                continue
            now[place] = token
            if self._before.get(place, token) != token and place not in self._kept:
                if _is_in_state(owner, value):
                    self._kept.add(place)
                else:
                    self._missing.setdefault(place, f"{_kind(value)}, changes between steps")
            if len(now) >= _MAX_ATTRIBUTES:
                break
        now |= self._look_beside(beside, captured)
        self._before = now

    def _look_beside(
        self, beside: Mapping[str, Any], captured: Collection[int]
    ) -> dict[str, object]:
        now: dict[str, object] = {}
        for place, one in {id(one): (place, one) for place, one in beside.items()}.values():
            if id(one) not in captured:
                state = walk_leaves(GeneratorPart(one).capture())
                now[place] = token = [(at, read_bits(leaf)) for at, leaf in state]
                if self._before.get(place, token) != token:
                    self._missing.setdefault(place, f"{_kind(one)}, draws between steps")
        return now


_ALL: weakref.WeakSet[StateWatch] = weakref.WeakSet()


def _measure(name: str, part: Part) -> PartAudit:
    leaves = (leaf for _, leaf in walk_leaves(part.capture()))
    arrays = [leaf for leaf in leaves if isinstance(leaf, (torch.Tensor, np.ndarray))]
    # Not nbytes, which sparse tensors lack.
    sizes = [
        one.itemsize * (one.numel() if isinstance(one, torch.Tensor) else one.size)
        for one in arrays
    ]
    return PartAudit(name, len(sizes), sum(sizes))


def _walk(objects: Mapping[str, object]) -> Iterator[tuple[str, Any, Any]]:
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
    items = list_items(value, _MAX_ATTRIBUTES)
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
    covered = values.keys() if _is_library(type(owner)) else _find_covered(owner)
    for name, value in values.items():
        if name not in covered or isinstance(value, GENERATORS):
            yield f"{place}.{name}", owner, value


def _find_covered(owner: Any) -> Collection[str]:
    """Return the attributes of a user's object that its own state has, or that are a library's.

    Those that ``set_epoch`` uses come back with the epoch.
    """
    set_epoch = getattr(type(owner), "set_epoch", None)
    names = {*_OF_TORCH, *getattr(getattr(set_epoch, "__code__", None), "co_names", ())}
    bases = [kind for kind in type(owner).__mro__ if _is_library(kind)]
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
    # That of torchdata's loaders would begin them, and is complete.
    return None if isinstance(owner, DataLoader) else owner.state_dict()


def _is_in_state(owner: Any, value: Any) -> bool:
    """Return whether an object's own state is a value, or has it under another name."""
    state = _read_state(owner)
    inner = state.values() if isinstance(state, Mapping) else ()
    return any(next(find_changes(value, one), None) is None for one in (state, *inner))


def _find_passed(value: Any) -> set[int]:
    """Return the ids of the containers and values that were passed as parts."""
    items = () if isinstance(value, nn.Module) else list_items(value, _MAX_ATTRIBUTES) or ()
    return {id(value)}.union(*(_find_passed(item) for _, item in items))


def _with_attributes(scope: Mapping[str, Any], without: Collection[int] = ()) -> dict[str, Any]:
    """Return variables, and the attributes of the user's own objects among them."""
    found = dict(scope)
    for name, value in scope.items():
        kind = type(value)
        if (
            issubclass(kind, (type, FunctionType, *_PARTS))
            or id(value) in without
            or _is_library(kind)
        ):
            continue
        with suppress(Exception):  # it may have no attributes, or answer in its own way
            found |= {f"{name}.{key}": one for key, one in vars(value).items()}
    return found


def _find_reached(objects: Mapping[str, object]) -> set[int]:
    """Return the ids of what the parts reach, and where the tensors of their modules lie."""
    found = find_reachable(objects, object).values()
    modules = [one for one in found if isinstance(one, nn.Module)]
    tensors = [one for module in modules for one in (*module.parameters(), *module.buffers())]
    tensors += [one for one in found if isinstance(one, torch.Tensor)]
    inner = [one for module in modules for one in module.modules()]
    return {id(one) for one in (*found, *inner)} | {_address(one) for one in tensors} - {0}


def _address(tensor: torch.Tensor) -> int:
    with suppress(Exception):  # some kinds of tensors have no storage of their own
        return tensor.untyped_storage().data_ptr()
    return id(tensor)


def _is_covered(value: Any, covered: Collection[int]) -> bool:
    """Return whether parts reach a value, or all tensors that it has are theirs."""
    if id(value) in covered:
        return True
    if isinstance(value, nn.Module):
        value = [*value.parameters(), *value.buffers()]
    leaves = [one for _, one in islice(walk_leaves(value), _MAX_ITEMS)]
    return bool(leaves) and all(
        id(one) in covered or (isinstance(one, torch.Tensor) and _address(one) in covered)
        for one in leaves
    )


def _script_token(value: Any) -> object:
    """Return what changes when a variable of the script does, or None for what is no state."""
    if isinstance(value, nn.Module):
        return [one._version for one in (*value.parameters(), *value.buffers())]  # noqa: SLF001
    if isinstance(value, _STEPPED):
        leaves = islice(walk_leaves(value.state_dict()), _MAX_ITEMS)
        return [_token(one, 1) for _, one in leaves]
    is_value = value is None or isinstance(
        value, (*_PLAIN, torch.Tensor, np.ndarray, np.generic, set)
    )
    return _token(value, _MAX_DEPTH) if is_value or list_items(value, 1) is not None else None


def _holds_arrays(value: Any, depth: int = _MAX_DEPTH) -> bool:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return math.prod(value.shape) > 1
    items = list_items(value, _MAX_DEPTH) if depth else None
    return isinstance(value, _PARTS + _STEPPED) or any(
        _holds_arrays(item, depth - 1) for _, item in items or ()
    )


def _is_library(kind: type) -> bool:
    """Return whether a class comes with Python or an installed package."""
    module = kind.__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__" or file is None:
        return module in sys.builtin_module_names
    return module.startswith("mvc_hooks.") or is_library_file(file)


def _kind(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _token(value: Any, depth: int) -> object:
    """Return what changes when a value does, or None if it cannot be compared cheaply."""
    if value is None or isinstance(value, _PLAIN):
        return type(value).__name__, hash(value) if isinstance(value, (str, bytes)) else repr(value)
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        return _array_token(value)
    if isinstance(value, (set, frozenset)):
        return "set", len(value)
    items = list_items(value, _MAX_ITEMS + 1)
    if items is None:
        is_opaque = isinstance(value, _PARTS) or callable(value) or _is_library(type(value))
        items = [] if is_opaque else list(getattr(value, "__dict__", {}).items())
        length = len(items)
    else:
        length = len(value)
    if not items or not depth:
        return length
    if len(items) > _MAX_ITEMS:
        items = [items[0], *([(-1, value[-1])] if isinstance(value, Sequence) else items[-1:])]
    return length, *((str(key), _token(item, depth - 1)) for key, item in items)


def _array_token(value: Any) -> object:
    if not isinstance(value, torch.Tensor):
        return value.tobytes() if value.nbytes <= _MAX_BYTES else id(value)
    # What autograd made is of one step: it is computed again, not carried over. Parameters are their
    # module's.
    is_others = value.grad_fn is not None or isinstance(value, nn.Parameter)
    if is_others:
        return None
    # The next tensor may have the place of one that is gone.
    is_small = value.device.type == "cpu" and value.numel() * value.itemsize <= _MAX_BITS
    return hash(bytes(read_bits(value)[1])) if is_small else (id(value), value._version)  # noqa: SLF001  torch's own count of writes

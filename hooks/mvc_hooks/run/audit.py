"""What the commits of a run hold, and what they miss.

What no part covers cannot be told from types, so it is looked for: generators that hang on the run's
objects, and values on them, outside what their own state has, that change from step to step. A look
reads attributes of the user's classes; it calls nothing of theirs but ``state_dict``, draws nothing,
and pickles nothing. A library's own classes are trusted to have a complete state; only generators
are looked for on them.

A value that changes need not matter (a counter for a progress bar): that is for the user to judge.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from mvc_hooks.installed import is_library_class
from mvc_hooks.parts.data import DataPart
from mvc_hooks.parts.part import DETAILS, Entry, Part
from mvc_hooks.parts.reach import GENERATORS, find_reachable
from mvc_hooks.parts.rng import GeneratorPart, RngPart, keep_rng
from mvc_hooks.parts.tree import format_path, list_items, read_bits, to_local, walk_leaves
from mvc_hooks.run.script import read_carried, read_scope
from mvc_hooks.run.uncovered import (
    MAX_ATTRIBUTES,
    MAX_DEPTH,
    MAX_ITEMS,
    PARTS,
    PLAIN,
    STEPPED,
    holds_arrays,
    is_in_state,
    is_lasting,
    mark_value,
    name_kind,
    read_script_token,
    read_token,
    walk_uncovered,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


_POSITIONS = {
    "exact": "its own state has the position",
    "drawn again": "the position comes back by drawing the batches again",
    "unknown": "the position does not come back",
}
_PASSED = "passed"


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
        lines = [f"{part.name:<14} {part.size}" for part in self.parts]
        lines += [f"{'random':<14} {', '.join(self.generators)}"]
        lines += [f"{name:<14} {_POSITIONS[how]}" for name, how in self.loaders]
        lines += [f"not captured: {place} ({what})" for place, what in self.missing]
        return "\n".join(lines)

    @property
    def summary(self) -> str:
        """One line on what is captured."""
        parts = (
            f"{part.name} ({part.tensors:,} tensors)" if part.tensors else part.name
            for part in self.parts
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
        self._marks: dict[str, object] = {}
        self._told: set[str] = set()
        self._before: dict[str, object] = {}
        self._kept: set[str] = set()
        self._missing: dict[str, str] = {}
        _ALL.add(self)

    @keep_rng()
    def note_script(self, frame: FrameType) -> None:
        """Note the generators that a frame sees, and compare what its loop carries with the last time."""
        scope = _with_attributes(read_scope(frame))
        self._beside = {
            key: value for key, value in scope.items() if issubclass(type(value), GENERATORS)
        }
        covered = {at for watch in list(_ALL) for at in _find_reached(watch._objects)}  # noqa: SLF001  its own class
        tokens: dict[str, object] = {}
        for place, value in _with_attributes(read_carried(frame), covered).items():
            is_attribute = "." in place
            token = None
            with suppress(Exception):  # whatever an object of the script does, a look ends no run
                token = read_script_token(value, is_carried=not is_attribute)
                if _is_covered(value, covered):  # until the script makes another one
                    token = _PASSED if isinstance(value, (*PARTS, *STEPPED)) else None
            if token is None:
                continue
            tokens[place] = token
            if token != _PASSED and self._carried.get(place, token) != token:
                self._missing.setdefault(place, f"{name_kind(value)}, changes between steps")
                is_new = is_attribute and not is_lasting(value, self._marks.get(place))
                if is_new or not holds_arrays(value):
                    self._told.add(place)  # a batch, or a sum for a report, more often than not
            self._marks[place] = mark_value(value)
        self._carried = tokens

    def report(self, step: int) -> Audit:
        """Return what commits hold and, after another look, what they miss."""
        self._look()
        parts, generators, loaders = [], [], []
        for entry in self._parts:
            name, part = format_path(entry.path), entry.part
            generators += [f"{name}.{inner}".strip(".") for inner in part.generators()]
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
        captured = {
            id(value) for entry in self._parts for value in entry.part.generators().values()
        }
        captured |= {id(torch.default_generator), id(np.random.mtrand._rand)}  # noqa: SLF001  those of the process
        by_adapter = {id(o) for v in self._objects.values() for o in getattr(v, "covered", ())}
        for place, owner, value in walk_uncovered(self._objects):
            if id(value) in by_adapter:
                continue
            if isinstance(value, GENERATORS):
                if id(value) not in captured:
                    self._missing.setdefault(place, f"a {name_kind(value)} of its own")
                continue
            if not isinstance(value, PLAIN):
                inner = find_reachable(value, GENERATORS).items()
                beside |= {f"{place}.{path}": one for path, one in inner}
            token = None if id(value) in self._passed else read_token(value, MAX_DEPTH)
            if token is None:
                continue
            now[place] = token
            if self._before.get(place, token) != token and place not in self._kept:
                if is_in_state(owner, value):
                    self._kept.add(place)
                else:
                    self._missing.setdefault(place, f"{name_kind(value)}, changes between steps")
            if len(now) >= MAX_ATTRIBUTES:
                break
        now |= self._look_beside(beside, captured)
        self._before = now

    def _look_beside(
        self, beside: Mapping[str, Any], captured: Collection[int]
    ) -> dict[str, object]:
        now: dict[str, object] = {}
        for place, value in {id(value): (at, value) for at, value in beside.items()}.values():
            if id(value) not in captured:
                state = walk_leaves(GeneratorPart(value).capture())
                now[place] = token = [(at, read_bits(leaf)) for at, leaf in state]
                if self._before.get(place, token) != token:
                    self._missing.setdefault(place, f"{name_kind(value)}, draws between steps")
        return now


_ALL: weakref.WeakSet[StateWatch] = weakref.WeakSet()


def _measure(name: str, part: Part) -> PartAudit:
    leaves = (leaf for _, leaf in walk_leaves(part.capture()))
    arrays = [leaf for leaf in leaves if isinstance(leaf, (torch.Tensor, np.ndarray))]
    # Not nbytes, which sparse tensors lack.
    sizes = [
        array.itemsize * (array.numel() if isinstance(array, torch.Tensor) else array.size)
        for array in arrays
    ]
    return PartAudit(name, len(sizes), sum(sizes))


def _find_passed(value: Any) -> set[int]:
    """Return the ids of the containers and values that were passed as parts."""
    items = () if isinstance(value, nn.Module) else list_items(value, MAX_ATTRIBUTES) or ()
    return {id(value)}.union(*(_find_passed(item) for _, item in items))


def _with_attributes(scope: Mapping[str, Any], without: Collection[int] = ()) -> dict[str, Any]:
    """Return variables, and the attributes of the user's own objects among them."""
    variables = dict(scope)
    for name, value in scope.items():
        kind = type(value)
        if (
            issubclass(kind, (type, FunctionType, *PARTS))
            or id(value) in without
            or is_library_class(kind)
        ):
            continue
        with suppress(Exception):  # it may have no attributes, or answer in its own way
            variables |= {f"{name}.{key}": inner for key, inner in vars(value).items()}
    return variables


def _find_reached(objects: Mapping[str, object]) -> set[int]:
    """Return the ids of what the parts reach, and where the tensors of their modules are."""
    reached = find_reachable(objects, object).values()
    modules = [value for value in reached if isinstance(value, nn.Module)]
    tensors = [held for module in modules for held in (*module.parameters(), *module.buffers())]
    tensors += [value for value in reached if isinstance(value, torch.Tensor)]
    inner = [child for module in modules for child in module.modules()]
    return {id(value) for value in (*reached, *inner)} | {
        _address(tensor) for tensor in tensors
    } - {0}


def _address(tensor: torch.Tensor) -> int:
    with suppress(Exception):  # some kinds of tensors have no storage of their own
        return to_local(tensor).untyped_storage().data_ptr()
    return id(tensor)


def _is_covered(value: Any, covered: Collection[int]) -> bool:
    """Return whether parts reach a value, or all tensors that it has are theirs."""
    if id(value) in covered:
        return True
    if isinstance(value, nn.Module):
        value = [*value.parameters(), *value.buffers()]
    leaves = [leaf for _, leaf in islice(walk_leaves(value), MAX_ITEMS)]
    return bool(leaves) and all(
        id(leaf) in covered or (isinstance(leaf, torch.Tensor) and _address(leaf) in covered)
        for leaf in leaves
    )

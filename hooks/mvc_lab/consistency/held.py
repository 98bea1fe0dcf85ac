"""What a rank holds of a run, and which other ranks hold the same.

Whole tensors are on all ranks. Of a DTensor those ranks hold the same part that differ only along dimensions of
its mesh where it is replicated: replicas of HSDP, and tensors that tensor parallelism leaves whole.

What is held is compared share by share: everything has its turn once in ``every`` steps. The state is cut into shares of about the same size, whole
units where possible: a parameter goes with the state of its optimizer, so that its step can be done again. A
share has at least ``share_bytes``: a small model is seen whole, at once, and not in a hundred tiny pieces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from mvc_hooks.parts.module import ModulePart
from mvc_hooks.parts.names import clean_name, name_parameters
from mvc_hooks.parts.optimizer import OptimizerPart
from mvc_hooks.parts.optimizer_state import index_parameters
from mvc_hooks.parts.part import Part, find_parts
from mvc_hooks.parts.tree import Steps, format_path, is_sharded, to_local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import nn
    from torch.optim import Optimizer


SHARE_BYTES = 16 * 1024 * 1024
_ALIGNED = 64  # elements: a cut within a vector register would be rounded in another way


@dataclass(frozen=True, slots=True)
class Unit:
    """What is looked at together."""

    number: int  # says which it is
    group: str  # which ranks hold the same; a share is of one group
    size_bytes: int  # what a rank holds of it, about
    can_cut: bool  # whether it may be seen in slices


@dataclass(frozen=True, slots=True)
class UnitSlice:
    """The slice ``part`` of ``parts`` of a unit."""

    unit: int
    part: int = 0
    parts: int = 1

    def range(self, numel: int) -> tuple[int, int]:
        """Return where it begins and ends in a tensor of so many elements."""
        ends = (numel * at // self.parts for at in (self.part, self.part + 1))
        first, last = (end // _ALIGNED * _ALIGNED for end in ends)
        return first, numel if self.part + 1 == self.parts else last


@dataclass(frozen=True, slots=True)
class PlannedShare:
    """What is looked at in one step: slices of units of one group."""

    group: str
    slices: tuple[UnitSlice, ...]


def cut_shares(
    units: Iterable[Unit], every: int, share_bytes: int = SHARE_BYTES
) -> tuple[PlannedShare, ...]:
    """Return the shares in the order of their turns."""
    groups: dict[str, list[Unit]] = {}
    for unit in units:
        groups.setdefault(unit.group, []).append(unit)
    return tuple(
        PlannedShare(group, slices)
        for group, members in groups.items()
        for slices in _cut_group(members, every, share_bytes)
    )


def _cut_group(
    units: Sequence[Unit], every: int, share_bytes: int
) -> Iterable[tuple[UnitSlice, ...]]:
    total = sum(unit.size_bytes for unit in units)
    count = min(max(total // share_bytes, 1), every)
    target = max(total / count, 1)
    shares: dict[int, list[UnitSlice]] = {}
    start = 0.0
    for unit in units:
        parts = max(math.ceil(unit.size_bytes / target), 1) if unit.can_cut else 1
        for part in range(parts):
            size = unit.size_bytes / parts
            turn = min(int((start + size / 2) / target), count - 1)
            shares.setdefault(turn, []).append(UnitSlice(unit.number, part, parts))
            start += size
    return (tuple(shares[turn]) for turn in sorted(shares))


def find_due(step: int, count: int, every: int) -> list[int]:
    """Return which of so many shares have their turn at a step; the last one at multiples of ``every``."""
    at = (step - 1) % every + 1  # 1 to every
    first, last = (end * count // every for end in (at - 1, at))
    return list(range(first, last))


Kind = Literal["parameter", "buffer", "state"]
WHOLE = "whole"  # the group of tensors that every rank has


@dataclass(frozen=True, slots=True, eq=False)
class HeldTensor:
    """A tensor of the run of which another rank holds the same."""

    path: Steps  # where it is in the state of the run
    kind: Kind  # of a model, or state of an optimizer
    find: Callable[[], Any]  # returns the live tensor, or None if it is gone
    group: str  # which way of lying on the ranks it has
    row: tuple[int, ...]  # the ranks that hold the same part as this one
    size_bytes: int  # what a rank holds, about; the same number on all ranks
    form: str  # type and shape
    unit: int  # number of the unit that it is looked at with

    @property
    def name(self) -> str:
        """Its name in reports: that in the state of the run."""
        return format_path(self.path)

    def local(self) -> torch.Tensor | None:
        """Return what is here of it, or None."""
        tensor = self.find()
        return to_local(tensor.detach()) if isinstance(tensor, torch.Tensor) else None


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A parameter in an optimizer, and in which of its groups it is."""

    optimizer: Optimizer
    param: torch.Tensor
    group: int
    unit: int

    @property
    def state(self) -> dict[Any, Any]:
        """What the optimizer keeps for it."""
        state = self.optimizer.state.get(self.param)
        return state if isinstance(state, dict) else {}

    def read(self, key: object) -> Any:
        """Return what the state has under a key now, or None."""
        return self.state.get(key)


@dataclass(frozen=True, slots=True)
class ComparedTensors:
    """All that can be compared; ``slots`` are by number of unit."""

    tensors: tuple[HeldTensor, ...]
    slots: Mapping[int, Slot]

    def without(self, names: Iterable[str], patterns: Sequence[str] = ()) -> ComparedTensors:
        """Return the rest of them."""
        out = set(names)
        kept = (tensor for tensor in self.tensors if tensor.name not in out)
        return ComparedTensors(
            tuple(
                tensor
                for tensor in kept
                if not any(fnmatchcase(tensor.name, pattern) for pattern in patterns)
            ),
            self.slots,
        )

    def units(self) -> Iterator[Unit]:
        """Yield what the plan needs to know; of a unit there is one for each group."""
        members: dict[tuple[int, str], list[HeldTensor]] = {}
        for tensor in self.tensors:
            members.setdefault((tensor.unit, tensor.group), []).append(tensor)
        for (number, group), held in members.items():
            can_cut = (
                len({tensor.form for tensor in held if tensor.size_bytes > _SCALAR_BYTES}) == 1
            )
            yield Unit(number, group, sum(tensor.size_bytes for tensor in held), can_cut)

    def describe(self) -> list[tuple[str, str, str, int]]:
        """Return what has to be the same on all ranks for them to have one plan."""
        return [
            (tensor.name, tensor.form, tensor.group, tensor.size_bytes) for tensor in self.tensors
        ]


_SCALAR_BYTES = 16


def list_held(parts: Mapping[str, Part], size: int) -> ComparedTensors:
    """Return what this rank of ``size`` holds that another one has, too."""
    lister = _Lister(size)
    optimizers, modules = find_parts(parts, OptimizerPart), find_parts(parts, ModulePart)
    for path, part in optimizers:
        lister.take_slots(path, part.optimizer)
    for path, model in modules:
        for name, weight in name_parameters(model.module).items():
            lister.add_parameter((*path, name), weight)
    for path, part in optimizers:
        for index, param in index_parameters(part.optimizer).items():
            lister.add_parameter((*path, "params", index), param)
    for path, model in modules:
        lister.add_buffers(path, model.module)
    return ComparedTensors(tuple(lister.held), lister.slots)


class _Lister:
    def __init__(self, size: int) -> None:
        self._size = size
        self._unit = 0
        self._seen: set[int] = set()
        self._known: dict[int, list[tuple[Steps, int, Optimizer, int]]] = {}
        self.held: list[HeldTensor] = []
        self.slots: dict[int, Slot] = {}

    def take_slots(self, path: Steps, optimizer: Optimizer) -> None:
        indices = {id(param): index for index, param in index_parameters(optimizer).items()}
        for number, group in enumerate(optimizer.param_groups):
            for param in group["params"]:
                place = path, indices[id(param)], optimizer, number
                self._known.setdefault(id(param), []).append(place)

    def add_parameter(self, path: Steps, param: torch.Tensor) -> None:
        if id(param) in self._seen:
            return
        self._begin(param)
        self._add(path, "parameter", param, lambda: param)
        for place, index, optimizer, group in self._known.get(id(param), ()):
            slot = Slot(optimizer, param, group, self._unit)
            self.slots.setdefault(self._unit, slot)
            for key, value in slot.state.items():
                state_path = (*place, "state", index, key)
                self._add(state_path, "state", value, partial(slot.read, key))

    def add_buffers(self, path: Steps, module: nn.Module) -> None:
        for name, buffer in module.named_buffers():
            if id(buffer) not in self._seen:
                self._begin(buffer)
                find = partial(_find_buffer, module, name)
                self._add((*path, clean_name(name)), "buffer", buffer, find)

    def _begin(self, tensor: torch.Tensor) -> None:
        self._seen.add(id(tensor))
        self._unit += 1

    def _add(self, path: Steps, kind: Kind, tensor: Any, find: Callable[[], Any]) -> None:
        # Only plain tensors are compared: the bytes of others are not all of their content.
        if not isinstance(tensor, torch.Tensor) or tensor.is_meta:
            return
        here = to_local(tensor)
        if type(here) not in (torch.Tensor, torch.nn.Parameter) or here.layout is not torch.strided:
            return
        group, row, shards = find_replicas(tensor, self._size)
        if len(row) > 1:
            size = -(-tensor.numel() // shards) * tensor.element_size()
            form = f"{tensor.dtype}{list(tensor.shape)}"
            self.held.append(HeldTensor(path, kind, find, group, row, size, form, self._unit))


def _find_buffer(module: nn.Module, name: str) -> Any:
    owner, _, last = name.rpartition(".")
    return getattr(module.get_submodule(owner), last, None)


def find_replicas(tensor: Any, size: int) -> tuple[str, tuple[int, ...], int]:
    """Return the way a tensor lies on the ranks, the ranks that have the same part, and in how many parts it is."""
    if not is_sharded(tensor):
        return WHOLE, tuple(range(size)), 1
    mesh, placements = tensor.device_mesh, tensor.placements
    here = mesh.get_coordinate()
    copied = [dim for dim, placement in enumerate(placements) if placement.is_replicate()]
    group = f"{list(mesh.shape)}{list(mesh.mesh_dim_names or ())} copied along {copied}"
    if here is None or any(placement.is_partial() for placement in placements):
        return group, (), 1
    cut = tuple(slice(None) if dim in copied else at for dim, at in enumerate(here))
    row = tuple(sorted(mesh.mesh[cut].flatten().tolist()))
    shards = math.prod(n for dim, n in enumerate(mesh.shape) if dim not in copied)
    return group, row, shards

"""A part of a run: a live object whose state can be captured and restored exactly.

A restore has four steps, and a part has a method for the first three. ``compare`` names every
difference in structure before anything is touched. ``targets`` lends the live tensors that may be
filled in place. ``restore`` does the rest, with those tensors already filled. Then everything is
captured again and compared with what was stored, bit by bit.

An object that loads in its own way (observers that resize their buffers, wrapped optimizers) decides
itself about a difference: before anything else is touched it takes its state, and if that fails or
is not exact, ``hold`` takes it back.

Capturing must have no side effect: it may neither draw a random number, nor create state that does
not exist yet (a fresh optimizer has none, and *absent* is not *zero*), nor change a mode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from mvc_hooks.parts.shards import blank_shards
from mvc_hooks.parts.tree import (
    ABSENT,
    Difference,
    compare_arrays,
    find_at,
    list_items,
    map_tensors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from mvc_hooks.parts.tree import Steps

_KINDS = (dict, list, tuple)
_Kind = TypeVar("_Kind", bound="Part")
DETAILS = "details"
"""The top-level name for what a part's own state cannot hold (flags, ties, parameter names)."""


class RestoreOrder(IntEnum):
    """When a part is restored; random number generators come last, because others may draw.

    Schedulers come before optimizers: their constructors and some ``load_state_dict`` write learning
    rates into the optimizer, and the optimizer's own stored values have the last word.
    """

    OTHER = 0
    MODULE = 1
    SCHEDULER = 2
    OPTIMIZER = 3
    GRADIENTS = 4
    DATA = 5
    RNG = 6


class Part(ABC):
    """A live object of the run; ``companion`` holds what its own state leaves out, for ``details``.

    ``extension`` is the module of the extension that a run with such a part has.
    """

    order: RestoreOrder = RestoreOrder.OTHER
    companion: Part | None = None
    extension: str | None = None

    @abstractmethod
    def capture(self) -> object:
        """Return the state, nested; tensors are the live ones, detached, not copies."""

    @abstractmethod
    def restore(self, stored: Any) -> None:
        """Take a stored state, or raise ConflictError.

        The tensors that ``targets`` lent are in it, filled; others are new, on the host. Nothing
        else holds its containers.
        """

    def generators(self) -> Mapping[str, object]:
        """Return name → generator of the random number generators that the state has."""
        return {}

    def compare(self, live: Any, stored: Any, path: Steps) -> Iterable[Difference]:
        """Return the differences between live and stored outline that ``restore`` cannot overcome."""
        return compare_arrays(live, stored, path)

    def hold(self, state: Any) -> Callable[[], None]:
        """Return a function that takes the part back to now; ``state`` is a copy of what it has."""
        return lambda: self.restore(map_tensors(state, torch.clone))

    def targets(self, captured: Any, stored: Any) -> object:
        """Return the tensors that may be filled, nested as the state, or ABSENT.

        They are those of the captured state that may be filled in place, and new DTensors where
        the stored outline has a tensor that is to come back as one. The default lends new ones only.
        """
        return blank_shards(captured, stored)


class Group(Part):
    """Parts under one name, by key or index: a dict, list or tuple of models, optimizers, ..."""

    def __init__(self, kind: type, members: Mapping[object, Part]) -> None:
        """Make a group whose state is a container of that kind (dict, list or tuple)."""
        self.kind = kind
        self.members = dict(members)

    def capture(self) -> object:
        """Return the members' states in a container as the live one."""
        states = {key: part.capture() for key, part in self.members.items()}
        return states if self.kind is dict else self.kind(states.values())

    def restore(self, stored: Any) -> None:
        """Do nothing: members are restored one by one, in their own order."""

    def compare(self, live: Any, stored: Any, path: Steps) -> Iterator[Difference]:
        """Compare member by member; one more or less is a difference."""
        if not isinstance(live, _KINDS) or not isinstance(stored, _KINDS):
            yield Difference(path, type(live).__name__, type(stored).__name__)
            return
        ours, theirs = dict(list_items(live) or ()), dict(list_items(stored) or ())
        for key in theirs.keys() - self.members.keys():
            yield Difference((*path, key), None, "a part")
        for key, part in self.members.items():
            if key in theirs:
                yield from part.compare(ours[key], theirs[key], (*path, key))
            else:
                yield Difference((*path, key), "a part", None)

    def targets(self, captured: Any, stored: Any) -> object:
        """Return what the members lend."""
        states = dict(list_items(captured) or ())
        lent = {
            key: part.targets(states[key], find_at(stored, (key,)))
            for key, part in self.members.items()
        }
        if self.kind is dict:
            return {key: value for key, value in lent.items() if value is not ABSENT}
        return [None if value is ABSENT else value for value in lent.values()]


@dataclass(frozen=True, slots=True)
class Entry:
    """A part or a companion, and the path of its state."""

    path: Steps
    part: Part

    @property
    def details(self) -> Steps:
        """The path of a part's companion."""
        return (DETAILS, *(key if type(key) is str else str(key) for key in self.path))


def find_parts(parts: Mapping[str, Part], kind: type[_Kind]) -> list[tuple[Steps, _Kind]]:
    """Return path and part of those of a class."""
    entries = flatten_parts(parts)
    return [(entry.path, entry.part) for entry in entries if isinstance(entry.part, kind)]


def list_places(parts: Mapping[str, Part]) -> list[Entry]:
    """Return the parts as they are, groups whole, and after them all companions."""
    companions = [entry for entry in flatten_parts(parts) if entry.path[0] == DETAILS]
    return [*(Entry((name,), part) for name, part in parts.items()), *companions]


def flatten_parts(parts: Mapping[str, Part]) -> list[Entry]:
    """Return all parts and companions, with members in place of groups."""
    entries: list[Entry] = []
    pending = [Entry((name,), part) for name, part in reversed(list(parts.items()))]
    while pending:
        entry = pending.pop()
        if isinstance(entry.part, Group):
            members = reversed(entry.part.members.items())
            pending += [Entry((*entry.path, key), member) for key, member in members]
            continue
        entries.append(entry)
        if entry.part.companion is not None:
            entries.append(Entry(entry.details, entry.part.companion))
    return entries

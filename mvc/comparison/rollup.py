"""Statistics of many tensors as one: by module, by kind, and in all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.comparison.kinds import find_kind, find_part
from mvc.tensor_names import natural_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mvc.comparison.changes import TensorChange
    from mvc.numbers.statistics import TensorStatistics

_MAX_DEPTH = 16


@dataclass(slots=True)
class Group:
    """Several tensors as one.

    Attributes:
        name: of the module or kind; empty for all tensors.
        tensors: how many there are.
        elements: of all of them; of a tensor that grew or shrank, on the longer side.
        differing: how many of the tensors are not as before, whatever their names.
        statistics: of those that were compared, joined; None if none was.
    """

    name: str
    tensors: int = 0
    elements: int = 0
    differing: int = 0
    statistics: TensorStatistics | None = None

    def add(self, change: TensorChange) -> None:
        """Take one more tensor in."""
        sides = [side.elements for side in (change.pair.old, change.pair.new) if side is not None]
        self.tensors += 1
        self.elements += max(sides)
        self.differing += change.status not in ("unchanged", "renamed")
        if change.statistics is not None:
            known = self.statistics
            self.statistics = change.statistics if known is None else known + change.statistics


def sum_up(changes: Iterable[TensorChange]) -> Group:
    """Return all tensors as one group."""
    group = Group("")
    for change in changes:
        group.add(change)
    return group


def by_layer(changes: Iterable[TensorChange]) -> list[Group]:
    """Return layers (``model.layers.10``), and the modules outside of them, in natural order."""
    groups: dict[str, Group] = {}
    for change in changes:
        name = find_part(change.name)
        groups.setdefault(name, Group(name)).add(change)
    return sort_naturally([*groups.values()])


def by_kind(changes: Iterable[TensorChange]) -> list[Group]:
    """Return the kinds of tensors, in the order in which they first appear."""
    groups: dict[str, Group] = {}
    for change in changes:
        kind = find_kind(change.name, change.pair.shown.view.shape)
        groups.setdefault(kind, Group(kind)).add(change)
    return list(groups.values())


def by_module(changes: Iterable[TensorChange]) -> list[Group]:
    """Return every module that holds more than one tensor, each before the modules in it."""
    groups: dict[str, Group] = {}
    for change in changes:
        parts = change.name.split(".", _MAX_DEPTH)
        for depth in range(1, len(parts)):
            name = ".".join(parts[:depth])
            groups.setdefault(name, Group(name)).add(change)
    return sort_naturally([group for group in groups.values() if group.tensors > 1])


def sort_naturally(groups: Sequence[Group]) -> list[Group]:
    """Return groups by name, where ``layers.9`` comes before ``layers.10``."""
    return sorted(groups, key=lambda group: natural_key(group.name))

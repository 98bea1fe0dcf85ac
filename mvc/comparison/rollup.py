"""Statistics of many tensors as one: by module, by kind, and in all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from mvc.comparison.kinds import find_kind, find_part
from mvc.numbers.statistics import TensorStatistics, join
from mvc.tensor_names import natural_key

if TYPE_CHECKING:
    from mvc.comparison.pairs import TensorChange

_MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Several tensors as one.

    Attributes:
        name: of the module or kind; empty for all tensors.
        tensors: how many there are.
        elements: of all of them; of a tensor that grew or shrank, on the longer side.
        differing: how many of the tensors are not as before, whatever their names.
        statistics: of those that were compared, joined; None if none was.
    """

    name: str
    tensors: int
    elements: int
    differing: int
    statistics: TensorStatistics | None


def sum_up(changes: Sequence[TensorChange], name: str = "") -> TensorGroup:
    """Return tensors as one group."""
    compared = [change.statistics for change in changes if change.statistics is not None]
    return TensorGroup(
        name,
        len(changes),
        sum(max(side.elements for side in change.pair.sides) for change in changes),
        sum(change.status not in ("unchanged", "renamed") for change in changes),
        join(compared) if compared else None,
    )


def by_layer(changes: Iterable[TensorChange]) -> list[TensorGroup]:
    """Return layers (``model.layers.10``), and the modules outside of them, in natural order."""
    return sort_naturally(_group(changes, lambda change: [find_part(change.name)]))


def by_kind(changes: Iterable[TensorChange]) -> list[TensorGroup]:
    """Return the kinds of tensors, in the order in which they first appear."""
    return _group(changes, lambda one: [find_kind(one.name, one.pair.shown.view.shape)])


def by_module(changes: Iterable[TensorChange]) -> list[TensorGroup]:
    """Return every module that holds more than one tensor, each before the modules in it."""

    def names_of(change: TensorChange) -> list[str]:
        return list(accumulate(change.name.split(".", _MAX_DEPTH)[:-1], "{}.{}".format))

    return sort_naturally(_group(changes, names_of, least=2))


def _group(
    changes: Iterable[TensorChange],
    names_of: Callable[[TensorChange], Iterable[str]],
    least: int = 1,
) -> list[TensorGroup]:
    """Return the groups that tensors belong to, those of at least ``least`` tensors."""
    groups: dict[str, list[TensorChange]] = {}
    for change in changes:
        for name in names_of(change):
            groups.setdefault(name, []).append(change)
    return [sum_up(some, name) for name, some in groups.items() if len(some) >= least]


def sort_naturally(groups: Sequence[TensorGroup]) -> list[TensorGroup]:
    """Return groups by name, where ``layers.9`` comes before ``layers.10``."""
    return sorted(groups, key=lambda group: natural_key(group.name))

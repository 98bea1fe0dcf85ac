"""The heat map: tensors by layer and kind, as cells that the page draws."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_DIGITS = "0123456789"
_MOST_COLUMNS = 128
_MOST_KINDS = 64
_MOST_STACKS = 32
_STATES = ("broken", "changed", "unmeasured", "added", "removed", "same")


@dataclass(frozen=True, slots=True)
class Spot:
    """One tensor on the map: where it is, its state, and a value if it changed."""

    kind: str
    layer: str | None
    state: str
    value: float | None


@dataclass(frozen=True, slots=True)
class Cell:
    """Tensors of one kind in one column: the worst state, its colour, and which they are.

    ``shade`` is the place of the largest value between the ends of the colours, 0 to 1.
    """

    kind: int
    column: int
    state: str
    shade: float | None
    spots: list[int]


@dataclass(frozen=True, slots=True)
class HeatMap:
    """All cells.

    Attributes:
        kinds: names of the rows.
        columns: numbers of layers; the first, for tensors of no layer, is empty.
        stacks: what the layers of neighbouring columns are of, with the number of columns.
        cells: what is in them.
        span: values at the ends of the colours, which are logarithmic.
        kinds_left_out: how many kinds have no row, since there are too many.
    """

    kinds: list[str]
    columns: list[str]
    stacks: list[tuple[str, int]]
    cells: list[Cell]
    span: tuple[float, float]
    kinds_left_out: int


def lay_out(spots: Sequence[Spot]) -> HeatMap:
    """Return the map of tensors; neighbouring layers share a column if there are many."""
    layers = list(dict.fromkeys(one.layer for one in spots if one.layer is not None))
    share = math.ceil(len(layers) / _MOST_COLUMNS) or 1
    by_stack: dict[str, list[str]] = defaultdict(list)
    for layer in layers:
        by_stack[layer.rstrip(_DIGITS)].append(layer)
    if len(by_stack) > _MOST_STACKS:
        by_stack = {"": layers}
    columns = [
        stack[at : at + share] for stack in by_stack.values() for at in range(0, len(stack), share)
    ]
    column_of = {layer: place for place, some in enumerate(columns, 1) for layer in some}
    found: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for place, one in enumerate(spots):
        column = 0 if one.layer is None else column_of[one.layer]
        found[one.kind][column].append(place)
    kept = _worst_kinds(found, spots)
    span = _span([spot.value for spot in spots if spot.value is not None])
    cells = [
        _cell(row, column, spots, places, span)
        for row, kind in enumerate(kept)
        for column, places in sorted(found[kind].items())
    ]
    stacks = [
        (stack.rstrip("._/"), math.ceil(len(some) / share)) for stack, some in by_stack.items()
    ]
    names = ["", *map(_range, columns)]
    return HeatMap(kept, names, stacks, cells, span, len(found) - len(kept))


def _worst_kinds(
    found: Mapping[str, Mapping[int, Iterable[int]]], spots: Sequence[Spot]
) -> list[str]:
    """Return the kinds to show, in their order: those with the largest values if there are many."""
    if len(found) <= _MOST_KINDS:
        return list(found)

    def worst(kind: str) -> float:
        some = [spots[place] for column in found[kind].values() for place in column]
        if any(spot.state == "broken" for spot in some):
            return math.inf
        return max((spot.value for spot in some if spot.value is not None), default=-1.0)

    kept = set(sorted(found, key=worst, reverse=True)[:_MOST_KINDS])
    return [kind for kind in found if kind in kept]


def _cell(
    row: int, column: int, spots: Sequence[Spot], places: list[int], span: tuple[float, float]
) -> Cell:
    states = {spots[place].state for place in places}
    state = next(one for one in _STATES if one in states)
    values = [value for place in places if (value := spots[place].value) is not None]
    shade = None
    if values:
        low, high = span
        largest = max(values)
        inside = math.log(largest / low) / math.log(high / low) if largest > 0 else 0.0
        shade = min(max(inside, 0.0), 1.0)
    return Cell(row, column, state, shade, places)


def _range(layers: Sequence[str]) -> str:
    first, last = (layers[end].removeprefix(layers[end].rstrip(_DIGITS)) for end in (0, -1))
    return first if len(layers) == 1 else f"{first}-{last}"


def _span(values: Iterable[float]) -> tuple[float, float]:
    """Return the ends of the values above zero: one decade at least, six at most."""
    above = [value for value in values if 0 < value < math.inf]
    if not above:
        return 0.1, 1.0
    high = max(above)
    return max(min(*above, high / 10), high / 1e6), high

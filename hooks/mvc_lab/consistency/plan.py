"""Which share of the state is looked at in which step. Pure, and the same on every rank.

Everything has its turn once in ``every`` steps. The state is cut into shares of about the same size, whole
units where possible: a parameter goes with the state of its optimizer, so that its step can be done again. A
share has at least ``share_bytes``: a small model is seen whole, at once, and not in a hundred tiny pieces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SHARE_BYTES = 16 * 1024 * 1024
_ALIGNED = 64  # elements: a cut within a vector register would be rounded in another way


@dataclass(frozen=True, slots=True)
class Unit:
    """What is looked at together.

    Attributes:
        number: says which it is.
        group: which ranks hold the same; a share is of one group.
        size_bytes: what a rank holds of it, about.
        can_cut: whether it may be seen in slices.
    """

    number: int
    group: str
    size_bytes: int
    can_cut: bool


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

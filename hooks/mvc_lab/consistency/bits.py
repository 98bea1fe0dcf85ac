"""How the bits of two tensors of one form differ. Pure."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch

from mvc_lab.consistency.digest import view_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_Value = TypeVar("_Value")
_ONES = torch.tensor([number.bit_count() for number in range(256)], dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class BitDifference:
    """Where two rows of elements differ first, and by how much; ``first`` is None if they do not."""

    first: int | None = None
    elements: int = 0
    bits: int = 0
    max_delta: float = 0.0

    def then(self, other: BitDifference, offset: int) -> BitDifference:
        """Return the difference of this row with another one after it, which begins at ``offset``."""
        first = self.first
        if first is None and other.first is not None:
            first = offset + other.first
        return BitDifference(
            first,
            self.elements + other.elements,
            self.bits + other.bits,
            max(self.max_delta, other.max_delta),
        )


def compare_bits(ours: torch.Tensor, theirs: torch.Tensor) -> BitDifference:
    """Compare two tensors on the host, of the same form, element by element in their order."""
    mine, other = view_bytes(ours), view_bytes(theirs)
    changed = mine.bitwise_xor(other).view(-1, ours.element_size())
    places = changed.any(1).nonzero().reshape(-1)
    if not len(places):
        return BitDifference()
    bits = int(_ONES[changed[places].long()].sum())
    pair = (tensor.detach().reshape(-1)[places] for tensor in (ours, theirs))
    return BitDifference(int(places[0]), len(places), bits, _find_delta(*pair))


def _find_delta(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the largest difference; infinite if one of two numbers is not finite and they are not equal."""
    wide = torch.complex128 if ours.is_complex() else torch.float64
    mine, other = ours.to(wide), theirs.to(wide)
    deltas = (mine - other).abs()
    deltas[(mine == other) | (mine.isnan() & other.isnan())] = 0
    return float(deltas.nan_to_num(nan=math.inf, posinf=math.inf).max())


def find_index(flat: int, shape: Sequence[int], offsets: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the index of an element by its number, in a box that begins at ``offsets`` of a whole tensor."""
    index = []
    for size in reversed(shape):
        flat, at = divmod(flat, size)
        index.append(at)
    first = offsets or (0,) * len(shape)
    return tuple(start + at for start, at in zip(first, reversed(index), strict=True))


def find_majority(values: Mapping[int, _Value]) -> tuple[int, ...]:
    """Return the ranks of which more than half have the same; none if no value has so many."""
    (value, count), *_ = Counter(values.values()).most_common(1)
    is_most = 2 * count > len(values)
    return tuple(rank for rank, other in sorted(values.items()) if is_most and other == value)

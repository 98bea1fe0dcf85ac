"""Health as a value that can be added, stored and shown without an array."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

_KEPT = struct.Struct("<4Q2d")


@dataclass(frozen=True, slots=True)
class Health:
    """Figures of some elements on their own, without a comparison; ``+`` joins parts.

    Of a complex element each figure is that of its magnitude.

    Attributes:
        elements: how many were measured; those of types whose values are not known do not count.
        nan: how many are not a number.
        inf: how many are infinite.
        zeros: how many are zero, of either sign.
        saturated: how many of an 8-bit or smaller float type are at its largest finite magnitude.
        largest: the largest magnitude among the finite ones; 0.0 if there are none.
        sum_sq: sum of the squares of the finite ones. Its relative error is below 1e-4 in any
            order of adding (1,024 terms in float32, all others in float64), and typically 1e-8.
    """

    elements: int = 0
    nan: int = 0
    inf: int = 0
    zeros: int = 0
    saturated: int = 0
    largest: float = 0.0
    sum_sq: float = 0.0

    def __add__(self, other: Health) -> Health:
        return Health(
            self.elements + other.elements,
            self.nan + other.nan,
            self.inf + other.inf,
            self.zeros + other.zeros,
            self.saturated + other.saturated,
            max(self.largest, other.largest),
            self.sum_sq + other.sum_sq,
        )

    @property
    def norm(self) -> float:
        """Euclidean norm of the finite elements."""
        return math.sqrt(self.sum_sq)

    def encode(self) -> bytes:
        """Return it in few bytes, without the zeros."""
        counts = self.elements, self.nan, self.inf, self.saturated
        return _KEPT.pack(*counts, self.largest, self.sum_sq)


def decode_health(data: bytes) -> Health | None:
    """Return the health in bytes from ``Health.encode``, without zeros; None if they are not valid."""
    if len(data) != _KEPT.size:
        return None
    elements, nan, inf, saturated, largest, sum_sq = _KEPT.unpack(data)
    return Health(elements, nan, inf, 0, saturated, largest, sum_sq)

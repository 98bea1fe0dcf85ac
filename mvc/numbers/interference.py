"""Interference of task vectors: elements that several models changed, and in opposite directions.

The measures of Yadav et al., "TIES-Merging", 2023: sign conflicts make averages small, and task
vectors that are nearly orthogonal can be added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Interference:
    """Task vectors of some models over one base; parts of a tensor, and tensors, add up.

    Attributes:
        elements: how many were looked at.
        changed: how many elements each model changed.
        shared: how many elements at least two models changed.
        opposed: how many of these at least two changed in opposite directions.
        dots: dot products of the task vectors, all with all, row by row.
    """

    elements: int
    changed: tuple[int, ...]
    shared: int
    opposed: int
    dots: tuple[float, ...]

    def __add__(self, other: Interference) -> Interference:
        """Join two parts of the same models."""
        return Interference(
            self.elements + other.elements,
            tuple(a + b for a, b in zip(self.changed, other.changed, strict=True)),
            self.shared + other.shared,
            self.opposed + other.opposed,
            tuple(a + b for a, b in zip(self.dots, other.dots, strict=True)),
        )

    @property
    def share_shared(self) -> float:
        """Share of all elements that at least two models changed."""
        return self.shared / self.elements if self.elements else 0.0

    @property
    def share_opposed(self) -> float:
        """Share of the commonly changed elements on which the models moved in opposite directions."""
        return self.opposed / self.shared if self.shared else 0.0

    @property
    def cosine(self) -> float | None:
        """Mean cosine of all pairs of task vectors that are not zero; None if there is no such pair."""
        count = len(self.changed)
        gram = np.array(self.dots).reshape(count, count)
        norms = np.sqrt(np.diag(gram))
        found = [
            float(gram[a, b] / (norms[a] * norms[b]))
            for a, b in combinations(range(count), 2)
            if norms[a] * norms[b] > 0
        ]
        return sum(found) / len(found) if found else None


def measure(deltas: Sequence[NDArray[Any]]) -> Interference:
    """Measure some elements of the task vectors of several models."""
    wide = [delta.astype(np.float64) for delta in deltas]
    signs = np.sign(wide)
    changed = ~(signs == 0)  # a NaN is a change, too
    up, down = np.any(signs > 0, axis=0), np.any(signs < 0, axis=0)
    dots = tuple(float(np.sum(a * b)) for a in wide for b in wide)
    return Interference(
        wide[0].size,
        tuple(int(one) for one in changed.sum(axis=1)),
        int(np.sum(changed.sum(axis=0) > 1)),
        int(np.sum(up & down)),
        dots,
    )

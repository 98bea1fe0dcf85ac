"""How many directions a matrix needs: its largest singular value, stable rank and energy by rank.

A randomised sketch in two passes over the rows, without the matrix in memory: the rows are projected
on a few random directions, which spans nearly the leading right singular vectors; the second pass
gives the Nyström approximation of the Gram matrix on that span. Halko, Martinsson, Tropp, "Finding
structure with randomness" (2011), algorithm 5.5; the shift is that of Tropp, Yurtsever, Udell, Cevher,
"Fixed-rank approximation of a positive-semidefinite matrix from streaming data" (2017), algorithm 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

WIDTH = 64
"""Directions of a sketch: singular values beyond that many are not known, only their energy."""
_BLOCK_ELEMENTS = 2**19
_LEAST_ENERGY = 1e-250  # squares of less have too few bits


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Singular values of a matrix.

    Attributes:
        energy: the sum of squares of all elements, which is that of all singular values.
        values: the largest singular values, falling; exact if ``values`` has ``full_rank`` of them,
            else too small by little where the spectrum falls and by some percent where it is flat.
        full_rank: the smaller dimension.
    """

    energy: float
    values: tuple[float, ...]
    full_rank: int

    @property
    def largest(self) -> float:
        """σ₁, the largest singular value: by how much the matrix stretches a vector at most."""
        return max(self.values, default=0.0)

    @property
    def stable_rank(self) -> float:
        """Energy divided by that of σ₁: 1 for one direction; 0 for a zero matrix."""
        return self.energy / self.largest**2 if self.largest else 0.0

    def find_rank(self, share: float) -> int | None:
        """Return how many directions have that share of the energy; None if more than are known."""
        known = 0.0
        if not self.energy:
            return 0
        for rank, value in enumerate(self.values, 1):
            known += value**2
            if known >= share * self.energy * (1 - 1e-9):
                return rank
        return None


def find_spectrum(
    read: Callable[[int, int], Matrix], rows: int, columns: int, seed: int = 0
) -> Spectrum:
    """Return the spectrum of a matrix that is read twice, from its first row to its last.

    ``read`` returns that many rows from a row on; what is not finite in them counts as zero. Memory is 256
    times as many doubles as columns, and a block of rows. The same seed gives the same bits.
    """
    full_rank = min(rows, columns)
    width = min(WIDTH, full_rank)
    if not width:
        return Spectrum(0.0, (), 0)
    sketch, energy = np.zeros((columns, width)), 0.0
    for number, block in enumerate(_blocks(read, rows, columns)):
        directions = np.random.default_rng((seed, number)).standard_normal((len(block), width))
        sketch += block.T @ directions
        energy += float(np.vecdot(block, block).sum())
    if not _LEAST_ENERGY < energy < math.inf:
        return Spectrum(energy, (), full_rank)
    basis = np.linalg.qr(sketch)[0]
    image = np.zeros((columns, width))
    for block in _blocks(read, rows, columns):
        image += block.T @ (block @ basis)
    return Spectrum(energy, _nystrom(basis, image, energy), full_rank)


def _nystrom(basis: Matrix, image: Matrix, energy: float) -> tuple[float, ...]:
    """Return singular values of A from Q and AᵀA·Q, whose energy cannot exceed that of A."""
    shift = np.finfo(np.float64).eps * float(np.linalg.norm(image)) * math.sqrt(len(image))
    shifted = image + shift * basis
    core = basis.T @ shifted
    factor = np.linalg.cholesky((core + core.T) / 2)
    values = np.linalg.svd(np.linalg.solve(factor, shifted.T), compute_uv=False)
    squares = np.maximum(values**2 - shift, 0.0)
    squares *= min(1.0, energy / max(float(squares.sum()), 5e-324))
    return tuple(np.sqrt(squares).tolist())


def _blocks(read: Callable[[int, int], Matrix], rows: int, columns: int) -> Iterator[Matrix]:
    step = max(1, _BLOCK_ELEMENTS // columns)
    for first in range(0, rows, step):
        block = read(first, min(step, rows - first))
        yield np.nan_to_num(block, nan=0.0, posinf=0.0, neginf=0.0)

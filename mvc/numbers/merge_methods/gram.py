"""Dot products of the tensors of a merge, all with all: what angles and norms follow from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mvc.numbers.merge_methods.method import check_finite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from mvc.numbers.merge_methods.method import Array, Piece, Pieces

    Vectors = Callable[[Piece], Sequence[Array]]

Gram: TypeAlias = "NDArray[np.float64]"


def gram_of(pieces: Pieces, name: str, vectors: Vectors = lambda piece: piece.vectors) -> Gram:
    """Return the dot products of the task vectors, or of the inputs if there is no base.

    A tensor without elements has zeros. One with NaN or infinity is an UnsupportedError.
    """
    gram: Gram | None = None
    for part in pieces.map(lambda piece: _gram_of_piece(vectors(piece))):
        gram = part if gram is None else gram + part
    assert gram is not None
    check_finite(name, *gram.ravel())
    return gram


def _gram_of_piece(vectors: Sequence[Array]) -> Gram:
    # No BLAS: its sums depend on the processor.
    exact = [one.astype(np.float64) for one in vectors]
    gram = np.zeros((len(exact), len(exact)))
    for i, one in enumerate(exact):
        for j, other in enumerate(exact[: i + 1]):
            gram[i, j] = gram[j, i] = np.sum(one * other)
    return gram


def weighted_sum(weights: Sequence[Any], arrays: Sequence[Array]) -> Array:
    """Return the sum of arrays, each times its weight."""
    result: Array = arrays[0] * weights[0]
    for weight, array in zip(weights[1:], arrays[1:], strict=True):
        result += array * weight
    return result


def agreeing(parts: Sequence[Array]) -> list[NDArray[np.bool_]]:
    """Return which elements of each have the sign of the sum of all; a sum of 0 is positive."""
    positive = sum(parts[1:], parts[0]) >= 0
    return [(part > 0) & positive | (part < 0) & ~positive for part in parts]

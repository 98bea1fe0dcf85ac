"""Averages: linear, model_stock, passthrough."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from mvc.numbers.merge_methods.gram import gram_of, weighted_sum
from mvc.numbers.merge_methods.method import Method, Parameter

if TYPE_CHECKING:
    from mvc.numbers.merge_methods.method import Apply, Array, Piece, Pieces, Settings

WEIGHT = Parameter("weight", usual=1.0, per_input=True)


def _prepare_linear(_: Pieces, settings: Settings) -> Apply:
    weights = settings.of_inputs("weight")
    divisor = sum(weights) if settings.common["normalize"] else 1.0
    return lambda piece: weighted_sum(weights, piece.inputs) / divisor


def _find_linear_fault(settings: Settings) -> str | None:
    if settings.common["normalize"] and not sum(settings.of_inputs("weight")):
        return "the weights sum to 0 and cannot be normalized"
    return None


def _prepare_passthrough(_: Pieces, settings: Settings) -> Apply:
    return lambda piece: piece.inputs[0] * settings.each[0]["scale"]


def _prepare_stock(pieces: Pieces, settings: Settings) -> Apply:
    """Jang et al., "Model Stock", 2024; for more than two models the mean of all cosines."""
    if settings.common["filter_wise"]:
        row = max(pieces.shape[-1] if pieces.shape else 1, 1)
        return lambda piece: _stock(piece, row)
    share = float(_stock_share(gram_of(pieces, settings.name)))
    return lambda piece: _towards_mean(piece, share)


def _stock(piece: Piece, row: int) -> Array:
    rows = [delta.reshape(-1, row).astype(np.float64) for delta in piece.deltas]
    gram = np.array([[np.sum(one * other, axis=1) for other in rows] for one in rows])
    share = np.repeat(_stock_share(gram), row).astype(piece.inputs[0].dtype)
    return _towards_mean(piece, share)


def _stock_share(gram: Array) -> Array:
    """Return the interpolation factor from the base to the mean of the inputs."""
    norms = np.sqrt(np.einsum("ii...->i...", gram))
    count = len(gram)
    cosines = [
        np.clip(gram[i, j] / np.maximum(norms[i] * norms[j], 1e-6), -1, 1)
        for i, j in combinations(range(count), 2)
    ]
    cosine = np.mean(cosines, axis=0)
    divisor = 1 + (count - 1) * cosine
    # Opposite task vectors: their mean is the base itself, however far one goes towards it.
    return np.where(divisor == 0, 0.0, count * cosine / np.where(divisor == 0, 1.0, divisor))


def _towards_mean(piece: Piece, share: float | Array) -> Array:
    assert piece.base is not None
    mean = sum(piece.inputs[1:], piece.inputs[0]) / len(piece.inputs)
    merged: Array = share * mean + (1 - share) * piece.base
    return merged


LINEAR = Method(
    "linear",
    _prepare_linear,
    base="none",
    parameters=(WEIGHT, Parameter("normalize", bool, default=True)),
    find_fault=_find_linear_fault,
    keeps_equal=lambda settings: bool(settings.common["normalize"]),
)
PASSTHROUGH = Method(
    "passthrough",
    _prepare_passthrough,
    base="none",
    most=1,
    parameters=(Parameter("scale", default=1.0, per_input=True),),
    keeps_equal=lambda settings: settings.each[0]["scale"] == 1,
)
MODEL_STOCK = Method(
    "model_stock",
    _prepare_stock,
    base="needed",
    fewest=2,
    parameters=(Parameter("filter_wise", bool, default=False),),
    needs_rows=lambda settings: bool(settings.common["filter_wise"]),
)

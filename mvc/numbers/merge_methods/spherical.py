"""Means on the sphere: slerp, nuslerp, multislerp, karcher.

What each returns is a sum of its inputs with weights that follow from their dot products alone, so
one look at all elements is enough, and tangents and iterates are never formed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from mvc.errors import UnsupportedError
from mvc.numbers.merge_methods.averaging import WEIGHT
from mvc.numbers.merge_methods.gram import gram_of, weighted_sum
from mvc.numbers.merge_methods.method import (
    Method,
    Parameter,
    check_finite,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mvc.numbers.merge_methods.gram import Gram
    from mvc.numbers.merge_methods.method import Apply, Array, Piece, Pieces, Settings

    Norms = NDArray[np.float64]

_COLINEAR_COSINE = 0.9995  # beyond which slerp is no longer told from a straight line
_SHORT = 1e-7  # norms of nuslerp are not taken below it


def _prepare_slerp(pieces: Pieces, settings: Settings) -> Apply:
    """From the base (t = 0) to the input (t = 1); Shoemake, 1985."""

    def both(piece: Piece) -> tuple[Array, ...]:
        assert piece.base is not None
        return (piece.base, *piece.inputs)

    gram, t = gram_of(pieces, settings.name, both), float(settings.common["t"])
    norms = np.sqrt(np.diag(gram))
    lengths = np.where(norms > 1e-8, norms, 1.0)  # noqa: PLR2004
    cosine = float(gram[0, 1] / (lengths[0] * lengths[1]))
    weights = [1 - t, t]
    if abs(cosine) <= _COLINEAR_COSINE:
        angle = math.acos(cosine)
        weights = [math.sin(angle * part) / math.sin(angle) for part in weights]
    return lambda piece: weighted_sum(weights, both(piece))


def _onto_base(weights: Sequence[float | Array], piece: Piece) -> Array:
    merged = weighted_sum(weights, piece.vectors)
    return merged if piece.base is None else merged + piece.base


def _prepare_nuslerp(pieces: Pieces, settings: Settings) -> Apply:
    """Between two inputs, or their task vectors: as one vector each, by rows or by columns."""
    first, second = settings.of_inputs("weight")
    t = 0.5 if abs(first + second) < 1e-6 else second / (first + second)  # noqa: PLR2004
    if settings.common["nuslerp_flatten"] or len(pieces.shape) < 2:  # noqa: PLR2004
        gram = gram_of(pieces, settings.name)
        weights = [float(one) for one in _spread(gram[0, 1], gram[0, 0], gram[1, 1], t)]
        return lambda piece: _onto_base(weights, piece)
    if not settings.common["nuslerp_row_wise"]:
        return lambda piece: _slerp_rows(piece, max(pieces.shape[-1], 1), t)
    return _prepare_columns(pieces, settings, t)


def _spread(dot: Norms, first_sq: Norms, second_sq: Norms, t: float) -> tuple[Norms, Norms]:
    """Return the weights of two vectors for the point ``t`` of the way on their great circle."""
    norms = np.maximum(np.sqrt(first_sq), _SHORT) * np.maximum(np.sqrt(second_sq), _SHORT)
    angle = np.arccos(np.clip(dot / norms, -1, 1))
    sine = np.sin(angle)
    is_line = np.abs(sine) < 1e-8  # noqa: PLR2004
    divisor = np.where(is_line, 1.0, sine)
    return (
        np.where(is_line, 1 - t, np.sin((1 - t) * angle) / divisor),
        np.where(is_line, t, np.sin(t * angle) / divisor),
    )


def _slerp_rows(piece: Piece, row: int, t: float) -> Array:
    one, other = (vector.reshape(-1, row).astype(np.float64) for vector in piece.vectors)
    dots = [np.sum(a * b, axis=1) for a, b in ((one, other), (one, one), (other, other))]
    weights = [np.repeat(part, row) for part in _spread(dots[0], dots[1], dots[2], t)]
    return _onto_base([part.astype(piece.inputs[0].dtype) for part in weights], piece)


def _prepare_columns(pieces: Pieces, settings: Settings, t: float) -> Apply:
    """Vectors along the first dimension: their dot products are gathered first."""
    columns = math.prod(pieces.shape[1:])

    def places(piece: Piece) -> NDArray[np.int64]:
        return np.arange(piece.first, piece.first + len(piece.inputs[0])) % columns

    def dots(piece: Piece) -> NDArray[np.float64]:
        one, other = (vector.astype(np.float64) for vector in piece.vectors)
        at = places(piece)
        products = one * other, one * one, other * other
        return np.array([np.bincount(at, product, columns) for product in products])

    totals = np.zeros((3, columns))
    for part in pieces.map(dots):
        totals += part
    check_finite(settings.name, *totals.sum(axis=1))
    weights = _spread(totals[0], totals[1], totals[2], t)

    def apply(piece: Piece) -> Array:
        at = places(piece)
        return _onto_base([part[at].astype(piece.inputs[0].dtype) for part in weights], piece)

    return apply


def _prepare_multislerp(pieces: Pieces, settings: Settings) -> Apply:
    """The weighted mean in the plane that touches the sphere at the mean direction."""
    weights = np.array(settings.of_inputs("weight"))
    if settings.common["normalize_weights"]:
        weights /= weights.sum()
    gram, eps = gram_of(pieces, settings.name), float(settings.common["eps"])
    norms = np.sqrt(np.diag(gram))
    units = 1 / (norms + eps)  # the factor that makes each vector one of length 1
    mean = weights * units
    mean_norm = _norm(mean, gram)
    if mean_norm < eps:
        if not gram.any():
            return lambda piece: _onto_base([0.0] * len(weights), piece)
        if len(weights) == 2:  # noqa: PLR2004
            return lambda piece: _onto_base([float(one) for one in weights], piece)
        raise UnsupportedError(
            f"the weighted directions of tensor {settings.name!r} cancel out",
            hint="give its inputs different weights",
        )
    mean /= mean_norm
    cosines = units * (gram @ mean)
    tangent = weights * units - (weights @ cosines) * mean
    length = _norm(tangent, gram) + eps
    merged = mean * math.cos(length) + tangent * (math.sin(length) / length)
    factors = [float(one) for one in merged * (norms @ weights)]
    return lambda piece: _onto_base(factors, piece)


def _norm(factors: Norms, gram: Gram) -> float:
    """Return the norm of a sum of the vectors; rounding may take its square below 0."""
    return math.sqrt(max(float(factors @ gram @ factors), 0.0))


def _find_multislerp_fault(settings: Settings) -> str | None:
    if settings.common["normalize_weights"] and not sum(settings.of_inputs("weight")):
        return "the weights sum to 0 and cannot be normalized"
    return None


def _prepare_karcher(pieces: Pieces, settings: Settings) -> Apply:
    """The point with the smallest sum of squared angles to all inputs, at their mean norm."""
    gram, tol = gram_of(pieces, settings.name), float(settings.common["tol"])
    norms = np.sqrt(np.diag(gram))
    if not (norms > tol).any():
        return lambda piece: np.zeros_like(piece.inputs[0])
    units = np.diag(1 / norms[norms > tol])
    inner = units @ gram[np.ix_(norms > tol, norms > tol)] @ units  # cosines of all pairs
    found = _iterate(inner, tol, int(settings.common["max_iter"])) @ units * norms.mean()
    factors = np.zeros(len(norms))
    factors[norms > tol] = found
    weights = [float(one) for one in factors]
    return lambda piece: weighted_sum(weights, piece.inputs)


def _iterate(inner: Gram, tol: float, max_iter: int) -> Norms:
    """Return the mean as factors of the unit vectors, by steps in its tangent plane."""
    count = len(inner)
    mean = np.full(count, 1 / count)
    length = _norm(mean, inner)
    mean = np.eye(count)[0] if length < tol else mean / length
    for _ in range(max_iter):
        step = np.zeros(count)
        for number, cosine in enumerate(np.clip(inner @ mean, -1, 1)):
            angle = math.acos(cosine)
            if angle >= tol and math.sin(angle):
                step += angle / math.sin(angle) * (np.eye(count)[number] - cosine * mean) / count
        length = _norm(step, inner)
        if length < tol:
            break
        mean = math.cos(length) * mean + math.sin(length) / length * step
        mean /= max(_norm(mean, inner), tol)
    return mean


SLERP = Method(
    "slerp",
    _prepare_slerp,
    base="needed",
    most=1,
    parameters=(Parameter("t", usual=0.5),),
)
NUSLERP = Method(
    "nuslerp",
    _prepare_nuslerp,
    base="optional",
    fewest=2,
    most=2,
    parameters=(
        WEIGHT,
        Parameter("nuslerp_flatten", bool, default=True),
        Parameter("nuslerp_row_wise", bool, default=False),
    ),
    needs_rows=lambda settings: (
        not settings.common["nuslerp_flatten"] and not settings.common["nuslerp_row_wise"]
    ),
)
MULTISLERP = Method(
    "multislerp",
    _prepare_multislerp,
    base="optional",
    fewest=2,
    parameters=(
        WEIGHT,
        Parameter("normalize_weights", bool, default=True),
        Parameter("eps", default=1e-8, low=0, is_open=True),
    ),
    find_fault=_find_multislerp_fault,
    keeps_equal=lambda settings: bool(settings.common["normalize_weights"]),
)
KARCHER = Method(
    "karcher",
    _prepare_karcher,
    base="none",
    parameters=(
        Parameter("max_iter", int, default=10, low=0, high=10_000),
        Parameter("tol", default=1e-5, low=0, is_open=True),
    ),
)

"""Averages: linear, model_stock, passthrough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from mvc.errors import UnsupportedError
from mvc.numbers.merge_methods.method import (
    Method,
    MethodParameter,
    check_finite,
    gram_of,
    weighted_sum,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.numbers.merge_methods.method import (
        Apply,
        Array,
        Gram,
        MergePiece,
        MergePieces,
        MethodSettings,
    )

    Norms = NDArray[np.float64]

WEIGHT = MethodParameter("weight", usual=1.0, per_input=True)


def _prepare_linear(_: MergePieces, settings: MethodSettings) -> Apply:
    weights = settings.of_inputs("weight")
    divisor = sum(weights) if settings.common["normalize"] else 1.0
    return lambda piece: weighted_sum(weights, piece.inputs) / divisor


def _find_weight_fault(settings: MethodSettings, switch: str) -> str | None:
    if settings.common[switch] and not sum(settings.of_inputs("weight")):
        return "the weights sum to 0 and cannot be normalized"
    return None


def _prepare_stock(pieces: MergePieces, settings: MethodSettings) -> Apply:
    """Jang et al., "Model Stock", 2024; for more than two models the mean of all cosines."""
    if settings.common["filter_wise"]:
        row = max(pieces.shape[-1] if pieces.shape else 1, 1)
        return lambda piece: _stock(piece, row)
    share = float(_stock_share(gram_of(pieces, settings.name)))
    return lambda piece: _towards_mean(piece, share)


def _stock(piece: MergePiece, row: int) -> Array:
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


def _towards_mean(piece: MergePiece, share: float | Array) -> Array:
    assert piece.base is not None
    mean = sum(piece.inputs[1:], piece.inputs[0]) / len(piece.inputs)
    merged: Array = share * mean + (1 - share) * piece.base
    return merged


LINEAR = Method(
    "linear",
    _prepare_linear,
    base="none",
    parameters=(WEIGHT, MethodParameter("normalize", bool, default=True)),
    find_fault=lambda settings: _find_weight_fault(settings, "normalize"),
    keeps_equal=lambda settings: bool(settings.common["normalize"]),
)
PASSTHROUGH = Method(
    "passthrough",
    lambda _, settings: lambda piece: piece.inputs[0] * settings.each[0]["scale"],
    base="none",
    most=1,
    parameters=(MethodParameter("scale", default=1.0, per_input=True),),
    keeps_equal=lambda settings: settings.each[0]["scale"] == 1,
)
MODEL_STOCK = Method(
    "model_stock",
    _prepare_stock,
    base="needed",
    fewest=2,
    parameters=(MethodParameter("filter_wise", bool, default=False),),
    needs_rows=lambda settings: bool(settings.common["filter_wise"]),
)


_COLINEAR_COSINE = 0.9995  # beyond it, slerp is as good as a straight line
_SHORT = 1e-7  # norms of nuslerp are not taken below it


def _prepare_slerp(pieces: MergePieces, settings: MethodSettings) -> Apply:
    """From the base (t = 0) to the input (t = 1); Shoemake, 1985."""

    def both(piece: MergePiece) -> tuple[Array, ...]:
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


def _onto_base(weights: Sequence[float | Array], piece: MergePiece) -> Array:
    merged = weighted_sum(weights, piece.vectors)
    return merged if piece.base is None else merged + piece.base


def _prepare_nuslerp(pieces: MergePieces, settings: MethodSettings) -> Apply:
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


def _slerp_rows(piece: MergePiece, row: int, t: float) -> Array:
    one, other = (vector.reshape(-1, row).astype(np.float64) for vector in piece.vectors)
    dots = [np.sum(a * b, axis=1) for a, b in ((one, other), (one, one), (other, other))]
    weights = [np.repeat(part, row) for part in _spread(dots[0], dots[1], dots[2], t)]
    return _onto_base([part.astype(piece.inputs[0].dtype) for part in weights], piece)


def _prepare_columns(pieces: MergePieces, settings: MethodSettings, t: float) -> Apply:
    """Vectors along the first dimension: their dot products are gathered first."""
    columns = math.prod(pieces.shape[1:])

    def places(piece: MergePiece) -> NDArray[np.int64]:
        return np.arange(piece.first, piece.first + len(piece.inputs[0])) % columns

    def dots(piece: MergePiece) -> NDArray[np.float64]:
        one, other = (vector.astype(np.float64) for vector in piece.vectors)
        at = places(piece)
        products = one * other, one * one, other * other
        return np.array([np.bincount(at, product, columns) for product in products])

    totals = np.zeros((3, columns))
    for part in pieces.map(dots):
        totals += part
    check_finite(settings.name, *totals.sum(axis=1))
    weights = _spread(totals[0], totals[1], totals[2], t)

    def apply(piece: MergePiece) -> Array:
        at = places(piece)
        return _onto_base([part[at].astype(piece.inputs[0].dtype) for part in weights], piece)

    return apply


def _prepare_multislerp(pieces: MergePieces, settings: MethodSettings) -> Apply:
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
            return lambda piece: _onto_base([float(weight) for weight in weights], piece)
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


def _prepare_karcher(pieces: MergePieces, settings: MethodSettings) -> Apply:
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
    weights = [float(factor) for factor in factors]
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
    "slerp", _prepare_slerp, base="needed", most=1, parameters=(MethodParameter("t", usual=0.5),)
)
NUSLERP = Method(
    "nuslerp",
    _prepare_nuslerp,
    base="optional",
    fewest=2,
    most=2,
    parameters=(
        WEIGHT,
        MethodParameter("nuslerp_flatten", bool, default=True),
        MethodParameter("nuslerp_row_wise", bool, default=False),
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
        MethodParameter("normalize_weights", bool, default=True),
        MethodParameter("eps", default=1e-8, low=0, is_open=True),
    ),
    find_fault=lambda settings: _find_weight_fault(settings, "normalize_weights"),
    keeps_equal=lambda settings: bool(settings.common["normalize_weights"]),
)
KARCHER = Method(
    "karcher",
    _prepare_karcher,
    base="none",
    parameters=(
        MethodParameter("max_iter", int, default=10, low=0, high=10_000),
        MethodParameter("tol", default=1e-5, low=0, is_open=True),
    ),
)

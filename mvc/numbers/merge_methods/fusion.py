"""Methods that weigh element by element: sce, ram, ramplus_tl, nearswap, arcee_fusion."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.numbers.merge_methods.method import (
    Method,
    MethodParameter,
    agreeing,
    check_finite,
    choose,
    keep,
    total,
    weighted_sum,
)
from mvc.numbers.merge_methods.selection import find_places, rank_ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.numbers.merge_methods.method import (
        Apply,
        Array,
        MergePiece,
        MergePieces,
        MethodSettings,
    )

    Thin = Callable[[MergePiece], list[Array]]

_EPSILON = MethodParameter("epsilon", default=1e-5, low=0)
_TINY = 1e-6


def _prepare_sce(pieces: MergePieces, settings: MethodSettings) -> Apply:
    """Select, calculate, erase: Wan et al., "FuseChat", 2024."""
    thin = _select(pieces, float(settings.common["select_topk"]))
    weights = _calculate(pieces, settings, thin)

    def apply(piece: MergePiece) -> Array:
        assert piece.base is not None
        deltas = thin(piece)
        masks = [mask.astype(deltas[0].dtype) for mask in agreeing(deltas)]
        merged = weighted_sum(weights, [a * b for a, b in zip(deltas, masks, strict=True)])
        return piece.base + merged / np.maximum(weighted_sum(weights, masks), _TINY)

    return apply


def _variance(piece: MergePiece) -> Array:
    """Return what ``np.var`` says of the task vectors, to the bit, in a quarter of its time."""
    deltas = piece.deltas
    mean = sum(deltas[1:], deltas[0]) / len(deltas)
    squares = [(delta - mean) ** 2 for delta in deltas]
    variance: Array = sum(squares[1:], squares[0]) / len(deltas)
    return variance


def _select(pieces: MergePieces, share: float) -> Thin:
    """Keep the places where the task vectors vary most, a share of those where they do at all."""
    if share >= 1:
        return lambda piece: piece.deltas
    varying = sum(pieces.map(lambda piece: int(np.count_nonzero(_variance(piece)))))
    kept, elements = int(varying * share), int(np.prod(pieces.shape, dtype=np.int64))
    if not kept:
        return lambda piece: [np.zeros_like(delta) for delta in piece.deltas]
    (chosen,) = rank_ranges(pieces, lambda piece: [_variance(piece)], [(elements - kept, elements)])
    assert chosen is not None

    def thin(piece: MergePiece) -> list[Array]:
        mask = chosen.mask(piece.first, _variance(piece))
        return [keep(delta, mask) for delta in piece.deltas]

    return thin


def _calculate(pieces: MergePieces, settings: MethodSettings, thin: Thin) -> list[float]:
    """Weigh every task vector by the mean of its squares."""
    count, elements = len(settings.each), int(np.prod(pieces.shape, dtype=np.int64))

    def squares(piece: MergePiece) -> NDArray[np.float64]:
        return np.array([total(delta * delta) for delta in thin(piece)])

    means = sum(pieces.map(squares), np.zeros(count)) / max(elements, 1)
    check_finite(settings.name, *means)
    if abs(means.sum()) < _TINY:
        return [1 / count] * count
    return [float(one) for one in means / means.sum()]


def _prepare_ram(_: MergePieces, settings: MethodSettings) -> Apply:
    """Reinforced Agent Merging, 2026: what one input changed is kept, what several did averaged."""
    return lambda piece: _merge_agents(piece, settings, [1.0] * len(settings.each))


def _prepare_ram_plus(pieces: MergePieces, settings: MethodSettings) -> Apply:
    """As ram, but what one input alone changed is amplified by how much it shares with others."""
    common = settings.common

    def count(piece: MergePiece) -> NDArray[np.float64]:
        """Return how many elements every input changed together with others, and alone."""
        _, changed, agents = _changes(piece, settings)
        return np.array(
            [np.sum(changed & (agents > 1), axis=1), np.sum(changed & (agents == 1), axis=1)]
        )

    counts = sum(pieces.map(count), np.zeros((2, 1)))
    ratio = counts[0] / np.maximum(counts[1], float(common["epsilon"]) or 1.0)
    factors = 1 + float(common["r"]) * np.clip(ratio, 0, float(common["alpha"]))
    return lambda piece: _merge_agents(piece, settings, [float(factor) for factor in factors])


def _changes(
    piece: MergePiece, settings: MethodSettings
) -> tuple[list[Array], NDArray[Any], NDArray[Any]]:
    """Return task vectors, which elements each input changed, and how many inputs did."""
    deltas = piece.deltas
    changed = np.stack([np.abs(delta) > float(settings.common["epsilon"]) for delta in deltas])
    return deltas, changed, changed.sum(axis=0)


def _merge_agents(piece: MergePiece, settings: MethodSettings, factors: list[float]) -> Array:
    assert piece.base is not None
    deltas, changed, count = _changes(piece, settings)
    shares = 1 / np.maximum(count, 1).astype(deltas[0].dtype)
    merged = piece.base.copy()
    for delta, own, factor in zip(deltas, changed, factors, strict=True):
        weight = choose(count == 1, np.asarray(factor, shares.dtype), shares)
        merged += keep(delta * weight, own)
    return merged


def _prepare_nearswap(_: MergePieces, settings: MethodSettings) -> Apply:
    """The closer an element is to the base, the more of it is taken."""
    t = float(settings.common["t"])

    def apply(piece: MergePiece) -> Array:
        assert piece.base is not None
        distance = np.maximum(np.abs(piece.base - piece.inputs[0]), _TINY)
        share = np.clip(t / distance, 0, 1)
        return share * piece.inputs[0] + (1 - share) * piece.base

    return apply


def _prepare_fusion(pieces: MergePieces, settings: MethodSettings) -> Apply:
    """Take elements whose importance is 1.5 interquartile ranges above the median.

    Importance is the change of an element times the divergence of its row's softmax. All elements
    are ranked, however many there are.
    """
    row = max(pieces.shape[-1] if pieces.shape else 1, 1)
    last = int(np.prod(pieces.shape, dtype=np.int64)) - 1
    if last < 0:
        return lambda piece: piece.inputs[0]
    ranks = [int(part * last) for part in (0.25, 0.5, 0.75)]
    (places,) = find_places(pieces, lambda piece: [_importance(piece, row)], [ranks])
    low, median, high = (_value_of(place.key) for place in places)
    check_finite(settings.name, low, median, high)
    threshold = np.float32(median + 1.5 * (high - low))

    def apply(piece: MergePiece) -> Array:
        assert piece.base is not None
        chosen = _importance(piece, row) >= threshold
        # base + (input - base) is the input but for rounding; the input itself is exact.
        return choose(chosen, piece.inputs[0], piece.base)

    return apply


def _importance(piece: MergePiece, row: int) -> NDArray[np.float32]:
    assert piece.base is not None
    new, old = (part.reshape(-1, row).astype(np.float64) for part in (piece.inputs[0], piece.base))
    p, q = _softmax(new) + 1e-8, _softmax(old) + 1e-8
    divergence = np.sum(p * np.log(p / q), axis=1)
    scores: NDArray[np.float32] = (
        (np.abs(new - old) * divergence[:, None]).ravel().astype(np.float32)
    )
    return scores


def _softmax(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    result: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return result


def _value_of(key: int) -> float:
    """Return the float32 that has a key."""
    bits = key & 0x7FFFFFFF if key >> 31 else ~key & 0xFFFFFFFF
    return float(np.uint32(bits).view(np.float32))


SCE = Method(
    "sce",
    _prepare_sce,
    base="needed",
    parameters=(
        MethodParameter("select_topk", default=1.0, low=0, high=1),
        MethodParameter("int8_mask", bool, default=False),
    ),
)
RAM = Method("ram", _prepare_ram, base="needed", parameters=(_EPSILON,))
RAM_PLUS = Method(
    "ramplus_tl",
    _prepare_ram_plus,
    base="needed",
    parameters=(
        _EPSILON,
        MethodParameter("r", default=0.1),
        MethodParameter("alpha", default=0.2, low=0),
    ),
)
NEARSWAP = Method(
    "nearswap", _prepare_nearswap, base="needed", most=1, parameters=(MethodParameter("t", low=0),)
)
ARCEE_FUSION = Method(
    "arcee_fusion", _prepare_fusion, base="needed", most=1, needs_rows=lambda _: True
)

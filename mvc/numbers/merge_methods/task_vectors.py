"""Sums of task vectors: task_arithmetic, ties, and what thins them out first.

A task vector is what an input adds to the base (Ilharco et al., 2022). It may be thinned out: ties
keeps the largest elements (Yadav et al., 2023), breadcrumbs neither the largest nor the smallest
(Davari and Belilovsky, 2023), dare random ones (Yu et al., 2023), and della random ones, where
the larger are likelier (Deep et al., 2024). Where the sign has to agree, an element counts only if
its sign is that of the weighted sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from mvc.numbers.merge_methods.averaging import WEIGHT
from mvc.numbers.merge_methods.method import (
    Method,
    MethodParameter,
    MethodSettings,
    agreeing,
    check_finite,
    keep,
    total,
    weighted_sum,
)
from mvc.numbers.merge_methods.selection import ArrayStore, order_keys, rank_ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.numbers.merge_methods.method import Apply, Array, MergePiece, MergePieces


Masks: TypeAlias = "Callable[[MergePiece, Sequence[Array]], list[NDArray[np.bool_] | None]]"
Thinning: TypeAlias = Literal["", "magnitude", "outliers", "random", "ranks"]

_HELD_BITS = 2**28  # of masks between two looks at a tensor
_DENSITY = MethodParameter("density", default=1.0, low=0, high=1, is_open=True, per_input=True)
_EXTRA = {
    "outliers": (MethodParameter("gamma", default=0.01, low=0, high=1, per_input=True),),
    "ranks": (MethodParameter("epsilon", default=0.15, low=0, high=1, per_input=True),),
}


def _method(
    name: str, thinning: Thinning, *, signs: bool, normalize: bool, rescale: bool
) -> Method:
    def prepare(pieces: MergePieces, settings: MethodSettings) -> Apply:
        return _prepare(pieces, settings, thinning, signs=signs)

    return Method(
        name,
        prepare,
        base="needed",
        parameters=(
            WEIGHT,
            _DENSITY,
            *_EXTRA.get(thinning, ()),
            MethodParameter("normalize", bool, default=normalize),
            MethodParameter("rescale", bool, default=rescale),
            MethodParameter("lambda", default=1.0),
            MethodParameter("int8_mask", bool, default=False),
        ),
        find_fault=_find_rank_fault if thinning == "ranks" else lambda _: None,
        needs_rows=lambda settings: thinning == "ranks" and _is_thinned(settings),
        is_seeded=thinning in {"random", "ranks"},
    )


def _is_thinned(settings: MethodSettings) -> bool:
    return any(density < 1 for density in settings.of_inputs("density"))


def _find_rank_fault(settings: MethodSettings) -> str | None:
    for one in settings.each:
        density, epsilon = float(one["density"]), float(one["epsilon"])
        if density < 1 and not (density - epsilon > 0 and density + epsilon < 1):
            return f"density {density:g} ± epsilon {epsilon:g} must stay between 0 and 1"
    return None


def _prepare(
    pieces: MergePieces, settings: MethodSettings, thinning: Thinning, *, signs: bool
) -> Apply:
    weights = settings.of_inputs("weight")
    masks: Masks | None = None
    if thinning and _is_thinned(settings):
        masks = _MASKS[thinning](pieces, settings)
    scales = [1.0] * len(weights)
    if masks is not None and settings.common["rescale"]:
        scales, masks = _keep_sums(pieces, settings, masks)
    common, whole = settings.common, sum(weights)
    whole = 1.0 if abs(whole) < 1e-8 else whole  # noqa: PLR2004

    def apply(piece: MergePiece) -> Array:
        assert piece.base is not None
        deltas = piece.deltas
        parts = deltas if masks is None else _thin(deltas, masks(piece, deltas))
        parts = [
            part * (weight * scale)
            for part, weight, scale in zip(parts, weights, scales, strict=True)
        ]
        mixed: Array
        divisor: Array | float
        if signs:
            mixed, divisor = _agree(parts, weights)
        else:
            mixed, divisor = sum(parts[1:], parts[0]), whole
        if common["normalize"]:
            mixed /= divisor
        return piece.base + mixed * float(common["lambda"])

    return apply


def _thin(deltas: Sequence[Array], chosen: Sequence[NDArray[np.bool_] | None]) -> list[Array]:
    # Not a product: what is left out may be infinite.
    return [
        delta if mask is None else keep(delta, mask)
        for delta, mask in zip(deltas, chosen, strict=True)
    ]


def _agree(parts: list[Array], weights: Sequence[float]) -> tuple[Array, Array]:
    """Return the sum of those elements whose sign is that of all, and of their weights."""
    masks = agreeing(parts)
    agreed = [part * mask for part, mask in zip(parts, masks, strict=True)]
    divisor = weighted_sum(weights, [mask.astype(parts[0].dtype) for mask in masks])
    return sum(agreed[1:], agreed[0]), divisor + (divisor == 0)


def _keep_sums(
    pieces: MergePieces, settings: MethodSettings, masks: Masks
) -> tuple[list[float], Masks]:
    """Return the factors that give thinned task vectors the sum of magnitudes they had.

    And masks that need not be found a second time: their bits are held until they are used.
    """
    held: dict[int, list[NDArray[np.uint8] | None]] = {}
    # Twice the bits, for every piece ends with its byte; what is never written takes no memory.
    bits = min(2 * len(settings.each) * math.prod(pieces.shape), _HELD_BITS)
    store = ArrayStore(bits // 8, np.uint8)  # freed with the last mask that is used

    def sums(piece: MergePiece) -> NDArray[np.float64]:
        deltas = piece.deltas
        chosen = masks(piece, deltas)
        packed = [None if mask is None else store.hold(np.packbits(mask)) for mask in chosen]
        if [one is None for one in packed] == [one is None for one in chosen]:  # there was space
            held[piece.first] = packed
        before = [total(np.abs(delta)) for delta in deltas]
        return np.array([before, [total(np.abs(part)) for part in _thin(deltas, chosen)]])

    def recall(piece: MergePiece, deltas: Sequence[Array]) -> list[NDArray[np.bool_] | None]:
        packed = held.pop(piece.first, None)
        if packed is None:
            return masks(piece, deltas)
        size = len(deltas[0])
        return [
            None if one is None else np.unpackbits(one, count=size).view(np.bool_) for one in packed
        ]

    found = sum(pieces.map(sums), np.zeros((2, len(settings.each))))
    check_finite(settings.name, *found.ravel())
    scales = [
        1.0 if min(before, after) < 1e-7 else float(before / after)  # noqa: PLR2004
        for before, after in found.T
    ]
    return scales, recall


def _by_rank(
    pieces: MergePieces,
    settings: MethodSettings,
    range_of: Callable[[int, MethodSettings, int], tuple[int, int]],
) -> Masks:
    """Keep the elements whose magnitudes have some ranks of all."""
    elements = int(np.prod(pieces.shape, dtype=np.int64))
    ranges = [
        range_of(elements, settings, number) if elements and density < 1 else None
        for number, density in enumerate(settings.of_inputs("density"))
    ]
    chosen = rank_ranges(pieces, lambda piece: [np.abs(delta) for delta in piece.deltas], ranges)
    return lambda piece, deltas: [
        None if one is None else one.mask(piece.first, np.abs(delta))
        for one, delta in zip(chosen, deltas, strict=True)
    ]


def _largest(elements: int, settings: MethodSettings, number: int) -> tuple[int, int]:
    kept = int(float(settings.each[number]["density"]) * elements)
    return elements - max(kept, 1), elements


def _middle(elements: int, settings: MethodSettings, number: int) -> tuple[int, int]:
    """Leave out the share ``gamma`` at the top, then what remains above ``density`` at the bottom."""
    one = settings.each[number]
    kept = max(int(float(one["density"]) * elements), 1)
    top = min(int(float(one["gamma"]) * elements), elements - kept)
    return elements - top - kept, elements - top


def _by_chance(_: MergePieces, settings: MethodSettings) -> Masks:
    densities = settings.of_inputs("density")

    def masks(piece: MergePiece, deltas: Sequence[Array]) -> list[NDArray[np.bool_] | None]:
        return [
            None
            if density >= 1
            else draw(settings.seed, settings.name, number, piece.first, len(delta))
            < chance_words(density)
            for number, (density, delta) in enumerate(zip(densities, deltas, strict=True))
        ]

    return masks


def _by_chance_of_rank(pieces: MergePieces, settings: MethodSettings) -> Masks:
    """Chances go evenly from density - epsilon to density + epsilon by the rank in the row."""
    row = max(pieces.shape[-1] if pieces.shape else 1, 1)
    # A row of one element has no order: its chance is the density itself.
    along = np.arange(row) / (row - 1) if row > 1 else np.full(1, 0.5)
    chances = [
        None
        if one["density"] >= 1
        else chance_words((one["density"] - one["epsilon"]) + along * 2 * one["epsilon"])
        for one in settings.each
    ]

    def masks(piece: MergePiece, deltas: Sequence[Array]) -> list[NDArray[np.bool_] | None]:
        return [
            None
            if words is None
            else draw(settings.seed, settings.name, number, piece.first, len(delta))
            < _by_ranks(np.abs(delta).reshape(-1, row), words)
            for number, (words, delta) in enumerate(zip(chances, deltas, strict=True))
        ]

    return masks


def _by_ranks(rows: Array, values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return for every element the value of its rank in its row; of equal ones the later is higher."""
    # Key and place in one number: sorting those is several times as fast as argsort, and stable.
    places = np.arange(rows.size, dtype=np.uint64).reshape(rows.shape)
    packed = order_keys(rows).astype(np.uint64) << np.uint64(32) | places
    packed.sort(axis=1)
    ranks = np.empty(rows.size, np.uint32)
    ranks[(packed & np.uint64(2**32 - 1)).view(np.int64)] = values
    return ranks


_MASKS: dict[str, Callable[[MergePieces, MethodSettings], Masks]] = {
    "magnitude": lambda pieces, settings: _by_rank(pieces, settings, _largest),
    "outliers": lambda pieces, settings: _by_rank(pieces, settings, _middle),
    "random": _by_chance,
    "ranks": _by_chance_of_rank,
}

TASK_VECTOR_METHODS = (
    _method("task_arithmetic", "", signs=False, normalize=False, rescale=False),
    _method("ties", "magnitude", signs=True, normalize=True, rescale=False),
    _method("dare_ties", "random", signs=True, normalize=False, rescale=True),
    _method("dare_linear", "random", signs=False, normalize=False, rescale=True),
    _method("breadcrumbs", "outliers", signs=False, normalize=False, rescale=False),
    _method("breadcrumbs_ties", "outliers", signs=True, normalize=False, rescale=False),
    _method("della", "ranks", signs=True, normalize=True, rescale=True),
    _method("della_linear", "ranks", signs=False, normalize=False, rescale=True),
)


_WORDS_PER_COUNT = 8  # 32-bit words of one value of the counter


def draw(seed: int, name: str, number: int, first: int, count: int) -> NDArray[np.uint32]:
    """Return random words of 32 bits for elements from ``first`` on of one input's tensor."""
    digest = blake2b(f"{seed} {number} {name}".encode(errors="surrogatepass"), digest_size=16)
    counter, skipped = divmod(first, _WORDS_PER_COUNT)
    source = np.random.Philox(key=int.from_bytes(digest.digest(), "little"), counter=counter)
    raw = source.random_raw(-(-(skipped + count) // 2)).astype("<u8", copy=False).view("<u4")
    return raw[skipped : skipped + count]


def chance_words(chance: float | NDArray[np.floating[Any]]) -> NDArray[np.uint32]:
    """Return below which word a draw hits, for chances from 0 to below 1."""
    return np.asarray(np.floor(np.asarray(chance, np.float64) * 2.0**32), np.uint32)

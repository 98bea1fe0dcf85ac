"""Which part of a model changed, in words, and which is frozen: equal bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.comparison.kinds import find_kind, find_layer
from mvc.tensor_names import natural_key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from mvc.comparison.changes import TensorChange

_MAX_KINDS = 3
_WORDS = {"head": "the head", "embedding": "the embedding", "norm": "norms", "bias": "biases"}


def kind_of(change: TensorChange) -> str:
    """Return the role of a tensor in its model."""
    return find_kind(change.name, change.pair.shown.view.shape)


def name_part(frozen: Sequence[TensorChange], changed: Sequence[TensorChange]) -> str | None:
    """Name the part of a model to which all changes are confined, or return None."""
    weights = {one.name: kind_of(one) for one in (*frozen, *changed)}

    def role_of(change: TensorChange) -> str:  # a bias plays the part of the weight beside it
        name, dot, leaf = change.name.rpartition(".")
        return weights[change.name] if leaf != "bias" else weights.get(f"{name}{dot}weight", "bias")

    for find in (kind_of, role_of):
        kinds = {find(one) for one in changed}
        if len(kinds) <= _MAX_KINDS and not kinds & {find(one) for one in frozen}:
            return _name_kinds(kinds)
    return _name_layers(frozen, changed, role_of)


def _name_kinds(kinds: Collection[str]) -> str:
    return _join([_WORDS.get(kind, kind) for kind in sorted(kinds)])


def _join(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _name_layers(
    frozen: Sequence[TensorChange],
    changed: Sequence[TensorChange],
    role_of: Callable[[TensorChange], str],
) -> str | None:
    """Return "the last N layers" (and what else) if no layer before them changed; else None."""
    still, moved = (
        {layer for one in some if (layer := find_layer(one.name))} for some in (frozen, changed)
    )
    if not still or not moved or len({_stem(layer) for layer in still | moved}) > 1:
        return None
    if max(map(natural_key, still)) >= min(map(natural_key, moved)):
        return None
    layers = "the last layer" if len(moved) == 1 else f"the last {len(moved)} layers"
    beside = {role_of(one) for one in changed if find_layer(one.name) is None}
    if len(beside) > _MAX_KINDS:
        return None
    return _join([layers, *(_WORDS.get(kind, kind) for kind in sorted(beside))])


def _stem(layer: str) -> str:
    return layer.rstrip("0123456789")


def find_frozen_modules(
    frozen: Sequence[TensorChange], changed: Sequence[TensorChange]
) -> list[str]:
    """Return the topmost modules of several tensors of which none changed, in natural order."""
    touched = {name for one in changed for name in _modules_of(one.name)}
    counts: dict[str, int] = {}
    for one in frozen:
        free = next((name for name in _modules_of(one.name) if name not in touched), None)
        if free is not None:
            counts[free] = counts.get(free, 0) + 1
    return sorted((name for name, count in counts.items() if count > 1), key=natural_key)


def _modules_of(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts)))

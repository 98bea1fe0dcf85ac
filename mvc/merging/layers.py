"""Layers of a model, by the names of its tensors.

They are recognised by the numbers in names (``model.layers.7.mlp...``): those of the longest run that
counts from 0.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_LAYER = re.compile(r"^(?P<stack>(?:[^.]*\.)*?)(?P<number>0|[1-9][0-9]{0,4})(?P<rest>\..*)$")
_EMBEDDING = re.compile(r"(^|[._])(embed|embeddings?|embed_\w+|w[tp]e|word_embeddings?)([._]|$)")


def is_embedding(name: str) -> bool:
    """Return whether a tensor comes before the layers, by its name."""
    return _EMBEDDING.search(name) is not None


def split_layer(name: str) -> tuple[str, int, str]:
    """Return what precedes the number of a layer in a name, the number, and what follows it."""
    match = _LAYER.match(name)
    return ("", -1, "") if match is None else (match["stack"], int(match["number"]), match["rest"])


def count_layers(names: Iterable[str]) -> dict[str, int]:
    """Return what precedes the numbers of layers in names → how many layers there are."""
    numbers: dict[str, set[int]] = {}
    for stack, number, _ in map(split_layer, names):
        if number >= 0:
            numbers.setdefault(stack, set()).add(number)
    return {stack: len(one) for stack, one in numbers.items() if one == set(range(len(one)))}


def find_depth(name: str, counts: Mapping[str, int]) -> float:
    """Return where a tensor is between the first layer, 0, and the last, 1."""
    stack, number, _ = split_layer(name)
    # As in mergekit, what is in no layer counts as the first, and a single layer as the last.
    return scale_depth(number, counts[stack]) if counts.get(stack) else 0.0


def scale_depth(number: int, count: int) -> float:
    """Return where one of so many layers is between the first, 0, and the last, 1."""
    return number / (count - 1) if count > 1 else 1.0

"""Tensors that differ, rolled up by module and layer until they fit on a screen.

Names that differ only in numbers are one row: ``layers.0-31.mlp.up_proj.weight``. If those rows are
still too many, the ends of the names go: ``layers.0-31.mlp.*``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.operations.tensor_diff import TensorDiff

    Groups = list[tuple[str, list[TensorDiff]]]

_NUMBER = re.compile("([0-9]+)")
_MAX_DEPTH = 16
_LISTED = 3
_MAX_DIGITS = 18


def roll_up(tensors: Sequence[TensorDiff], rows: int) -> Groups:
    """Return (name, tensors of one status) in at most so many rows, or in as few as there can be."""
    found: Groups = []
    deepest = max(full_name(one).count(".") for one in tensors) + 1
    for depth in range(min(deepest, _MAX_DEPTH), 0, -1):
        found = _group(tensors, depth)
        if len(found) <= rows:
            break
    return found


def full_name(tensor: TensorDiff) -> str:
    """Return a tensor's name, after the one that it had before."""
    return tensor.name if tensor.old_name is None else f"{tensor.old_name} -> {tensor.name}"


def _group(tensors: Sequence[TensorDiff], depth: int) -> Groups:
    groups: dict[tuple[str, ...], list[tuple[str, TensorDiff]]] = {}
    for tensor in tensors:
        parts = full_name(tensor).split(".")
        name = ".".join([*parts[:depth], *(["*"] if len(parts) > depth else [])])
        key = (tensor.status, *_NUMBER.split(name)[::2])
        groups.setdefault(key, []).append((name, tensor))
    return [
        (_shared_name([name for name, _ in pairs]), [one for _, one in pairs])
        for pairs in groups.values()
    ]


def _shared_name(names: Sequence[str]) -> str:
    """Return names that differ in numbers as one, with the range of each number."""
    slots = zip(*map(_NUMBER.split, names), strict=True)
    return "".join(_range(set(slot)) if place % 2 else slot[0] for place, slot in enumerate(slots))


def _range(texts: set[str]) -> str:
    """Return numbers as ``7``, ``1,5,9``, ``0-31``, or ``0…31`` if some between are missing."""
    ordered = sorted(texts, key=lambda text: (len(text.lstrip("0")), text))
    first, last = ordered[0], ordered[-1]
    if len(ordered) <= _LISTED:
        return ",".join(ordered)
    is_gapless = len(last) <= _MAX_DIGITS and int(last) - int(first) == len(ordered) - 1
    return f"{first}{'-' if is_gapless else '…'}{last}"

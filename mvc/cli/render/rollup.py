"""Tensors that differ, rolled up by module and layer until they fit on a screen.

Names that differ only in numbers are one row: ``layers.0-31.mlp.up_proj.weight``. If those rows are
still too many, the ends of the names go: ``layers.0-31.mlp.*``.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from mvc.tensor_names import NUMBER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mvc.operations.tensor_diff import TensorDiff

    Groups = list[tuple[str, list[TensorDiff]]]

_Item = TypeVar("_Item")
_MAX_DEPTH = 16
_LISTED = 3


def roll_up(tensors: Sequence[TensorDiff], rows: int) -> Groups:
    """Return (name, tensors of one status) in at most ``rows`` rows, or in as few as there can be."""
    return fold(tensors, rows, full_name, attrgetter("status"))


def fold(
    items: Sequence[_Item],
    rows: int,
    name_of: Callable[[_Item], str],
    kind_of: Callable[[_Item], str],
) -> list[tuple[str, list[_Item]]]:
    """Return (name, items of one kind) in at most ``rows`` rows, or in as few as there can be."""
    found: list[tuple[str, list[_Item]]] = []
    deepest = max(name_of(item).count(".") for item in items) + 1
    for depth in range(min(deepest, _MAX_DEPTH), 0, -1):
        found = _group([(kind_of(one), name_of(one), one) for one in items], depth)
        if len(found) <= rows:
            break
    return found


def full_name(tensor: TensorDiff) -> str:
    """Return a tensor's name, after the one that it had before."""
    return tensor.name if tensor.old_name is None else f"{tensor.old_name} -> {tensor.name}"


def _group(items: Sequence[tuple[str, str, _Item]], depth: int) -> list[tuple[str, list[_Item]]]:
    groups: dict[tuple[str, ...], list[tuple[str, _Item]]] = {}
    for kind, whole, item in items:
        parts = whole.split(".")
        name = ".".join([*parts[:depth], *(["*"] if len(parts) > depth else [])])
        key = (kind, *NUMBER.split(name)[::2])
        groups.setdefault(key, []).append((name, item))
    shared: list[tuple[str, list[_Item]]] = []
    for pairs in groups.values():
        # Names that differ in numbers are one, with the range of each number.
        slots = enumerate(zip(*(NUMBER.split(name) for name, _ in pairs), strict=True))
        name = "".join(_range(set(slot)) if place % 2 else slot[0] for place, slot in slots)
        shared.append((name, [item for _, item in pairs]))
    return shared


def _range(texts: set[str]) -> str:
    """Return numbers as ``7``, ``1,5,9``, ``0-31``, or ``0…31`` if some between are missing."""
    ordered = sorted(texts, key=lambda text: (len(text.lstrip("0")), text))
    first, last = ordered[0], ordered[-1]
    if len(ordered) <= _LISTED:
        return ",".join(ordered)
    is_gapless = int(last) - int(first) == len(ordered) - 1
    return f"{first}{'-' if is_gapless else '…'}{last}"

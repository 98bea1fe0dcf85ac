"""Names of tensors: which of them a pattern takes, and in which order people read them."""

from __future__ import annotations

import fnmatch
import re
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_Item = TypeVar("_Item")
NUMBER = re.compile("([0-9]{1,18})")


def takes(pattern: str, name: str) -> bool:
    """Return whether a pattern is a tensor's name, that of a module above it, or a fitting glob."""
    return name == pattern or name.startswith(f"{pattern}.") or fnmatch.fnmatchcase(name, pattern)


def natural_key(name: str) -> list[list[tuple[int, str]]]:
    """Return a key that sorts names part by part, and numbers in them by value."""
    return [
        [(int(piece), "") if at % 2 else (-1, piece) for at, piece in enumerate(NUMBER.split(part))]
        for part in name.split(".")
    ]


def in_layer_order(
    items: Iterable[_Item], name_of: Callable[[_Item], str] = attrgetter("name")
) -> list[_Item]:
    """Return items in their order, but ``layers.9`` before ``layers.10`` wherever names count."""
    first_seen: dict[tuple[str, ...], int] = {}
    keyed = []
    for place, item in enumerate(items):
        parts = NUMBER.split(name_of(item))
        key = [
            int(part) if at % 2 else first_seen.setdefault(tuple(parts[: at + 1]), place)
            for at, part in enumerate(parts)
        ]
        keyed.append((key, place, item))
    return [item for _, _, item in sorted(keyed, key=itemgetter(0, 1))]

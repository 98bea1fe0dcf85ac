"""The merge of JSON objects key by key, where lines conflict that say nothing against each other.

Configurations have a key on each line, so changes of two neighbours meet in a merge by lines. The result
is spelled as ours; a file in a style that is not known stays a conflict.
"""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any

from mvc.merging.table import decide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_MAX_DEPTH = 16
_INDENTS = (2, 4, None, 1, 3, 8, "\t", 0)
_MISSING = object()


def merge_json(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Return the merged object; None if both changed a value, or one is no plain JSON object."""
    try:
        old, here, there = (
            json.loads(one, object_pairs_hook=_unique) if one else {}
            for one in (base, ours, theirs)
        )
        if not all(isinstance(one, dict) for one in (old, here, there)):
            return None
        text = ours.decode()
        spell, end = _find_style(here, text.rstrip()), text[len(text.rstrip()) :]
        merged = _merge(old, here, there, _MAX_DEPTH)
        return None if spell is None else (spell(merged) + end).encode()
    except (ValueError, RecursionError):
        return None


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key[:80]!r} is there twice")
        found[key] = value
    return found


def _merge(
    base: Mapping[str, Any], ours: Mapping[str, Any], theirs: Mapping[str, Any], depth: int
) -> dict[str, Any]:
    """Return what both make of an object, in the order of ours."""
    merged: dict[str, Any] = {}
    for key in dict.fromkeys([*ours, *theirs]):
        found = [one.get(key, _MISSING) for one in (base, ours, theirs)]
        texts = [None if one is _MISSING else json.dumps(one, sort_keys=True) for one in found]
        side = decide(texts[0], texts[1:]).side
        if side is not None:
            value = found[1 + side]
        elif depth and all(isinstance(one, dict) for one in found[texts[0] is None :]):
            old, here, there = found
            value = _merge({} if old is _MISSING else old, here, there, depth - 1)
        else:
            raise ValueError(f"both sides changed {key[:80]!r}")
        if value is not _MISSING:
            merged[key] = value
    return dict(sorted(merged.items())) if [*ours] == sorted(ours) else merged


def _find_style(value: object, text: str) -> Callable[[object], str] | None:
    """Return what spells a value as this text spells its own; None if no style gives it again."""
    for indent, is_ascii in product(_INDENTS, (True, False)):
        comma = ", " if indent is None else ","
        style = json.JSONEncoder(indent=indent, ensure_ascii=is_ascii, separators=(comma, ": "))
        if style.encode(value) == text:
            return style.encode
    return None

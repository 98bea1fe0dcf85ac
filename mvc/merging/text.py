"""Three-way merge of texts, with Git's markers around conflicts. Pure.

The classic algorithm: lines that all three have in common, in order, hold the versions together;
between two such places, what only one side changed is taken from it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from mvc.merging.table import decide

if TYPE_CHECKING:
    from mvc.merging.rules import Side


MAX_TEXT_BYTES = 2**20
_MAX_LINES = 20_000  # that are compared
_MAX_PAIRS = 4_000_000  # of equal lines: finding what belongs together takes about as many steps
_PROBE_BYTES = 8000  # where Git looks for a NUL
_MARKER = 7


@dataclass(frozen=True, slots=True)
class MergedText:
    """The merged bytes, and how many places both sides changed differently."""

    data: bytes
    conflicts: int


@dataclass(frozen=True, slots=True)
class _Hunk:
    """Lines between two places that all versions have in common, as each has them."""

    base: Sequence[bytes]
    ours: Sequence[bytes]
    theirs: Sequence[bytes]


def is_text(data: bytes) -> bool:
    """Return whether bytes are mergeable text, by Git's rule."""
    return len(data) <= MAX_TEXT_BYTES and b"\0" not in data[:_PROBE_BYTES]


def merge_text(
    base: bytes,
    ours: bytes,
    theirs: bytes,
    *,
    labels: tuple[str, str] = ("ours", "theirs"),
    favour: Side | None = None,
) -> MergedText | None:
    """Merge two versions of a text over their base; None if they are no text, or too long to be compared.

    The base is empty if both sides made the file. ``labels`` are what the markers call the two; where both
    changed something, ``favour`` says which is taken, and None writes both.
    """
    if not all(map(is_text, (base, ours, theirs))):
        return None
    versions = [data.splitlines(keepends=True) for data in (base, ours, theirs)]
    counts, *others = (Counter(lines) for lines in versions)
    pairs = sum(count * other[line] for other in others for line, count in counts.items())
    if max(map(len, versions)) > _MAX_LINES or pairs > _MAX_PAIRS:
        return None
    merged: list[bytes] = []
    conflicts = 0
    for hunk in _split(*versions):
        if hunk.ours == hunk.base:
            merged += hunk.theirs
        elif hunk.theirs in (hunk.base, hunk.ours):
            merged += hunk.ours
        elif favour is not None:
            merged += getattr(hunk, favour)
        else:
            conflicts += 1
            merged += _mark(hunk, labels)
    return MergedText(b"".join(merged), conflicts)


def _split(
    base: Sequence[bytes], ours: Sequence[bytes], theirs: Sequence[bytes]
) -> Iterator[_Hunk]:
    """Yield what is common to all as hunks of its own, and what is between."""
    place = (0, 0, 0)
    for start, our_start, their_start, size in _find_common(base, ours, theirs):
        yield _Hunk(
            base[place[0] : start], ours[place[1] : our_start], theirs[place[2] : their_start]
        )
        same = base[start : start + size]
        yield _Hunk(same, same, same)
        place = (start + size, our_start + size, their_start + size)
    yield _Hunk(base[place[0] :], ours[place[1] :], theirs[place[2] :])


def _find_common(
    base: Sequence[bytes], ours: Sequence[bytes], theirs: Sequence[bytes]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield (start in base, in ours, in theirs; lines) of what all three share, in order."""
    from difflib import SequenceMatcher  # noqa: PLC0415  import cost

    left, right = (
        SequenceMatcher(None, base, side, autojunk=False).get_matching_blocks()
        for side in (ours, theirs)
    )
    one = other = 0
    while one < len(left) and other < len(right):
        ours_run, theirs_run = left[one], right[other]
        start = max(ours_run.a, theirs_run.a)
        end = min(ours_run.a + ours_run.size, theirs_run.a + theirs_run.size)
        if start < end:
            yield (
                start,
                ours_run.b + start - ours_run.a,
                theirs_run.b + start - theirs_run.a,
                end - start,
            )
        if ours_run.a + ours_run.size < theirs_run.a + theirs_run.size:
            one += 1
        else:
            other += 1


def _mark(hunk: _Hunk, labels: tuple[str, str]) -> list[bytes]:
    """Return both versions between markers; lines that they begin or end with alike are outside."""
    ours, theirs = list(hunk.ours), list(hunk.theirs)
    before: list[bytes] = []
    after: list[bytes] = []
    while ours and theirs and ours[0] == theirs[0]:
        before.append(ours.pop(0))
        theirs.pop(0)
    while ours and theirs and ours[-1] == theirs[-1]:
        after.insert(0, ours.pop())
        theirs.pop()
    end = b"\r\n" if (hunk.ours or hunk.theirs)[0].endswith(b"\r\n") else b"\n"
    our_name, their_name = (label.encode("utf-8", "replace") for label in labels)
    return [
        *before,
        b"<" * _MARKER + b" " + our_name + end,
        *_ended(ours, end),
        b"=" * _MARKER + end,
        *_ended(theirs, end),
        b">" * _MARKER + b" " + their_name + end,
        *after,
    ]


def _ended(lines: list[bytes], end: bytes) -> list[bytes]:
    """Return lines whose last one is ended, too: a marker follows."""
    if lines and not lines[-1].endswith(b"\n"):
        return [*lines[:-1], lines[-1] + end]
    return lines


_MAX_DEPTH = 16
_INDENTS = (2, 4, None, 1, 3, 8, "\t", 0)
_MISSING = object()


def merge_json(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Return the merged object; None if both changed a value, or one is not a plain JSON object."""
    try:
        old, here, there = (
            json.loads(version, object_pairs_hook=_unique) if version else {}
            for version in (base, ours, theirs)
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
        found = [version.get(key, _MISSING) for version in (base, ours, theirs)]
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

"""Git's split index: most entries are in a shared file, the index has what differs from them.

Its ``link`` extension names the shared file and has two bitmaps over the entries there: those that
are gone, and those that are replaced. A replacement comes first in the index, without its path and
in the order of the bits; the entries behind those are new. The bitmaps are compressed: a marker word
says how many words of one bit follow (not stored), and how many words as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

StoredEntry = tuple[bytes, tuple[Any, ...], int]
"""(name, fields, extended flags) of an entry."""

_ID_BYTES = 20
_WORD_BITS = 64
_RUN_BITS = 32


@dataclass(frozen=True, slots=True)
class SplitLink:
    """What the ``link`` extension says; ``shared`` is the checksum of the shared file, in hex."""

    shared: str
    _bitmaps: bytes

    def join(self, shared: Sequence[StoredEntry], own: Sequence[StoredEntry]) -> list[StoredEntry]:
        """Return all entries; a ValueError if they do not fit the bitmaps."""
        gone, rest = _parse_bitmap(self._bitmaps, len(shared))
        replaced, rest = _parse_bitmap(rest, len(shared))
        if rest or len(own) < len(replaced) or any(name for name, _, _ in own[: len(replaced)]):
            raise ValueError("it does not fit its shared part")
        kept = dict(enumerate(shared))
        for place, (_, fields, extended) in zip(replaced, own, strict=False):
            kept[place] = (shared[place][0], fields, extended)
        for place in gone:
            del kept[place]
        return [*kept.values(), *own[len(replaced) :]]


def parse_link(data: bytes) -> SplitLink | None:
    """Return what the extension says; None if there is no shared file."""
    if len(data) < _ID_BYTES:
        raise ValueError("its link to a shared part is cut off")
    shared = data[:_ID_BYTES]
    return SplitLink(shared.hex(), data[_ID_BYTES:]) if any(shared) else None


def _parse_bitmap(data: bytes, limit: int) -> tuple[list[int], bytes]:
    """Return the places of the bits that are set, ascending, and the bytes after the bitmap."""
    if not data:
        return [], data
    size, count = (int.from_bytes(data[start : start + 4], "big") for start in (0, 4))
    end = 8 + 8 * count + 4  # the last four bytes are of use to writers only
    if size > limit or len(data) < end:
        raise ValueError("a bitmap in it is damaged")
    words = (int.from_bytes(data[start : start + 8], "big") for start in range(8, end - 4, 8))
    found: list[int] = []
    start = 0
    for marker in words:
        run = marker >> 1 & (1 << _RUN_BITS) - 1
        if start + run * _WORD_BITS >= size + _WORD_BITS:
            raise ValueError("a bitmap in it is damaged")
        if marker & 1:
            found.extend(range(start, start + run * _WORD_BITS))
        start += run * _WORD_BITS
        for _ in range(marker >> 1 + _RUN_BITS):
            word = next(words, None)
            if word is None:
                raise ValueError("a bitmap in it is cut off")
            found.extend(start + bit for bit in range(_WORD_BITS) if word >> bit & 1)
            start += _WORD_BITS
    if found and found[-1] >= size:
        raise ValueError("a bitmap in it is damaged")
    return found, data[end:]

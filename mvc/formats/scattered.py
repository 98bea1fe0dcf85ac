"""Planes of which few bytes matter: those are listed, by the gaps between them.

In the high planes of a difference most bytes are zero, and in the low ones most lie close to it,
but the rest is too much for the exceptions of ``mvc.formats.nibbles``: weights near zero move by
many steps of their fine grid where others move by one. Zstd finds short matches there, and those are
its slowest case, up to three times as slow as bytes without. A list takes one to two bytes for each
entry, often less than the matches did (measured on BF16 weights: 3 % of the chunk instead of 5 %),
and is undone in the time of one scattered write.

    list       u32 number of entries n, at least 1 and at most w // 8
               u32 size of the first frame
               one zstd frame of n bytes: before each entry, how many bytes of the plane are left out
               one zstd frame of n bytes: what is added (mod 256) to the byte there

w being the bytes of the plane. A gap of more than 255 is bridged by entries that add nothing. A
plane is either *scattered*, a list on top of zeros; or it has *tails*, a list on top of small
numbers two to a byte:

    tails      u32 size of the first frame
               one zstd frame of h = ceil(w / 2) bytes
               a list

where byte i of the frame holds plane[i] + 8 in its low and plane[h + i] + 8 in its high four bits;
the spare four bits of an odd plane are ignored. Integers are little-endian.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from mvc.errors import FormatError
from mvc.formats.nibbles import WINDOW

if TYPE_CHECKING:
    from mvc.formats.nibbles import Bytes, Positions

WORDS_PER_ENTRY = 8
"""A list for a plane of w bytes has at most w // 8 entries: a reader needs a cap on its memory."""

SMALLEST = 256 - WINDOW // 2
"""The small numbers, modulo 256, begin here."""

_LIST = struct.Struct("<II")
_TAILS = struct.Struct("<I")
_GAP_LIMIT = 256
_ZERO = WINDOW // 2
"""What is added so that a small number of either sign fits into four bits."""


def list_nonzero(plane: Bytes, arena: Bytes) -> tuple[Bytes, Bytes] | None:
    """Return the gaps and values of a list that makes ``plane`` of zeros; None if it is too long.

    Args:
        plane: the bytes to list.
        arena: temporary memory.
    """
    positions = _find_places(plane, 1, arena)
    return _encode_gaps(positions, plane[positions], plane.size)


def split_tails(plane: Bytes, arena: Bytes) -> tuple[Bytes, tuple[Bytes, Bytes]] | None:
    """Cut a plane, in place, into small numbers and a list of the others.

    Args:
        plane: the bytes to cut; overwritten.
        arena: temporary memory.

    Returns:
        The packed numbers (a view into ``plane``), and the gaps and values of the list; or None,
        with ``plane`` unchanged, where the list would be empty or too long.
    """
    np.add(plane, np.uint8(_ZERO), out=plane)
    positions = _find_places(plane, WINDOW, arena)
    listed = _encode_gaps(positions, plane[positions] - np.uint8(_ZERO), plane.size)
    if listed is None:
        np.subtract(plane, np.uint8(_ZERO), out=plane)
        return None
    plane[positions] = _ZERO
    half = -(-plane.size // 2)
    low, high = plane[: plane.size - half], plane[half:]
    np.multiply(high, WINDOW, out=high)  # NumPy shifts single bytes ten times slower
    np.bitwise_or(low, high, out=low)
    return plane[:half], listed


def count_tails(plane: Bytes) -> int:
    """Return how many bytes of ``plane`` are no small numbers."""
    return int(np.count_nonzero(plane + np.uint8(_ZERO) >= WINDOW))


def join_tails(packed: Bytes, plane: Bytes) -> None:
    """Fill ``plane`` with the small numbers that ``split_tails`` packed."""
    half = packed.size
    np.bitwise_and(packed, WINDOW - 1, out=plane[:half])
    np.right_shift(packed[: plane.size - half], 4, out=plane[half:])
    np.subtract(plane, np.uint8(_ZERO), out=plane)


def find_places(gaps: Bytes, words: int) -> Positions:
    """Return the positions of a list's entries in a plane of ``words`` bytes, ascending.

    Raises:
        FormatError: they reach beyond the plane.
    """
    positions: Positions = np.cumsum(gaps, dtype=np.intp)
    np.add(positions, np.arange(gaps.size), out=positions)
    if int(positions[-1]) >= words:
        raise FormatError("list of a plane reaches beyond it")
    return positions


def encode_list(count: int, gaps: bytes, values: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the stored form of a list of ``count`` entries from its two frames."""
    return _LIST.pack(count, len(gaps)), gaps, values


def parse_list(stored: memoryview, words: int) -> tuple[int, memoryview, memoryview]:
    """Return the number of entries and the two frames of a list; the inverse of ``encode_list``.

    Raises:
        FormatError: a list too short for its header, or of too many entries.
    """
    if len(stored) < _LIST.size:
        raise FormatError("list of a plane is shorter than its header")
    count, size_bytes = _LIST.unpack_from(stored)
    end = _LIST.size + size_bytes
    if not 0 < count <= words // WORDS_PER_ENTRY or end > len(stored):
        raise FormatError("list of a plane has an impossible header")
    return count, stored[_LIST.size : end], stored[end:]


def encode_tails(packed: bytes, listed: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return the stored form of a plane with tails from its frame and its stored list."""
    return _TAILS.pack(len(packed)), packed, *listed


def parse_tails(stored: memoryview) -> tuple[memoryview, memoryview]:
    """Return the frame and the stored list of a plane with tails.

    Raises:
        FormatError: shorter than it says.
    """
    if len(stored) < _TAILS.size:
        raise FormatError("plane with tails is shorter than its header")
    end = _TAILS.size + int(_TAILS.unpack_from(stored)[0])
    if end > len(stored):
        raise FormatError("plane with tails is shorter than its frame")
    return stored[_TAILS.size : end], stored[end:]


def _encode_gaps(positions: Positions, values: Bytes, words: int) -> tuple[Bytes, Bytes] | None:
    if not 0 < positions.size <= words // WORDS_PER_ENTRY:
        return None
    skipped = np.empty_like(positions)
    skipped[0] = positions[0]
    np.subtract(positions[1:], positions[:-1], out=skipped[1:])
    skipped[1:] -= 1
    if int(skipped.max()) < _GAP_LIMIT:
        return skipped.astype(np.uint8), values
    places = np.arange(positions.size) + np.cumsum(skipped // _GAP_LIMIT)
    count = int(places[-1]) + 1
    if count > words // WORDS_PER_ENTRY:
        return None
    gaps, added = np.full(count, _GAP_LIMIT - 1, np.uint8), np.zeros(count, np.uint8)
    gaps[places] = skipped % _GAP_LIMIT
    added[places] = values
    return gaps, added


def _find_places(plane: Bytes, limit: int, arena: Bytes) -> Positions:
    """Return where ``plane`` is ``limit`` or more, ascending."""
    found = []
    for start in range(0, plane.size, arena.size):
        block = plane[start : start + arena.size]
        hits = arena[: block.size].view(np.bool_)
        np.greater_equal(block, limit, out=hits)
        found.append(np.flatnonzero(hits) + start)
    return found[0] if len(found) == 1 else np.concatenate(found)

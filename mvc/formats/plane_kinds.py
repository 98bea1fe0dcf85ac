"""Planes whose bytes are mostly close together: as nibbles, as a list, or as both.

docs/format.md, section 3, shows the layouts.

*Nibbles.* The exponents of one tensor's weights nearly all lie among 16 neighbouring values. As
distances from the lowest of them, two fit into one byte, and the entropy coder, whose time goes by
the byte, has half as much to do: measured on bf16 weights, encoding is half as fast again and
decoding a little faster, at a slightly better ratio (pairs waste less of a Huffman code). The few
bytes outside that window are listed as exceptions. Halves are paired rather than neighbours because
whole arrays can then be joined and parted with one operation. The spare four bits of an odd plane
and those of exceptions are written as zero and ignored.

*Lists.* In the high planes of a difference most bytes are zero, and in the low ones most are close
to it, but there are too many others for exceptions: weights near zero move by many steps of their
fine grid while others move by one. Zstd finds short matches there, its slowest case, up to three
times as slow as bytes without matches. A list takes one to two bytes per entry, often less than the
matches did (BF16 weights: 3 % of the chunk instead of 5 %), and costs one scattered write to undo.

A gap of more than 255 is bridged by entries that add nothing. A plane is either *scattered*, a list
on top of zeros; or it has *tails*, a list on top of small numbers two to a byte.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from mvc.errors import FormatError

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.intp]

WINDOW = 16
WORDS_PER_EXCEPTION = 256
"""A plane of w bytes may have w // 256 exceptions: more would not pay, and a reader needs a cap."""
WORDS_PER_ENTRY = 8
"""A list for a plane of w bytes has at most w // 8 entries, for the same reasons."""
SMALLEST = 256 - WINDOW // 2
"""The small numbers, modulo 256, begin here."""

_NIBBLES = struct.Struct("<BBHI")
_LIST = struct.Struct("<II")
_TAILS = struct.Struct("<I")
_GAP_LIMIT = 256
_ZERO = np.uint8(WINDOW // 2)
"""Added so that a small number of either sign fits into four bits."""


def find_base(sample: Bytes) -> int | None:
    """Return the start of the window that covers most of ``sample``, or None if it is too few."""
    below = np.concatenate(([0], np.bincount(sample, minlength=256).cumsum()))
    covered = below[WINDOW:] - below[:-WINDOW]
    base = int(covered.argmax())
    exceptions = sample.size - int(covered[base])
    return base if exceptions <= sample.size // WORDS_PER_EXCEPTION else None


def pack_nibbles(plane: Bytes, base: int, arena: Bytes) -> tuple[bytes, Bytes] | None:
    """Pack a plane in place; ``base`` is the lowest value of the window.

    Returns everything in front of the zstd frame, and the bytes to go into it (a view into
    ``plane``); or None, with ``plane`` unchanged, if there are too many exceptions. The arena is a
    multiple of 8 bytes.
    """
    offset = np.uint8(base)
    np.subtract(plane, offset, out=plane)
    positions = _find_at_least(WINDOW, plane, arena)
    if positions.size > plane.size // WORDS_PER_EXCEPTION:
        np.add(plane, offset, out=plane)
        return None
    values = plane[positions] + offset
    plane[positions] = 0
    head = _NIBBLES.pack(base, 0, 0, positions.size)
    return head + positions.astype("<u4").tobytes() + values.tobytes(), _join_halves(plane)


def unpack_nibbles(
    packed: Bytes, base: int, positions: Positions, values: Bytes, plane: Bytes
) -> None:
    """Fill ``plane`` from its packed bytes and exceptions; the inverse of ``pack_nibbles``."""
    _part_halves(packed, plane)
    np.add(plane, np.uint8(base), out=plane)
    plane[positions] = values


def parse_nibbles(body: memoryview, words: int) -> tuple[int, Positions, Bytes, memoryview]:
    """Return base, positions and values of the exceptions, and the zstd frame of a packed plane."""
    if len(body) < _NIBBLES.size:
        raise FormatError("packed plane is shorter than its header")
    base, zero, zeros, count = _NIBBLES.unpack_from(body)
    values_at = _NIBBLES.size + 4 * count
    if zero or zeros or count > words // WORDS_PER_EXCEPTION or values_at + count > len(body):
        raise FormatError("packed plane has an impossible header")
    positions = np.frombuffer(body, "<u4", count, _NIBBLES.size).astype(np.intp)
    values = np.frombuffer(body, np.uint8, count, values_at)
    if count and (int(positions[-1]) >= words or bool((np.diff(positions) <= 0).any())):
        raise FormatError("exceptions of a packed plane are out of order or out of range")
    return base, positions, values, body[values_at + count :]


def list_nonzero(plane: Bytes, arena: Bytes) -> tuple[Bytes, Bytes] | None:
    """Return the gaps and values of a list that makes ``plane`` of zeros; None if it is too long."""
    positions = _find_at_least(1, plane, arena)
    return _encode_gaps(positions, plane[positions], plane.size)


def split_tails(plane: Bytes, arena: Bytes) -> tuple[Bytes, tuple[Bytes, Bytes]] | None:
    """Cut a plane, in place, into small numbers and a list of the others.

    Returns the packed numbers (a view into ``plane``), and the gaps and values of the list; or
    None, with ``plane`` unchanged, if the list would be empty or too long.
    """
    np.add(plane, _ZERO, out=plane)
    positions = _find_at_least(WINDOW, plane, arena)
    listed = _encode_gaps(positions, plane[positions] - _ZERO, plane.size)
    if listed is None:
        np.subtract(plane, _ZERO, out=plane)
        return None
    plane[positions] = _ZERO
    return _join_halves(plane), listed


def count_tails(plane: Bytes) -> int:
    """Return how many bytes of ``plane`` are not small numbers."""
    return int(np.count_nonzero(plane + _ZERO >= WINDOW))


def join_tails(packed: Bytes, plane: Bytes) -> None:
    """Fill ``plane`` with the small numbers that ``split_tails`` packed."""
    _part_halves(packed, plane)
    np.subtract(plane, _ZERO, out=plane)


def encode_list(count: int, gaps: bytes, values: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the stored form of a list of ``count`` entries from its two frames."""
    return _LIST.pack(count, len(gaps)), gaps, values


def parse_list(stored: memoryview, words: int) -> tuple[int, memoryview, memoryview]:
    """Return the number of entries and the two frames of a list; the inverse of ``encode_list``."""
    if len(stored) < _LIST.size:
        raise FormatError("list of a plane is shorter than its header")
    count, size_bytes = _LIST.unpack_from(stored)
    end = _LIST.size + size_bytes
    if not 0 < count <= words // WORDS_PER_ENTRY or end > len(stored):
        raise FormatError("list of a plane has an impossible header")
    return count, stored[_LIST.size : end], stored[end:]


def find_places(gaps: Bytes, words: int) -> Positions:
    """Return the positions of a list's entries in a plane of ``words`` bytes, ascending."""
    positions: Positions = np.cumsum(gaps, dtype=np.intp)
    np.add(positions, np.arange(gaps.size), out=positions)
    if int(positions[-1]) >= words:
        raise FormatError("list of a plane reaches beyond it")
    return positions


def encode_tails(packed: bytes, listed: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return the stored form of a plane with tails from its frame and its stored list."""
    return _TAILS.pack(len(packed)), packed, *listed


def parse_tails(stored: memoryview) -> tuple[memoryview, memoryview]:
    """Return the frame and the stored list of a plane with tails."""
    if len(stored) < _TAILS.size:
        raise FormatError("plane with tails is shorter than its header")
    end = _TAILS.size + int(_TAILS.unpack_from(stored)[0])
    if end > len(stored):
        raise FormatError("plane with tails is shorter than its frame")
    return stored[_TAILS.size : end], stored[end:]


def _join_halves(plane: Bytes) -> Bytes:
    """Pack a plane of numbers below 16 in place; return the view that holds all of them."""
    half = -(-plane.size // 2)
    low, high = plane[: plane.size - half], plane[half:]
    np.multiply(high, WINDOW, out=high)  # NumPy shifts single bytes ten times slower
    np.bitwise_or(low, high, out=low)
    return plane[:half]


def _part_halves(packed: Bytes, plane: Bytes) -> None:
    half = packed.size
    np.bitwise_and(packed, WINDOW - 1, out=plane[:half])
    np.right_shift(packed[: plane.size - half], 4, out=plane[half:])


def _find_at_least(limit: int, plane: Bytes, arena: Bytes) -> Positions:
    """Return where ``plane`` is ``limit`` or more, ascending; the arena is a multiple of 8 bytes."""
    places_found = []
    for start in range(0, plane.size, arena.size):
        block = plane[start : start + arena.size]
        hits = arena[: block.size + -block.size % 8].view(np.bool_)
        hits[block.size :] = False
        np.greater_equal(block, limit, out=hits[: block.size])
        # Looking at eight at a time first pays because most are empty.
        eights = hits.view(np.uint64)
        rows = np.flatnonzero(eights != 0)
        places = np.flatnonzero(eights[rows].view(np.bool_))
        places_found.append(start + 8 * rows[places >> 3] + (places & 7))
    return places_found[0] if len(places_found) == 1 else np.concatenate(places_found)


def _encode_gaps(positions: Positions, values: Bytes, words: int) -> tuple[Bytes, Bytes] | None:
    if not 0 < positions.size <= words // WORDS_PER_ENTRY:
        return None
    skipped = np.diff(positions, prepend=-1) - 1
    far = np.flatnonzero(skipped >= _GAP_LIMIT)
    bridges = np.repeat(far, skipped[far] // _GAP_LIMIT)
    if positions.size + bridges.size > words // WORDS_PER_ENTRY:
        return None
    gaps = np.insert(skipped.astype(np.uint8), bridges, _GAP_LIMIT - 1)
    return gaps, np.insert(values, bridges, 0)

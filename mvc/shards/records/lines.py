"""JSON Lines: a record is a line that is not empty."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.shards.records.stream import Piece, Stream

_EMPTY = (b"", b"\r")


def count_lines(stream: Stream) -> int:
    """Return how many lines are not empty; the last one needs no end."""
    count, is_open = 0, False
    for piece in stream.pieces():
        first = piece.find(b"\n")
        if first < 0:
            is_open |= piece not in _EMPTY
            continue
        last = piece.rfind(b"\n")
        count += is_open or piece[:first] not in _EMPTY
        count += _count_whole(piece, first + 1, last + 1)
        is_open = piece[last + 1 :] not in _EMPTY
    return count + is_open


def _count_whole(piece: Piece, start: int, end: int) -> int:
    """Return how many lines are not empty in a range that begins and ends with one."""
    # The line break before the range is there, too: it shows whether the first line is empty.
    if piece.find(b"\n\n", start - 1, end) < 0 and piece.find(b"\n\r\n", start - 1, end) < 0:
        return piece.count(b"\n", start, end)
    lines: Sequence[Piece] = piece[start:end].split(b"\n")
    return len(lines) - sum(lines.count(empty) for empty in _EMPTY)

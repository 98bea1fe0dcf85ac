"""JSON lines: plain, where the offset of each line is found by one scan, or compressed."""

from __future__ import annotations

import json
import os
from array import array
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from mvc import FormatError
from mvc.shards import unpack_file
from mvc_data.readers.reader import SlicedFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_CHUNK_BYTES = 1 << 20
_EMPTY = (b"", b"\r")
_LONG_BYTES = 1 << 10  # of a line


def open_lines(path: str) -> SlicedFile:
    """Open a file of JSON lines; empty lines are no records."""
    stops = _find_ends(path)
    begins = np.concatenate(([0], stops[:-1] + 1))
    is_record = stops > begins
    lone = np.flatnonzero(stops - begins == 1)
    if len(lone):
        is_record[lone] = [not _is_blank(path, at) for at in begins[lone].tolist()]
    return SlicedFile(path, begins[is_record], stops[is_record], parse_line)


def _find_ends(path: str) -> NDArray[np.int64]:
    """Return where lines end: at line breaks, and at the end of the file."""
    ends, start = [], 0
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            ends.append(start + _find_breaks(chunk))
            start += len(chunk)
    return np.concatenate((*ends, [start]))


def _find_breaks(chunk: bytes) -> NDArray[np.int64]:
    if _LONG_BYTES * chunk.count(b"\n") > len(chunk):
        return np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n"))
    # A search for one byte runs at several GB/s, and comparing arrays at less; but each find costs, too.
    found, at = array("q"), chunk.find(b"\n")
    while at >= 0:
        found.append(at)
        at = chunk.find(b"\n", at + 1)
    return np.array(found, np.int64)


def _is_blank(path: str, at: int) -> bool:
    with open(path, "rb") as file:
        return os.pread(file.fileno(), 1, at) == b"\r"


def parse_line(line: bytes) -> Any:
    """Return the value of a line; ValueError if it has none."""
    try:
        try:
            return msgspec.json.decode(line)
        except msgspec.DecodeError:
            return json.loads(line)  # slower, and knows NaN
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def iterate_compressed_lines(path: str) -> Iterator[list[bytes]]:
    """Yield the lines of a .zst or .gz file that are not empty, some at a time."""
    begun: list[bytes] = []  # parts of a line that has not ended: a long one is copied once
    for piece in _unpack(path):
        begun.append(piece)
        if b"\n" in piece:
            *lines, rest = b"".join(begun).split(b"\n")
            begun = [rest]
            if any(empty in lines for empty in _EMPTY):
                lines = [line for line in lines if line not in _EMPTY]
            yield lines
    if (rest := b"".join(begun)) not in _EMPTY:
        yield [rest]


def _unpack(path: str) -> Iterator[bytes]:
    try:
        yield from unpack_file(path)
    except FormatError as error:
        raise FormatError(f"shard {path}: {error.message}") from None

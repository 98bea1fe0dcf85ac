"""JSON lines: plain, where the offset of each line is found by one scan, or compressed."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import zstandard

from mvc import FormatError
from mvc_hooks.data.readers.reader import SlicedFile

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK_BYTES = 1 << 20
_NEWLINE = 10


def open_lines(path: str) -> SlicedFile:
    """Open a file of JSON lines; empty lines are no records."""
    ends = [np.zeros(0, np.int64)]
    with open(path, "rb", buffering=0) as file:
        at = 0
        while chunk := file.read(_CHUNK_BYTES):
            ends.append(np.flatnonzero(np.frombuffer(chunk, np.uint8) == _NEWLINE) + at)
            at += len(chunk)
    stops = np.concatenate([*ends, [at]])
    begins = np.concatenate(([0], stops[:-1] + 1))
    is_record = stops > begins
    if np.any(stops - begins == 1):  # a lone \r, or a number of one digit
        is_record &= ~_find_blank(path, begins, stops)
    return SlicedFile(path, begins[is_record], stops[is_record], parse_line)


def _find_blank(path: str, begins: Any, stops: Any) -> Any:
    blank = np.zeros(len(begins), bool)
    with open(path, "rb") as file:
        for at in np.flatnonzero(stops - begins == 1):
            blank[at] = not os.pread(file.fileno(), 1, int(begins[at])).strip()
    return blank


def parse_line(line: bytes) -> Any:
    """Return the value of a line; ValueError if it has none."""
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        return json.loads(line)  # slower, and knows NaN


def iterate_compressed_lines(path: str) -> Iterator[bytes]:
    """Yield the lines of a .zst or .gz file that are not empty."""
    chunks = _unpack_zst(path) if path.endswith(".zst") else _unpack_gz(path)
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
    if rest.strip():
        yield rest


def _unpack_zst(path: str) -> Iterator[bytes]:
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    is_whole = True
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES // 8):
            while chunk:
                try:
                    yield unpacker.decompress(chunk)
                except zstandard.ZstdError as error:
                    raise FormatError(f"shard {path} is not zstd data: {error}") from None
                is_whole, chunk = unpacker.eof, unpacker.unused_data
                if is_whole:
                    unpacker = zstandard.ZstdDecompressor().decompressobj()
    if not is_whole:
        raise FormatError(f"shard {path} is cut off: its last zstd frame has no end")


def _unpack_gz(path: str) -> Iterator[bytes]:
    try:
        with gzip.open(path, "rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FormatError(f"shard {path} is damaged or cut off: {error}") from None

"""What is compressed as a whole, unpacked piece by piece.

A small file can unpack to almost any length, so there is a limit: no data set that is worth training
on shrinks to a two-hundredth.
"""

from __future__ import annotations

import io
import zlib
from typing import TYPE_CHECKING, cast

import zstandard

from mvc.errors import FormatError
from mvc.shards.records.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from mvc.shards.records.stream import Piece

MAX_RATIO = 200
_SMALL_BYTES = 64 << 20  # may always be unpacked
_PIECE_BYTES = 1 << 20
_GZIP_BITS = 16 + zlib.MAX_WBITS
_MAX_WINDOW_BYTES = 1 << 27  # what zstd itself takes unless told otherwise


def unpack(stream: Stream, packing: str) -> Stream:
    """Return what a compressed stream holds; ``packing`` is gz or zst."""
    pieces = _unpack_gzip(stream) if packing == "gz" else _unpack_zstd(stream)
    return Stream(_limited(pieces, stream), None)


def _limited(pieces: Iterator[Piece], stream: Stream) -> Iterator[Piece]:
    done_bytes = 0
    for piece in pieces:
        done_bytes += len(piece)
        if done_bytes > max(_SMALL_BYTES, MAX_RATIO * stream.position):
            raise FormatError(f"it unpacks to more than {MAX_RATIO} times its length")
        yield piece


def _unpack_gzip(stream: Stream) -> Iterator[Piece]:
    """Yield the content of all members of a gzip file."""
    unpacker = zlib.decompressobj(_GZIP_BITS)
    try:
        for piece in stream.pieces():
            data = bytes(piece)
            while data:
                if unpacker.eof:
                    if not data.strip(b"\0"):
                        break  # padding
                    unpacker = zlib.decompressobj(_GZIP_BITS)
                yield unpacker.decompress(data, _PIECE_BYTES)
                data = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
    except zlib.error as error:
        raise FormatError(f"it is not gzip: {error}") from error
    if not unpacker.eof:
        raise FormatError("it ends too early")


class _File(io.RawIOBase):
    """A stream as the file that zstandard reads."""

    def __init__(self, stream: Stream) -> None:
        self._pieces = stream.pieces()

    def read(self, _size: int = -1) -> bytes:
        return bytes(next(self._pieces, b""))


def _unpack_zstd(stream: Stream) -> Iterator[Piece]:
    """Yield the content of all frames of a zstd file."""
    unpacker = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    reader = unpacker.stream_reader(
        cast("BinaryIO", _File(stream)), read_size=_PIECE_BYTES, read_across_frames=True
    )
    try:
        while piece := reader.read(_PIECE_BYTES):
            yield piece
    except zstandard.ZstdError as error:
        raise FormatError(f"it is not zstd: {error}") from error

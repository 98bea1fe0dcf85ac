"""What is compressed as a whole, unpacked piece by piece.

A small file can unpack to almost any length, so there is a limit: no data set that is worth training
on shrinks to a two-hundredth.
"""

from __future__ import annotations

import functools
import zlib
from typing import TYPE_CHECKING, Any

import zstandard

from mvc.errors import FormatError
from mvc.shards.records.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mvc.shards.records.stream import Piece

MAX_RATIO = 200
_SMALL_BYTES = 64 << 20  # may always be unpacked
_PIECE_BYTES = 1 << 20
_STEP_BYTES = 1 << 12
"""What is unpacked at once: of zstd it holds 128 MiB at most, and what is left of it is soon copied."""
_GZIP_BITS = 16 + zlib.MAX_WBITS
_MAX_WINDOW_BYTES = 1 << 27  # what zstd itself takes unless told otherwise


def unpack(stream: Stream, packing: str) -> Stream:
    """Return what a compressed stream holds; ``packing`` is one of ``PACKINGS``."""
    return Stream(_limited(_unpack(stream, *PACKINGS[packing]), stream), None)


def unpack_file(path: str) -> Iterator[bytes]:
    """Yield the content of a compressed file, piece by piece; its name says how it is compressed.

    Raises:
        FormatError: it is not compressed that way, is cut off, or unpacks to too much.
    """
    with open(path, "rb", buffering=0) as file:
        pieces = iter(functools.partial(file.read, _PIECE_BYTES), b"")
        packing = path.rpartition(".")[2].lower()
        yield from map(bytes, unpack(Stream(pieces, None), packing).pieces())


def _limited(pieces: Iterator[Piece], stream: Stream) -> Iterator[Piece]:
    done_bytes = 0
    for piece in pieces:
        done_bytes += len(piece)
        if done_bytes > max(_SMALL_BYTES, MAX_RATIO * stream.position):
            raise FormatError(f"it unpacks to more than {MAX_RATIO} times its length")
        yield piece


def _new_gzip() -> Any:
    return zlib.decompressobj(_GZIP_BITS)


def _new_zstd() -> Any:
    return zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).decompressobj()


_ZSTD = "zstd", _new_zstd, zstandard.ZstdError
PACKINGS: dict[str, tuple[str, Callable[[], Any], type[Exception]]] = {
    "gz": ("gzip", _new_gzip, zlib.error),
    "zst": _ZSTD,
    "zstd": _ZSTD,
}
"""How names end → what unpacks such files."""


def _unpack(
    stream: Stream, name: str, new: Callable[[], Any], failure: type[Exception]
) -> Iterator[Piece]:
    """Yield the content of all members of a gzip file, or frames of a zstd file."""
    if stream.at_end():
        return
    unpacker = new()
    try:
        for step in _steps(stream):
            rest = step
            while rest:
                if unpacker.eof:
                    if name == "gzip" and not rest.strip(b"\0"):
                        break  # padding
                    unpacker = new()
                made = unpacker.decompress(rest)
                for at in range(0, len(made), _PIECE_BYTES):
                    yield made[at : at + _PIECE_BYTES]
                rest = unpacker.unused_data
    except failure as error:
        raise FormatError(f"it is not {name}: {error}") from error
    if not unpacker.eof:
        raise FormatError("it ends too early")


def _steps(stream: Stream) -> Iterator[bytes]:
    for piece in stream.pieces():
        for at in range(0, len(piece), _STEP_BYTES):
            yield bytes(piece[at : at + _STEP_BYTES])

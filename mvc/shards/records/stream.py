"""A shard's bytes as what understands its format reads them: in order, once, unpacked where they are compressed.

A small file can unpack to almost any length, so there is a limit: no data set that is worth training
on shrinks to a two-hundredth.
"""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import zstandard

from mvc.errors import FormatError

if TYPE_CHECKING:
    Piece = bytes | bytearray

MAX_READ_BYTES = 64 << 20
"""No header that is looked at is longer."""
MAX_RATIO = 200
_SMALL_BYTES = 64 << 20  # may always be unpacked
_PIECE_BYTES = 1 << 20
_STEP_BYTES = 1 << 12
"""What is unpacked at once: of zstd it holds 128 MiB at most, and what is left of it is soon copied."""
_GZIP_BITS = 16 + zlib.MAX_WBITS
_MAX_WINDOW_BYTES = 1 << 27  # what zstd itself takes unless told otherwise


class ShardBytes:
    """Bytes in order. ``size_bytes`` is their number where it is known, as it is of files.

    Args:
        pieces: the bytes; each piece is valid until the next one is asked for.
        size_bytes: how many there are, or None.
        read_at: reads (offset, size) of what has passed or is to come, or None if nothing can.
    """

    def __init__(
        self,
        pieces: Iterator[Piece],
        size_bytes: int | None,
        read_at: Callable[[int, int], bytes] | None = None,
    ) -> None:
        self._pieces = pieces
        self._piece: Piece = b""
        self._at = 0
        self._passed = 0
        self.size_bytes = size_bytes
        self._read_at = read_at

    @property
    def position(self) -> int:
        """How many bytes were taken."""
        return self._passed + self._at

    def pieces(self) -> Iterator[Piece]:
        """Yield all that is left, as it comes."""
        if self._at < len(self._piece):
            rest = self._piece[self._at :] if self._at else self._piece
            self._at = len(self._piece)
            yield rest
        while self._next():
            self._at = len(self._piece)
            yield self._piece

    def read(self, size_bytes: int) -> bytes:
        """Return the next bytes; FormatError if there are fewer, or it is more than any header has."""
        if not 0 <= size_bytes <= MAX_READ_BYTES:
            raise FormatError(f"it has a header of {size_bytes:,} bytes")
        parts: list[Piece] = []
        while size_bytes:
            if self._at == len(self._piece) and not self._next():
                raise FormatError("it ends too early")
            part = self._piece[self._at : self._at + size_bytes]
            parts.append(part)
            self._at += len(part)
            size_bytes -= len(part)
        return b"".join(parts)

    def skip(self, size_bytes: int) -> None:
        """Pass over the next bytes; FormatError if there are fewer."""
        if size_bytes < 0:
            raise FormatError("it has a part of negative length")
        while size_bytes:
            if self._at == len(self._piece) and not self._next():
                raise FormatError("it ends too early")
            step = min(size_bytes, len(self._piece) - self._at)
            self._at += step
            size_bytes -= step

    def at_end(self) -> bool:
        """Return whether nothing is left."""
        return self._at == len(self._piece) and not self._next()

    def drain(self) -> None:
        """Pass over all that is left."""
        for _ in self.pieces():
            pass

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        """Return a range, wherever it is.

        Raises:
            FormatError: it is not all there, is too long, or these bytes come in order only.
        """
        if self._read_at is None or self.size_bytes is None:
            raise FormatError("it is compressed as a whole")
        if not 0 <= offset <= offset + size_bytes <= self.size_bytes or size_bytes > MAX_READ_BYTES:
            raise FormatError(f"it has no {size_bytes:,} bytes at {offset:,}")
        return self._read_at(offset, size_bytes)

    def _next(self) -> bool:
        """Go to the next piece that is not empty; return whether there is one."""
        self._passed += len(self._piece)
        self._at, self._piece = 0, b""
        for piece in self._pieces:
            if piece:
                self._piece = piece
                return True
        return False


class FileStream(ShardBytes):
    """An open file, of which only what is asked for is read: to skip costs nothing."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(iter(()), os.fstat(descriptor).st_size)
        self._file = descriptor

    def read(self, size_bytes: int) -> bytes:
        """Return the next bytes; FormatError as for any stream."""
        start = self._at
        if size_bytes > MAX_READ_BYTES:
            raise FormatError(f"it has a header of {size_bytes:,} bytes")
        self.skip(size_bytes)
        data = os.pread(self._file, size_bytes, start)
        if len(data) != size_bytes:
            raise FormatError("it ends too early")
        return data

    def skip(self, size_bytes: int) -> None:
        """Pass over the next bytes; FormatError if there are fewer."""
        if size_bytes < 0:
            raise FormatError("it has a part of negative length")
        if self._at + size_bytes > (self.size_bytes or 0):
            raise FormatError("it ends too early")
        self._at += size_bytes

    def at_end(self) -> bool:
        """Return whether nothing is left."""
        return self._at == self.size_bytes


def unpack(stream: ShardBytes, packing: str) -> ShardBytes:
    """Return what a compressed stream holds; ``packing`` is one of ``PACKINGS``."""
    return ShardBytes(_limited(_unpack(stream, *PACKINGS[packing]), stream), None)


def unpack_file(path: str) -> Iterator[bytes]:
    """Yield the content of a compressed file, piece by piece; its name says how it is compressed.

    Raises:
        FormatError: it is not compressed that way, is cut off, or unpacks to too much.
    """
    with open(path, "rb", buffering=0) as file:
        pieces = iter(functools.partial(file.read, _PIECE_BYTES), b"")
        packing = path.rpartition(".")[2].lower()
        yield from map(bytes, unpack(ShardBytes(pieces, None), packing).pieces())


def _limited(pieces: Iterator[Piece], stream: ShardBytes) -> Iterator[Piece]:
    done_bytes = 0
    for piece in pieces:
        done_bytes += len(piece)
        if done_bytes > max(_SMALL_BYTES, MAX_RATIO * stream.position):
            raise FormatError(f"it unpacks to more than {MAX_RATIO} times its length")
        yield piece


_ZSTD = (
    "zstd",
    lambda: zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).decompressobj(),
    zstandard.ZstdError,
)
PACKINGS: dict[str, tuple[str, Callable[[], Any], type[Exception]]] = {
    "gz": ("gzip", lambda: zlib.decompressobj(_GZIP_BITS), zlib.error),
    "zst": _ZSTD,
    "zstd": _ZSTD,
}
"""How names end → what unpacks such files."""


def _unpack(
    stream: ShardBytes, name: str, new: Callable[[], Any], failure: type[Exception]
) -> Iterator[Piece]:
    """Yield the content of all members of a gzip file, or frames of a zstd file."""
    if stream.at_end():
        return
    unpacker = new()
    try:
        steps = (
            bytes(piece[at : at + _STEP_BYTES])
            for piece in stream.pieces()
            for at in range(0, len(piece), _STEP_BYTES)
        )
        for step in steps:
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

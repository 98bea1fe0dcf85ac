"""A shard's bytes as what understands its format reads them: in order, once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mvc.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Piece = bytes | bytearray

MAX_READ_BYTES = 64 << 20
"""No header that is looked at is longer."""


class Stream:
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
        """Return so many bytes.

        Raises:
            FormatError: there are fewer, or it is more than any header has.
        """
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
        """Pass over so many bytes.

        Raises:
            FormatError: there are fewer.
        """
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


class FileStream(Stream):
    """An open file, of which only what is asked for is read: to skip costs nothing."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(iter(()), os.fstat(descriptor).st_size)
        self._file = descriptor

    def read(self, size_bytes: int) -> bytes:
        """Return so many bytes; FormatError as for any stream."""
        start = self._at
        if size_bytes > MAX_READ_BYTES:
            raise FormatError(f"it has a header of {size_bytes:,} bytes")
        self.skip(size_bytes)
        data = os.pread(self._file, size_bytes, start)
        if len(data) != size_bytes:
            raise FormatError("it ends too early")
        return data

    def skip(self, size_bytes: int) -> None:
        """Pass over so many bytes; FormatError if there are fewer."""
        if size_bytes < 0:
            raise FormatError("it has a part of negative length")
        if self._at + size_bytes > (self.size_bytes or 0):
            raise FormatError("it ends too early")
        self._at += size_bytes

    def at_end(self) -> bool:
        """Return whether nothing is left."""
        return self._at == self.size_bytes

"""Bytes that can be read at any offset: a file, memory, or several sources end to end.

Everything that is stored is read through a ``ByteSource``. Files and live arrays are read piece by
piece, so that no file or tensor is ever held in memory twice.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from mvc import fs
from mvc.errors import ConflictError, FormatError, UnsupportedError, translate_os_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import Self


class ByteSource(Protocol):
    """A run of bytes that many threads may read at once."""

    __slots__ = ()

    @property
    def size_bytes(self) -> int:
        """Length when the source was opened."""
        ...

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer, a memoryview of bytes, from ``offset`` on.

        A file that ended early or changed since it was opened is a ConflictError.
        """
        ...

    def view(self, offset: int, size_bytes: int) -> memoryview | None:  # noqa: ARG002
        """Return that range without a copy, or None if it has to be read.

        The bytes must not change while the view is in use.
        """
        return None


class FileSource(ByteSource):
    """An open file. Make one with ``FileSource.open``."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.stat = fs.stat_descriptor(descriptor)  # as the file was when it was opened

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Self]:
        """Open a regular file for the length of a ``with`` block; a link is never followed."""
        descriptor = _open_without_following(path)
        try:
            source = cls(path, descriptor)
            if not source.stat.is_regular:
                raise UnsupportedError(f"{path} is not a regular file")
            yield source
        finally:
            os.close(descriptor)

    @property
    def size_bytes(self) -> int:
        """Length when the file was opened."""
        return self.stat.size_bytes

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from ``offset`` on (releases the GIL)."""
        with translate_os_errors(f"read {self.path}"):
            count = fs.read_at(self.descriptor, buffer, offset)
        if count < len(buffer):
            raise ConflictError(
                f"{self.path} became shorter while it was read "
                f"({offset + count:,} of {self.size_bytes:,} bytes)",
                hint="wait until nothing writes to it and try again",
            )


def _open_without_following(path: Path) -> int:
    # O_NONBLOCK: opening a pipe without a writer must not wait for one.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with translate_os_errors(f"open {path}"):
        try:
            return os.open(path, flags)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise UnsupportedError(f"{path} is a symbolic link") from None
            raise


class MemorySource(ByteSource):
    """Bytes in memory."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = memoryview(data).cast("B")

    @property
    def size_bytes(self) -> int:
        """Their number."""
        return self._data.nbytes

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from ``offset`` on."""
        end = offset + len(buffer)
        if end > self.size_bytes:
            raise ConflictError(
                f"bytes {offset}..{end} were asked of a source of {self.size_bytes}"
            )
        buffer[:] = self._data[offset:end]

    def view(self, offset: int, size_bytes: int) -> memoryview:
        """Return that range without a copy."""
        return self._data[offset : offset + size_bytes]


class SlicedSource(ByteSource):
    """A part of another source."""

    __slots__ = ("_size_bytes", "_source", "_start")

    def __init__(self, source: ByteSource, start: int, size_bytes: int) -> None:
        self._source, self._start, self._size_bytes = source, start, size_bytes

    @property
    def size_bytes(self) -> int:
        """Length of the part."""
        return self._size_bytes

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from ``offset`` of the part on."""
        self._source.read_into(self._start + offset, buffer)

    def view(self, offset: int, size_bytes: int) -> memoryview | None:
        """Return that range without a copy, or None if it has to be read."""
        return self._source.view(self._start + offset, size_bytes)


class JoinedSource(ByteSource):
    """Several sources, none of them empty, end to end."""

    __slots__ = ("parts", "starts")

    def __init__(self, parts: Sequence[ByteSource], starts: Sequence[int]) -> None:
        self.parts = parts
        self.starts = starts  # of each part, and the end of the last

    @property
    def size_bytes(self) -> int:
        """Length of all together."""
        return self.starts[-1]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from ``offset`` on."""
        for index, inside, piece in split_buffer(self.starts, offset, buffer):
            self.parts[index].read_into(inside, piece)

    def view(self, offset: int, size_bytes: int) -> memoryview | None:
        """Return that range without a copy, or None if it is in several parts."""
        if not size_bytes:
            return memoryview(b"")
        index = _find_part(self.starts, offset)
        if offset + size_bytes > self.starts[index + 1]:
            return None
        return self.parts[index].view(offset - self.starts[index], size_bytes)


def split_buffer(
    starts: Sequence[int], offset: int, buffer: memoryview
) -> Iterator[tuple[int, int, memoryview]]:
    """Cut a buffer, whose first byte is the run's at ``offset``, where the parts of the run meet.

    ``starts`` also says where the last part ends. Yields the number of the part, the offset in it,
    and the piece of the buffer that belongs there.
    """
    if not buffer:
        return
    index = _find_part(starts, offset)
    _find_part(starts, offset + len(buffer) - 1)
    done = 0
    while done < len(buffer):
        inside = offset + done - starts[index]
        count = min(starts[index + 1] - starts[index] - inside, len(buffer) - done)
        yield index, inside, buffer[done : done + count]
        done += count
        index += 1


def _find_part(starts: Sequence[int], offset: int) -> int:
    if not 0 <= offset < starts[-1]:
        raise ValueError(f"offset {offset} is outside {starts[-1]} bytes")
    return bisect_right(starts, offset) - 1


def read_bytes(source: ByteSource, offset: int, size_bytes: int) -> bytes:
    """Return a small run of bytes, never more than the source holds."""
    if offset < 0 or size_bytes < 0 or offset + size_bytes > source.size_bytes:
        raise FormatError(
            f"file of {source.size_bytes:,} bytes ends before byte {offset + size_bytes:,}"
        )
    buffer = bytearray(size_bytes)
    source.read_into(offset, memoryview(buffer))
    return bytes(buffer)


def read_beside(source: ByteSource, name: str, limit_bytes: int) -> bytes | None:
    """Return the bytes of another file in the folder of an open one.

    None if there is none, if it is a link or over the limit, and for sources that are not files.
    """
    if not isinstance(source, FileSource):
        return None
    try:
        with FileSource.open(source.path.with_name(name)) as file:
            small = file.size_bytes <= limit_bytes
            return read_bytes(file, 0, file.size_bytes) if small else None
    except (FileNotFoundError, UnsupportedError):
        return None

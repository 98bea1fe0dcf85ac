"""Random access to the bytes of a user's file, whether it lies on disk or in memory."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from mvc import fs
from mvc.errors import ConflictError, FormatError, UnsupportedError, translate_os_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Self


class Source(Protocol):
    """Bytes that can be read at any offset, by many threads at once.

    Attributes:
        size_bytes: length at the time of opening.
    """

    @property
    def size_bytes(self) -> int:
        """Length at the time of opening."""
        ...

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from ``offset`` on.

        Raises:
            ConflictError: the bytes end before the buffer is full.
            StorageError: the machine failed.
        """
        ...


class FileSource:
    """An open file. Make one with ``FileSource.open``.

    Attributes:
        path: where it was opened; for messages.
        descriptor: the open descriptor, valid inside the ``with`` block.
        stat: taken when the file was opened.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.stat = fs.stat_descriptor(descriptor)

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Self]:
        """Open a regular file for the length of a ``with`` block; a link is never followed.

        Raises:
            FileNotFoundError: nothing is there.
            UnsupportedError: it is a link, a folder, a pipe or a device.
            StorageError: the machine refused.
        """
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
        """Length at the time of opening."""
        return self.stat.size_bytes

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from ``offset`` on (releases the GIL).

        Raises:
            ConflictError: the file became shorter since it was opened.
            StorageError: the machine failed.
        """
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


class MemorySource:
    """Bytes in memory."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._view = memoryview(data).cast("B")
        self.size_bytes = len(self._view)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from ``offset`` on.

        Raises:
            ConflictError: the bytes end before the buffer is full.
        """
        if offset + len(buffer) > self.size_bytes:
            raise ConflictError(
                f"bytes {offset}..{offset + len(buffer)} were asked of {self.size_bytes}"
            )
        buffer[:] = self._view[offset : offset + len(buffer)]


def read_bytes(source: Source, offset: int, size_bytes: int) -> bytes:
    """Return a small run of bytes, never more than the source holds.

    Raises:
        FormatError: the run lies outside the source.
        ConflictError: the file became shorter since it was opened.
    """
    if offset < 0 or size_bytes < 0 or offset + size_bytes > source.size_bytes:
        raise FormatError(
            f"file of {source.size_bytes:,} bytes ends before byte {offset + size_bytes:,}"
        )
    buffer = bytearray(size_bytes)
    source.read_into(offset, memoryview(buffer))
    return bytes(buffer)

"""The lines of a feed, while another process appends to it and replaces it.

Reading is bounded whatever is there: never more than ``limit_bytes`` at once, from the end. A last
line without its line feed is still being written: it waits for the next look.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from mvc.errors import StorageError, translate_os_errors
from mvc.fs import read_at
from mvc.runs.feed import FEED_SUFFIX, OLDER_SUFFIX
from mvc.runs.records import MAX_LINE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_FileId = tuple[int, int]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[int, _FileId, int] | None]:
    """Yield descriptor, identity and length of a feed, or None if there is none."""
    descriptor = -1
    try:
        with translate_os_errors(f"read {path}"):
            descriptor = os.open(path, _FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise StorageError(f"{path} is not a file", hint="remove it")
        yield descriptor, (found.st_dev, found.st_ino), found.st_size
    finally:
        os.close(descriptor)


class FeedTail:
    """Reads what is new in a feed since the last call; at first its last ``limit_bytes``."""

    def __init__(self, path: Path, *, limit_bytes: int) -> None:
        self._path = path
        self._older = path.with_name(path.name.removesuffix(FEED_SUFFIX) + OLDER_SUFFIX)
        self._limit = limit_bytes
        self._file: _FileId | None = None
        self._offset = 0
        self._in_line = False  # the offset is inside a line whose beginning was skipped

    def read_lines(self) -> list[bytes]:
        """Return the new lines, without line feeds.

        Raises:
            StorageError: the machine failed.
        """
        with _opened(self._path) as found:
            if found is None:
                return []
            descriptor, file, size = found
            before: list[bytes] = []
            if file != self._file:
                before = self._read_older(max(self._limit - size, 0))
                self._begin(file, 0)
            elif size < self._offset:
                self._begin(file, 0)  # it was emptied
            return before + self._read(descriptor, size, self._limit)

    def _begin(self, file: _FileId | None, offset: int) -> None:
        self._file, self._offset, self._in_line = file, offset, False

    def _read_older(self, room: int) -> list[bytes]:
        """Return the rest of the file that was the feed until now; at first its end."""
        with _opened(self._older) as found:
            if found is None:
                return []
            descriptor, file, size = found
            if self._file is None:
                self._begin(file, 0)
            if file != self._file or size < self._offset:
                return []
            return self._read(descriptor, size, room)

    def _read(self, descriptor: int, size: int, room: int) -> list[bytes]:
        if size - self._offset > room:
            self._offset, self._in_line = size - room, True
        buffer = bytearray(size - self._offset)
        with translate_os_errors(f"read {self._path}"):
            count = read_at(descriptor, memoryview(buffer), self._offset)
        *lines, rest = bytes(buffer[:count]).split(b"\n")
        if lines and self._in_line:
            del lines[0]
            self._in_line = False
        self._offset += count - len(rest)
        if len(rest) > MAX_LINE_BYTES:
            self._offset, self._in_line = self._offset + len(rest), True
        return lines

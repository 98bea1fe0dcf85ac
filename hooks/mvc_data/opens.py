"""Which files are opened, written or put in place, by whatever process of this machine: the kernel's inotify says so.

Hooks into Python see neither readers in C++ (Arrow, decord, LMDB) nor workers that were spawned. An
inotify watch on a folder reports every open of a file in it (and the end of writing), of any process, at the price of one
small event; the queue is in order, so an open that has returned is in it. What was opened before the
watch began and is still open, or mapped, is in ``/proc``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_IN_CLOSE_WRITE, _IN_OPEN = 0x8, 0x20
_IN_MOVED_TO, _IN_CREATE = 0x80, 0x100
"""Of what is put in place, for a link is opened where it leads to, which is not watched."""
_IN_Q_OVERFLOW, _IN_IGNORED, _IN_ISDIR = 0x4000, 0x8000, 0x40000000
_EVENT = struct.Struct("iIII")
_READ_BYTES = 2**16


class OpenWatch:
    """Tells which files of some folders were opened, written or put there since the last time it was asked.

    Attributes:
        descriptor: readable once something was opened.
    """

    def __init__(self, folders: Iterable[str]) -> None:
        """Begin to watch; OSError if the kernel cannot, or has no watches left."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._libc, "inotify_init1"):
            raise OSError(errno.ENOSYS, "this system has no inotify")
        self.descriptor = self._call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        self._folders: dict[int, str] = {}
        try:
            for folder in folders:
                self.add(folder)
        except OSError:
            self.close()
            raise

    def add(self, folder: str) -> None:
        """Watch one more folder, if it is there; OSError if no watches are left."""
        name, mask = os.fsencode(folder), _IN_OPEN | _IN_CLOSE_WRITE | _IN_MOVED_TO | _IN_CREATE
        try:
            mark = self._call("inotify_add_watch", self.descriptor, name, mask)
        except (FileNotFoundError, NotADirectoryError):
            return  # so no shard can be in it
        self._folders[mark] = folder

    def _call(self, name: str, *arguments: object) -> int:
        result = int(getattr(self._libc, name)(*arguments))
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result

    def take(self) -> set[str] | None:
        """Return the paths that were opened since; None: there were too many to tell."""
        found: set[str] = set()
        is_lost = False
        while True:
            try:
                data = os.read(self.descriptor, _READ_BYTES)
            except BlockingIOError:
                return None if is_lost else found
            for mark, mask, name in _parse_events(data):
                is_lost |= bool(mask & _IN_Q_OVERFLOW)
                if mark in self._folders and name and not mask & (_IN_ISDIR | _IN_IGNORED):
                    found.add(os.path.join(self._folders[mark], name))

    def close(self) -> None:
        """Stop watching."""
        os.close(self.descriptor)


def _parse_events(data: bytes) -> Iterator[tuple[int, int, str]]:
    at = 0
    while at < len(data):
        mark, mask, _, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        yield mark, mask, os.fsdecode(data[at : at + length].rstrip(b"\0"))
        at += length


def find_open(process: int) -> set[str]:
    """Return the files that a process and its descendants have open or mapped, as far as that can be read."""
    found: set[str] = set()
    for one in _list_family(process):
        folder = Path(f"/proc/{one}/fd")
        for entry in _list(folder):
            try:
                found.add(os.readlink(folder / entry))
            except OSError:  # it was closed meanwhile
                continue
        try:
            lines = Path(f"/proc/{one}/maps").read_text(errors="surrogateescape").split("\n")
        except OSError:
            continue
        paths = [parts[5] for line in lines if len(parts := line.split(maxsplit=5)) > 5]  # noqa: PLR2004  the sixth is the path
        found.update(path.replace("\\012", "\n") for path in paths)
    return found


def _list_family(process: int) -> set[int]:
    """Return a process and its descendants."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, _list(Path("/proc"))):
        try:
            text = Path(f"/proc/{name}/stat").read_text(errors="replace")
        except OSError:  # it ended meanwhile
            continue
        # The name of the program comes before, in parentheses, and may hold anything.
        parents[int(name)] = int(text.rpartition(")")[2].split()[1])
    family, size = {process}, 0
    while size < len(family):
        size = len(family)
        family |= {one for one, parent in parents.items() if parent in family}
    return family


def _list(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []

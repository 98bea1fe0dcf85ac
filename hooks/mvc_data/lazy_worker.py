"""The process that hashes shards when they are opened; its messages are lines of JSON.

It is a process, so that it takes nothing of the training's interpreter lock. A thread of it hashes at the
lowest priority, so that on busy cores it takes 1.5 % of one; once the training waits for an answer, the
other thread goes on where that one is, at the priority of the training. What it reads the reader reads
too, so the page cache serves one of them. A shard is hashed again only if its file has changed since.

    first line to it   {"shards": [path, ...], "proven": [path, ...], "process": number}
    to it              a line for every question
    from it            {"checked": [[path, sha256], ...], "failed": [[path, reason], ...]}
                       once all that was opened before the question is hashed

Which files are opened, written or put in place, by any process of this machine, the kernel's inotify says. Hooks into Python see neither readers in C++ (Arrow, decord, LMDB) nor workers that were spawned. An
inotify watch on a folder reports every open of a file in it (and the end of writing), of any process, at the price of one
small event; the queue is in order, so an open that has returned is in it. What was opened before the
watch began and is still open, or mapped, is in ``/proc``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import select
import signal
import stat
import struct
import sys
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


Stamp: TypeAlias = "tuple[int, int, int, int]"
_NICEST = 19
_PIECE_BYTES = 2**18
"""What the slow thread may be in the middle of when the other one wants to go on."""
_GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def read_stamp(status: os.stat_result) -> Stamp:
    """Return what changes with every change of a file's content."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _find_stamp(path: str) -> Stamp | None:
    try:
        return read_stamp(os.lstat(path))
    except OSError:
        return None


def _identify(folder: str) -> tuple[int, int] | None:
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class ShardHasher:
    """Hashes what is opened or written of some files, by whatever process; ``process`` is the training.

    Those of ``proven`` need not be hashed until they change.
    """

    def __init__(self, shards: list[str], proven: Iterable[str], process: int) -> None:
        self._shards = shards
        stamps = {path: _find_stamp(path) for path in proven}
        self._known = {path: stamp for path, stamp in stamps.items() if stamp is not None}
        self._pending: dict[str, None] = {}
        self._job: Iterator[None] = iter(())
        self._turn, self._may_go = threading.Lock(), threading.Event()
        self._checked: list[tuple[str, str]] = []
        self._failed: list[tuple[str, str]] = []
        self._paths = self._find_paths()
        self._folders = {folder: _identify(folder) for folder in set(map(os.path.dirname, shards))}
        self.watch: OpenWatch | None = None
        with contextlib.suppress(OSError):  # no watches are left
            self.watch = OpenWatch({os.path.dirname(path) for path in self._paths})
        self._sees_all = self.watch is not None  # otherwise everything counts as opened
        if not self._sees_all:
            self._note(self._paths)
        self._note(find_open(process))

    def _find_paths(self) -> dict[str, list[str]]:
        """Return the real path of each shard, as the kernel names it, with the path that it has here."""
        paths: dict[str, list[str]] = {}
        for path in self._shards:
            paths.setdefault(os.path.realpath(path), []).append(path)
        return paths

    def look(self) -> None:
        """Take in what was opened, so that the other thread hashes it."""
        with self._turn:
            self._take_opened()
        self._may_go.set()

    def _take_opened(self) -> None:
        if self.watch is not None:
            opened = self.watch.take()
            self._note(self._paths if opened is None else opened)

    def _follow_folders(self) -> None:
        """Watch the folders that others have taken the place of; what is in them counts as opened."""
        now = {folder: _identify(folder) for folder in self._folders}
        replaced = {
            folder for folder, known in self._folders.items() if now[folder] not in (known, None)
        }
        if not replaced or self.watch is None:
            return
        self._paths = self._find_paths()
        try:
            for folder in replaced:
                self._folders[folder] = now[folder]
                self.watch.add(os.path.realpath(folder))
        except OSError:  # no watches are left
            self._sees_all = False
        paths = self._paths.items()
        self._note(real for real, (path, *_) in paths if os.path.dirname(path) in replaced)

    def _note(self, opened: Iterable[str]) -> None:
        for real in opened:
            for path in self._paths.get(real, ()):
                stamp = _find_stamp(path)  # of one that is gone, hashing will say why
                if stamp is None or stamp != self._known.get(path):
                    self._pending[path] = None

    def hash_slowly(self) -> None:
        """Hash what was opened at the lowest priority, for ever."""
        os.nice(_NICEST)  # on Linux that is the calling thread's
        while self._may_go.wait():
            with self._turn:
                if not self._hash_piece():
                    self._may_go.clear()

    def answer(self) -> dict[str, object]:
        """Hash all that is waiting; return what was found since the last answer."""
        self._may_go.clear()
        with self._turn:
            self._follow_folders()
            self._take_opened()
            if not self._sees_all:
                self._note(self._paths)
            while self._hash_piece():
                pass
            news: dict[str, object] = {"checked": self._checked, "failed": self._failed}
            self._checked, self._failed = [], []
        return news

    def _hash_piece(self) -> bool:
        """Hash a piece of the shard that was opened first; return False if there is none."""
        for _ in self._job:
            return True
        if not self._pending:
            return False
        path = next(iter(self._pending))
        del self._pending[path]
        self._job = self._hash(path)
        return True

    def _hash(self, path: str) -> Iterator[None]:
        digest, buffer = hashlib.sha256(), memoryview(bytearray(_PIECE_BYTES))
        try:
            with open(path, "rb", buffering=0, opener=_open_plain) as file:
                # Kept before it is hashed: this open, too, is seen.
                self._known[path] = read_stamp(os.fstat(file.fileno()))
                while count := file.readinto(buffer):
                    digest.update(buffer[:count])
                    yield
        except OSError as error:
            self._known.pop(path, None)
            self._failed.append((path, (error.strerror or str(error)).lower()))
            return
        self._checked.append((path, digest.hexdigest()))


def _open_plain(path: str, flags: int) -> int:
    """Open a file, and nothing that took its place: a pipe would be waited for, and a link may lead anywhere."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise OSError(errno.EINVAL, "it is no longer a plain file")
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def serve(source: IO[bytes], target: IO[bytes]) -> None:
    """Work until the training closes its end."""
    begin = json.loads(source.readline())
    worker = ShardHasher(begin["shards"], begin["proven"], begin["process"])
    _write(target, {"is_watching": worker.watch is not None})
    poll = select.poll()
    poll.register(source, select.POLLIN)
    if worker.watch is not None:
        poll.register(worker.watch.descriptor, select.POLLIN)
    threading.Thread(target=worker.hash_slowly, daemon=True).start()
    worker.look()
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if source.fileno() in ready:
            if not source.readline():
                return
            _write(target, worker.answer())
        else:
            worker.look()


def _write(target: IO[bytes], message: object) -> None:
    target.write(json.dumps(message).encode() + b"\n")
    target.flush()


_IN_CLOSE_WRITE, _IN_OPEN = 0x8, 0x20
_IN_MOVED_TO, _IN_CREATE = 0x80, 0x100
"""Of what is put in place, for a link is opened where it leads to, which is not watched."""
_IN_Q_OVERFLOW, _IN_IGNORED, _IN_ISDIR = 0x4000, 0x8000, 0x40000000
_EVENT = struct.Struct("iIII")
_READ_BYTES = 2**16


class OpenWatch:
    """Tells which files of some folders were opened, written or put there since the last time it was asked."""

    def __init__(self, folders: Iterable[str]) -> None:
        """Begin to watch; OSError if the kernel cannot, or has no watches left."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._libc, "inotify_init1"):
            raise OSError(errno.ENOSYS, "this system has no inotify")
        # Readable once something was opened.
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
        opened: set[str] = set()
        is_lost = False
        while True:
            try:
                data = os.read(self.descriptor, _READ_BYTES)
            except BlockingIOError:
                return None if is_lost else opened
            for mark, mask, name in _parse_events(data):
                is_lost |= bool(mask & _IN_Q_OVERFLOW)
                if mark in self._folders and name and not mask & (_IN_ISDIR | _IN_IGNORED):
                    opened.add(os.path.join(self._folders[mark], name))

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
    files: set[str] = set()
    for member in _list_family(process):
        folder = Path(f"/proc/{member}/fd")
        for entry in _list(folder):
            try:
                files.add(os.readlink(folder / entry))
            except OSError:  # it was closed meanwhile
                continue
        try:
            lines = Path(f"/proc/{member}/maps").read_text(errors="surrogateescape").split("\n")
        except OSError:
            continue
        paths = [parts[5] for line in lines if len(parts := line.split(maxsplit=5)) > 5]  # noqa: PLR2004  the sixth is the path
        files.update(path.replace("\\012", "\n") for path in paths)
    return files


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
        family |= {child for child, parent in parents.items() if parent in family}
    return family


def _list(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


if __name__ == "__main__":
    for number in _GROUP_SIGNALS:  # meant for the training, whose end ends this
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        serve(sys.stdin.buffer, sys.stdout.buffer)

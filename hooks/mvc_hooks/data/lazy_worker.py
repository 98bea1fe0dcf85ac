"""The process that hashes shards when they are opened; its messages are lines of JSON.

It is a process, so that it takes nothing of the training's interpreter lock. A thread of it hashes at the
lowest priority, so that on busy cores it takes 1.5 % of one; once the training waits for an answer, the
other thread goes on where that one is, at the priority of the training. What it reads the reader reads
too, so the page cache serves one of them. A shard is hashed again only if its file has changed since.

    first line to it   {"shards": [path, ...], "process": number}
    to it              a line for every question
    from it            {"checked": [[path, sha256], ...], "failed": [[path, reason], ...]}
                       once all that was opened before the question is hashed
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import signal
import sys
import threading
from typing import IO, TYPE_CHECKING, TypeAlias

from mvc_hooks.data.opens import OpenWatch, find_open

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
        return read_stamp(os.stat(path))
    except OSError:
        return None


class Worker:
    """Hashes what is opened of some files, by whatever process; ``process`` is the training."""

    def __init__(self, shards: list[str], process: int) -> None:
        self._known: dict[str, Stamp] = {}
        self._paths: dict[str, list[str]] = {}
        for path in shards:
            self._paths.setdefault(os.path.realpath(path), []).append(path)
        self._pending: dict[str, None] = {}
        self._job: Iterator[None] = iter(())
        self._turn, self._may_go = threading.Lock(), threading.Event()
        self._checked: list[tuple[str, str]] = []
        self._failed: list[tuple[str, str]] = []
        self.watch: OpenWatch | None = None
        try:
            self.watch = OpenWatch({os.path.dirname(path) for path in self._paths})
        except OSError:  # no watches are left: everything counts as opened
            self._note(self._paths)
        self._note(find_open(process))

    def look(self) -> None:
        """Take in what was opened, and have it hashed."""
        with self._turn:
            self._take_opened()
        self._may_go.set()

    def _take_opened(self) -> None:
        if self.watch is not None:
            opened = self.watch.take()
            self._note(self._paths if opened is None else opened)

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
            self._take_opened()
            while self._hash_piece():
                pass
            found: dict[str, object] = {"checked": self._checked, "failed": self._failed}
            self._checked, self._failed = [], []
        return found

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
            with open(path, "rb", buffering=0) as file:
                stamp = read_stamp(os.fstat(file.fileno()))
                while count := file.readinto(buffer):
                    digest.update(buffer[:count])
                    yield
        except OSError as error:
            self._failed.append((path, (error.strerror or str(error)).lower()))
            return
        self._known[path] = stamp
        self._checked.append((path, digest.hexdigest()))


def serve(source: IO[bytes], target: IO[bytes]) -> None:
    """Work until the training closes its end."""
    begin = json.loads(source.readline())
    worker = Worker(begin["shards"], begin["process"])
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


if __name__ == "__main__":
    for number in _GROUP_SIGNALS:  # meant for the training, whose end ends this
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        serve(sys.stdin.buffer, sys.stdout.buffer)

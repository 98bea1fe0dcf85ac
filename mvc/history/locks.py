"""Who may change the repository: one mvc process at a time, and no stock Git at that moment.

Two kinds of lock, because two kinds of program write here.

``.mvc/mvc.lock`` is an advisory lock on an open file. Every change of a ref, HEAD, the index or
the config happens under it, so mvc processes simply wait for each other, and the kernel drops it
when its holder dies, however it dies.

``<file>.lock`` is Git's own protocol: whoever creates it may replace the file. mvc follows it, so
that a stock Git running at the same time is kept out; but such a file survives its maker's death.
Therefore the holder of ``mvc.lock`` writes the names of the files it is about to lock into it
first (the *mark*) and clears them afterwards. Whoever gets ``mvc.lock`` and finds a mark knows
that the former holder died in between, and removes exactly what that one can have left behind.
After a loss of power the mark may be gone, but then every lock file is older than the boot of the
machine. Any other lock file may belong to a living Git: that is a ConflictError.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import ConflictError, translate_os_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

LOCK_NAME = "mvc.lock"
_SUFFIX = ".lock"
_END = b".\n"  # the last line of a whole mark
_MAX_MARK_BYTES = 1 << 20


class RepositoryLock:
    """The lock on a repository; a thread that holds it may take it again."""

    def __init__(self, git_dir: Path, repair: Callable[[Sequence[str]], None]) -> None:
        """Take the folder and what is to be done about files whose last writer died.

        Args:
            git_dir: the repository.
            repair: called under the lock with the names in the mark of a dead holder.
        """
        self._git_dir = git_dir
        self._repair = repair
        self._thread_lock = threading.RLock()
        self._depth = 0
        self._descriptor = -1

    @property
    def is_held(self) -> bool:
        """Whether somebody in this process holds it."""
        return self._depth > 0

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock; waits for other processes and threads."""
        with self._thread_lock, contextlib.ExitStack() as stack:
            if self._depth == 0:
                path = self._git_dir / LOCK_NAME
                self._descriptor = stack.enter_context(fs.exclusive_lock(path))
                self._recover()
            self._depth += 1
            stack.callback(self._leave)
            yield

    def _leave(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._descriptor = -1

    @contextlib.contextmanager
    def writing(self, names: Sequence[str]) -> Iterator[None]:
        """Hold the lock and mark these files as being written.

        Args:
            names: paths inside the repository, ``/``-separated.
        """
        with self.hold():
            before = self._read_mark()
            self._write_mark([*(before or ()), *names])
            try:
                yield
            finally:
                self._write_mark(before or ())

    def _recover(self) -> None:
        names = self._read_mark()
        if names == []:
            return
        if names is None:  # a torn mark: anything may have been going on
            names = list(find_lock_names(self._git_dir))
        for name in names:
            fs.remove_file(_lock_path(self._git_dir / name))
        self._repair(names)
        self._write_mark(())

    def _read_mark(self) -> list[str] | None:
        """Return the names in the mark, or None where it is torn."""
        with translate_os_errors(f"read {self._git_dir / LOCK_NAME}"):
            size_bytes = min(os.fstat(self._descriptor).st_size, _MAX_MARK_BYTES)
            buffer = bytearray(size_bytes)
            count = fs.read_at(self._descriptor, memoryview(buffer), 0)
        if count == 0:
            return []
        *lines, last = bytes(buffer[:count]).splitlines(keepends=True)
        names = [line.rstrip(b"\n").decode("utf-8", "replace") for line in lines]
        if last != _END or not all(map(is_lockable, names)):
            return None
        return names

    def _write_mark(self, names: Sequence[str]) -> None:
        mark = b"".join(name.encode() + b"\n" for name in names) + _END if names else b""
        with translate_os_errors(f"write {self._git_dir / LOCK_NAME}"):
            if not names:
                os.ftruncate(self._descriptor, 0)
                return
            fs.write_at(self._descriptor, memoryview(mark), 0)
            os.ftruncate(self._descriptor, len(mark))


def is_lockable(name: str) -> bool:
    """Tell whether a name in a mark is one that mvc writes: a ref, HEAD, index, config."""
    if name in _TOP_FILES or "\0" in name:
        return "\0" not in name
    parts = name.split("/")
    return parts[0] == "refs" and len(parts) > 1 and all(part.strip(".") for part in parts)


_TOP_FILES = ("HEAD", "packed-refs", "index", "config")


def find_lock_names(git_dir: Path) -> Iterator[str]:
    """Yield the names of all files that have a Git lock file now."""
    for name in _TOP_FILES:
        if fs.find_stat(_lock_path(git_dir / name)) is not None:
            yield name
    for folder, _, files in os.walk(git_dir / "refs"):
        for file in files:
            if file.endswith(_SUFFIX):
                path = os.path.join(os.path.relpath(folder, git_dir), file)
                yield path.removesuffix(_SUFFIX)


@contextlib.contextmanager
def git_lock(path: Path) -> Iterator[fs.DurableFile]:
    """Hold Git's lock on a file; what is written to the yielded file may be published as it.

    The caller holds the repository's lock and has marked the file.

    Raises:
        ConflictError: a stock Git holds the lock.
    """
    with _create(path) as file:
        yield file


def _create(path: Path) -> fs.DurableFile:
    lock = _lock_path(path)
    for _ in range(2):
        try:
            return fs.DurableFile(path.parent, name=lock.name)
        except FileExistsError:
            stat = fs.find_stat(lock)
            if stat is not None and stat.mtime_ns < _boot_ns():
                fs.remove_file(lock)
    raise ConflictError(
        f"{path.name!r} is locked by {lock}",
        hint="a git process may be working here: let it end; if there is none, remove that file",
    )


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + _SUFFIX)


def _boot_ns() -> int:
    """Return when the machine started, 0 where that cannot be known."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)

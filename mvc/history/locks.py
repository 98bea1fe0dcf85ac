"""Who may change the repository, and who may delete from it.

One mvc process at a time changes it, and no stock Git at that moment. Two kinds of lock, because
two kinds of program write here.

``.mvc/mvc.lock`` is an advisory lock on an open file. Every change of a ref, HEAD, the index or
the config happens under it, so mvc processes simply wait for each other, and the kernel drops it
when its holder dies, however it dies.

``<file>.lock`` is Git's own protocol: the process that creates it may replace the file. mvc follows
it, so that a stock Git running at the same time is kept out; but such a file survives its maker's
death. Therefore the holder of ``mvc.lock`` first writes into it the names of the files it is about
to lock and the lengths of the logs it is about to extend (the *mark*), and clears it afterwards. A
process that gets ``mvc.lock`` and finds a mark knows that the former holder died in between, and
takes back exactly what it can have left: its lock files and, if one of them is still there because
the move it stood for never happened, what was appended to the logs. After a loss of power the mark
may be gone, but then every lock file is older than the boot of the machine. Any other lock file may
belong to a living Git: that is a ConflictError.

No process deletes while others write, and none writes while something is deleted. A command that
writes chunks or objects owns them before anything points to them, and one that makes an old commit
reachable again builds on what may be garbage at that moment. Both hold the *sweep lock* shared,
from before their first look until the index or the ref has moved. A process that deletes holds it
exclusively and looks at all roots again once it has it: then garbage is garbage. It is two files in
``.mvc``, locked by the kernel:

    shared       gate shared ──► sweep.lock shared ──► gate given back
    exclusive    gate exclusive ──► sweep.lock exclusive, both kept to the end

The gate is a turnstile: a sweeper who waits for the writers at work closes it, so a stream of new
writers cannot keep it waiting forever. A thread that holds the lock does not pass the gate again,
or it would wait for a sweeper that waits for it. The sweep lock is always taken before ``mvc.lock``.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import ConflictError, UsageError, translate_os_errors

if TYPE_CHECKING:
    from pathlib import Path

LOCK_NAME = "mvc.lock"
IGNORE_NAME = ".gitignore"
SWEEP_LOCK_NAME = "sweep.lock"
SWEEP_GATE_NAME = "sweep.gate"
_SUFFIX = ".lock"
_END = "."  # the last line of a whole mark
_LOG = "log"  # begins a line "log LENGTH NAME"; names have no spaces
_MAX_MARK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Mark:
    """What is being changed: files whose lock is taken, and logs with their lengths before."""

    names: tuple[str, ...] = ()
    logs: tuple[tuple[str, int], ...] = ()

    def encode(self) -> bytes:
        if self == _Mark():
            return b""
        lines = [*self.names, *(f"{_LOG} {size} {name}" for name, size in self.logs), _END]
        return "".join(line + "\n" for line in lines).encode()


class RepositoryLock:
    """The lock on a repository; a thread that holds it may take it again."""

    def __init__(self, git_dir: Path) -> None:
        self._git_dir = git_dir
        self._thread_lock = threading.RLock()
        self._depth = 0
        self._owner = -1
        self._descriptor = -1

    @property
    def is_held(self) -> bool:
        """Whether this thread holds it."""
        return self._owner == threading.get_ident()

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock; waits for other processes and threads."""
        with self._thread_lock, contextlib.ExitStack() as stack:
            if self._depth == 0:
                path = self._git_dir / LOCK_NAME
                self._descriptor = stack.enter_context(fs.exclusive_lock(path))
                self._recover()
            self._depth += 1
            self._owner = threading.get_ident()
            stack.callback(self._leave)
            yield

    def _leave(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = self._descriptor = -1

    @contextlib.contextmanager
    def writing(
        self, names: Sequence[str], logs: Mapping[str, int] | None = None
    ) -> Iterator[None]:
        """Hold the lock and mark these files as being written.

        ``names`` are the files whose Git lock will be taken; ``logs`` maps each ref whose reflog
        will be extended to the length of that log in bytes.
        """
        with self.hold():
            hide_from_git(self._git_dir)
            before = self._read_mark() or _Mark()
            logs = {} if logs is None else logs
            self._write_mark(_Mark((*before.names, *names), (*before.logs, *logs.items())))
            try:
                yield
            finally:
                self._write_mark(before)

    def _recover(self) -> None:
        mark = self._read_mark()
        if mark == _Mark():
            return
        if mark is None:  # torn: anything may have been going on
            mark = _Mark(tuple(find_lock_names(self._git_dir)))
        left = [lock_path(self._git_dir / name) for name in mark.names]
        if any(fs.find_stat(path) is not None for path in left):
            for name, size_bytes in mark.logs:
                fs.truncate_file(self._git_dir / "logs" / name, size_bytes)
        for path in left:
            fs.remove_file(path)
        # It may also have died between the rename and the sync of the folder: what is seen now
        # is built upon, so it must last.
        for folder in sorted({path.parent for path in left}):
            if folder.is_dir():
                fs.fsync_dir(folder)
        self._write_mark(_Mark())

    def _read_mark(self) -> _Mark | None:
        """Return the mark, or None if it is torn."""
        with translate_os_errors(f"read {self._git_dir / LOCK_NAME}"):
            size_bytes = min(os.fstat(self._descriptor).st_size, _MAX_MARK_BYTES)
            buffer = bytearray(size_bytes)
            fs.read_at(self._descriptor, memoryview(buffer), 0)
        return _parse_mark(bytes(buffer).decode("utf-8", "replace"))

    def _write_mark(self, mark: _Mark) -> None:
        data = mark.encode()
        with translate_os_errors(f"write {self._git_dir / LOCK_NAME}"):
            fs.write_at(self._descriptor, memoryview(data), 0)
            os.ftruncate(self._descriptor, len(data))


def hide_from_git(git_dir: Path) -> None:
    """Make a Git repository around this folder ignore it, unless the user wrote other rules."""
    path = git_dir / IGNORE_NAME
    if fs.find_stat(path) is None:
        fs.write_durable(path, [b"*\n"])


def _parse_mark(text: str) -> _Mark | None:
    if not text:
        return _Mark()
    *lines, end, rest = text.split("\n") if text.count("\n") else ("", "")
    if end != _END or rest:
        return None
    names, logs = [], []
    for line in lines:
        name = line
        if line.startswith(f"{_LOG} "):
            _, _, sized = line.partition(" ")
            size, _, name = sized.partition(" ")
            if not (size.isascii() and size.isdigit()):
                return None
            logs.append((name, int(size[:18])))
        else:
            names.append(name)
        if not is_lockable(name):
            return None
    return _Mark(tuple(names), tuple(logs))


def is_lockable(name: str) -> bool:
    """Tell whether a name in a mark is one that mvc writes: a ref, HEAD, index, config."""
    if name in TOP_FILES or "\0" in name:
        return "\0" not in name
    parts = name.split("/")
    return parts[0] == "refs" and len(parts) > 1 and all(part.strip(".") for part in parts)


TOP_FILES = ("HEAD", "packed-refs", "index", "config")
"""What Git locks by name; refs have locks of their own."""


def find_lock_names(git_dir: Path) -> Iterator[str]:
    """Yield the names of all files that have a Git lock file now."""
    for name in TOP_FILES:
        if fs.find_stat(lock_path(git_dir / name)) is not None:
            yield name
    for folder, _, files in os.walk(git_dir / "refs"):
        for file in files:
            if file.endswith(_SUFFIX):
                path = os.path.join(os.path.relpath(folder, git_dir), file)
                yield path.removesuffix(_SUFFIX)


def git_lock(path: Path) -> fs.DurableFile:
    """Take Git's lock on a file, until its ``with`` block ends; what is written may be published.

    The caller holds the repository's lock and has marked the file.
    """
    lock = lock_path(path)
    for _ in range(2):
        try:
            return fs.DurableFile(path.parent, name=lock.name)
        except FileExistsError:
            stat = fs.find_stat(lock)
            if stat is not None and stat.mtime_ns < _boot_ns():
                fs.remove_file(lock)
    raise _is_locked(path)


def check_git_lock(path: Path) -> None:
    """Check that Git's lock on a file is free, for what has to wait if it cannot have it later on."""
    stat = fs.find_stat(lock_path(path))
    if stat is not None and stat.mtime_ns >= _boot_ns():
        raise _is_locked(path)


def _is_locked(path: Path) -> ConflictError:
    return ConflictError(
        f"{path.name!r} is locked by {lock_path(path)}",
        hint="a git process may be working here: let it end; if none is running, remove that file",
    )


def lock_path(path: Path) -> Path:
    """Return Git's lock file of a file."""
    return path.with_name(path.name + _SUFFIX)


def _boot_ns() -> int:
    """Return when the machine started, or 0 if that cannot be known."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class _Held:
    """How a thread holds the lock of one repository."""

    depth: int = 0
    is_alone: bool = False


class _PerThread(threading.local):
    """Lock file → how this thread holds it.

    By file, so that a thread that has opened a repository twice does not wait for itself.
    """

    def __init__(self) -> None:
        self.held: dict[Path, _Held] = {}


_THREAD = _PerThread()


class SweepLock:
    """The lock between those who write and those who delete what nothing refers to."""

    def __init__(self, git_dir: Path, is_locked: Callable[[], bool]) -> None:
        """Take the folder; ``is_locked`` returns whether this thread holds ``mvc.lock``."""
        self._path = git_dir / SWEEP_LOCK_NAME
        self._gate = git_dir / SWEEP_GATE_NAME
        self._is_locked = is_locked

    @property
    def is_held(self) -> bool:
        """Whether this thread holds it, in either way."""
        return self._path in _THREAD.held

    @property
    def is_alone(self) -> bool:
        """Whether this thread holds it exclusively."""
        held = _THREAD.held.get(self._path)
        return held is not None and held.is_alone

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Keep what is being written from being swept; waits for a sweep that is going on.

        A thread that holds the lock, in either way, may take it so again.
        """
        with contextlib.ExitStack() as stack:
            if not self.is_held:
                self._check_order()
                with fs.shared_lock(self._gate):
                    stack.enter_context(fs.shared_lock(self._path))
            stack.enter_context(self._noted(is_alone=False))
            yield

    @contextlib.contextmanager
    def exclusive(self, *, wait: bool = True) -> Iterator[None]:
        """Be the only one: waits for all who write, and lets no new one begin.

        A thread that holds the lock exclusively may take it so again. Unless ``wait``, a lock that
        another process holds is a ConflictError.
        """
        with contextlib.ExitStack() as stack:
            if not self.is_held:
                self._check_order()
                stack.enter_context(fs.exclusive_lock(self._gate, wait=wait))
                stack.enter_context(fs.exclusive_lock(self._path, wait=wait))
            elif not self.is_alone:
                raise UsageError("a thread that writes cannot sweep at the same time")
            stack.enter_context(self._noted(is_alone=True))
            yield

    def _check_order(self) -> None:
        if self._is_locked():
            raise UsageError("the sweep lock is taken before the repository's lock, not under it")

    @contextlib.contextmanager
    def _noted(self, *, is_alone: bool) -> Iterator[None]:
        held = _THREAD.held.setdefault(self._path, _Held(is_alone=is_alone))
        held.depth += 1
        try:
            yield
        finally:
            held.depth -= 1
            if held.depth == 0:
                del _THREAD.held[self._path]

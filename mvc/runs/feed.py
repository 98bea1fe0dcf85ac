"""The writing end of a run's feed: ``.mvc/runs/BRANCH.jsonl``.

It is telemetry and never truth, so it must not slow the training down, and no failure here may
reach the training. Lines are written whole, by one call, to a descriptor that appends, and never
synced. Steps are gathered and thinned: at most a handful every half second, always the newest. A
file that has grown past its limit replaces the older one, and the few events that a reader needs at
any time are repeated at the beginning of the new file. What cannot be written is counted and lost.

A feed also says which process writes it. A process id alone is not enough: ids are used again, and
a killed process that was not waited for keeps its own. Linux also says when a process began, in
clock ticks since the machine started; both together identify one process.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mvc.errors import ConflictError, MvcError, StorageError
from mvc.fs import FileStat, exclusive_lock, find_stat, replace_staged, stat_descriptor
from mvc.history.names import branch_ref
from mvc.runs.records import KINDS, Record, encode_record, feed_name

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from mvc.workspace.context import Context

RUNS_DIR_NAME = "runs"
FEED_SUFFIX = ".jsonl"
MAX_FEED_BYTES = 4 * 2**20
"""A feed that grows longer starts a new file."""

_LOCK_NAME = "rotate.lock"
_INTERVAL_S = 0.5
_STEPS_PER_WRITE = 4
_EVENTS_PER_INTERVAL = 10
_STATE, _BEGAN = 0, 19  # fields after the name in /proc/PID/stat
_GONE = ("Z", "X", "x")

_Pending = tuple[str, float, Record]


def feed_path(git_dir: Path, branch: str) -> Path:
    """Return the file of a branch's feed."""
    return git_dir / RUNS_DIR_NAME / f"{feed_name(branch)}{FEED_SUFFIX}"


def older_path(path: Path) -> Path:
    """Return the file that was a feed before its present one."""
    return path.with_name(f"{path.name}.old")


def open_file(path: Path, flags: int) -> tuple[int, FileStat]:
    """Return descriptor and stat of a feed; anything else that is there is a StorageError."""
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    stat = stat_descriptor(descriptor)
    if not stat.is_regular:
        os.close(descriptor)
        raise StorageError(f"{path} is not a file", hint="remove it")
    return descriptor, stat


def open_feed(context: Context, branch: str) -> RunFeed:
    """Open the feed in which a training run reports its progress, for ``mvc watch`` and others.

    The feed is not part of the history. Writing to it never raises, whatever the machine does.

    Raises:
        UsageError: not a valid branch name.
    """
    branch_ref(branch)  # refuses what is not a valid name
    return RunFeed(feed_path(context.git_dir, branch))


class _Steps:
    """Step records since the last write, thinned: the newest of each of a few equal stretches."""

    def __init__(self) -> None:
        self._kept: list[_Pending] = []
        self._odd: _Pending | None = None
        self._count = 0
        self._stride = 1

    def add(self, record: _Pending) -> None:
        if self._count % self._stride:
            self._kept.pop()
        elif len(self._kept) == _STEPS_PER_WRITE:
            self._kept, self._stride = self._kept[1::2], 2 * self._stride
        self._kept.append(record)
        self._count += 1
        loss = record[2].get("loss")
        if self._odd is None and isinstance(loss, float) and not math.isfinite(loss):
            self._odd = record

    def choose(self) -> list[_Pending]:
        """Return them, and the first whose loss is not finite, in the order of time."""
        chosen = {id(record): record for record in (*self._kept, self._odd) if record}
        return sorted(chosen.values(), key=lambda record: record[1])


class RunFeed:
    """Appends records to a run's feed; may be used by several threads.

    No method raises if the machine fails: see ``dropped`` and ``last_error``.

    Attributes:
        dropped: how many records and fields were not written; thinned steps do not count.
        last_error: why the last of them was not, or None.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = MAX_FEED_BYTES,
        interval_s: float = _INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.dropped = 0
        self.last_error: str | None = None
        self._path = path
        self._max_bytes = max_bytes
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.RLock()  # reentrant: a signal handler may append during an append
        self._steps = _Steps()
        self._written_s = -math.inf
        self._recent = Counter[str]()
        self._recent_s = -math.inf
        self._repeated = {
            name: deque[tuple[float, bytes]]([], kind.repeated) for name, kind in KINDS.items()
        }
        self._descriptor = -1
        self._torn = False
        self._closed = False

    def append(self, kind: str, /, **fields: Any) -> None:
        """Add a record of what happened now.

        ``step`` records are gathered for half a second and thinned; all others are written at once,
        as long as there are few of a kind. A ``start`` also records which process this is. Fields are
        plain values (numbers, texts, lists and dicts of them); others are left out.
        """
        with self._lock:
            now_s = self._clock()
            if self._closed:
                self._drop(1, "the feed is closed")
            elif kind == "step":
                self._steps.add((kind, time.time(), fields))
                if now_s - self._written_s >= self._interval_s:
                    self._write(now_s)
            elif not self._admits(kind, now_s):
                self._drop(1, f"too many of {kind!r}")
            else:
                process = this_process() if kind == "start" else {}
                self._write(now_s, (kind, time.time(), {**process, **fields}))

    def flush(self) -> None:
        """Write the steps gathered so far."""
        with self._lock:
            if not self._closed:
                self._write(self._clock())

    def close(self) -> None:
        """Write what was gathered and close the file; later records are dropped."""
        with self._lock:
            self.flush()
            self._closed = True
            self._close_file()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _admits(self, kind: str, now_s: float) -> bool:
        if now_s - self._recent_s >= self._interval_s:
            self._recent, self._recent_s = Counter(), now_s
        self._recent[kind] += 1
        return self._recent[kind] <= _EVENTS_PER_INTERVAL

    def _drop(self, count: int, why: str) -> None:
        if count:
            self.dropped += count
            self.last_error = why

    def _write(self, now_s: float, *events: _Pending) -> None:
        self._written_s = now_s
        steps, self._steps = self._steps, _Steps()
        records = [*steps.choose(), *events]
        lines = [(record, line) for record in records if (line := self._encode(record))]
        if lines:
            self._append([line for _, line in lines])
        for (kind, time_s, _), line in lines:
            # Only now, or a new file that begins with this event would hold it twice.
            if kind in self._repeated:
                self._repeated[kind].append((time_s, line))

    def _append(self, lines: list[bytes]) -> None:
        try:
            repeated = self._prepare(sum(map(len, lines)))
            data = b"".join([b"\n" if self._torn else b"", *repeated, *lines])
            written = os.write(self._descriptor, data)
        except (OSError, MvcError) as error:
            self._drop(len(lines), getattr(error, "message", None) or str(error))
            self._close_file()
        else:
            self._torn = written < len(data)
            self._drop(min(data[written:].count(b"\n"), len(lines)), "the disk is full")

    def _encode(self, record: _Pending) -> bytes | None:
        line, lost = encode_record(*record)
        self._drop(lost, f"a field of {record[0]!r} is not a plain value")
        self._drop(int(line is None), f"a record of {record[0]!r} is too long")
        return line

    def _prepare(self, size_bytes: int) -> list[bytes]:
        """Open the right file; return the lines that a new one begins with."""
        if self._descriptor >= 0 and not self._is_current():
            self._close_file()  # another process began a new one, or it was removed
        if self._descriptor < 0:
            self._open_file()
        length = os.fstat(self._descriptor).st_size
        if length == 0 or length + size_bytes <= self._max_bytes or not self._rotate():
            return []
        events = sorted(event for kept in self._repeated.values() for event in kept)
        return [line for _, line in events]

    def _is_current(self) -> bool:
        stat = find_stat(self._path)
        return stat is not None and stat.identity == stat_descriptor(self._descriptor).identity

    def _open_file(self) -> None:
        with contextlib.suppress(FileExistsError):
            # Never more than this one folder: a repository that was removed must not come back.
            os.mkdir(self._path.parent)
        self._descriptor, stat = open_file(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        last = os.pread(self._descriptor, 1, max(stat.size_bytes - 1, 0))
        self._torn = last not in (b"", b"\n")

    def _rotate(self) -> bool:
        """Replace the older file and begin a new one; False if another process is doing so."""
        try:
            with exclusive_lock(self._path.with_name(_LOCK_NAME), wait=False):
                is_mine = self._is_current()
                if is_mine:
                    replace_staged(self._path, older_path(self._path))
        except ConflictError:
            return False
        self._close_file()
        self._open_file()
        return is_mine

    def _close_file(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1


def this_process() -> dict[str, object]:
    """Return what ``is_process_alive`` needs to know of this process, as fields of a record."""
    return {"pid": os.getpid(), "host": platform.node(), "began": _read_stat(os.getpid())[1]}


def is_process_alive(pid: int | None, host: str, began: str) -> bool | None:
    """Return whether a process exists; None if that is unknown: it is on another machine.

    ``began`` says when it began, as ``this_process`` writes it; empty if unknown.
    """
    if pid is None or host != platform.node():
        return None
    state, now_began = _read_stat(pid)
    if state:
        return state not in _GONE and began in ("", now_began)
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _read_stat(pid: int) -> tuple[str, str]:
    """Return state and beginning of a process, both empty if the system does not say."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read(4096).rpartition(b")")[2].split()
        return fields[_STATE].decode(), fields[_BEGAN].decode()
    except (OSError, IndexError, ValueError):
        return "", ""

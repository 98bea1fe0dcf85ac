"""The reading end of a feed: its lines, and what their records add up to.

Another process appends to the file meanwhile and replaces it. Reading is bounded whatever is there:
never more than ``limit_bytes`` at once, from the end. A last line without its line feed is still
being written: it waits for the next look. Every list in the sum is bounded too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from mvc.errors import StorageError, translate_os_errors
from mvc.fs import read_at
from mvc.runs.feed import FEED_SUFFIX, OLDER_SUFFIX, is_process_alive
from mvc.runs.records import (
    MAX_LINE_BYTES,
    Record,
    RunAlarm,
    RunCommit,
    RunEvent,
    RunRollback,
    RunView,
    find_amount,
    find_number,
    find_text,
    find_whole,
    parse_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    _Value = TypeVar("_Value", RunAlarm, RunCommit, RunRollback)

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SPEED_STEPS = 64
_SPEED_S = 60.0
_LEAST_SPEED_S = 0.05
_REMEMBERED_LINES = 512
_REMEMBERED_COMMITS = 512

_NEEDED = {
    "step": ["step"],
    "snapshot": ["step"],
    "commit": ["step"],
    "rollback": ["step", "to_step"],
}

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
        """Return the new lines, without line feeds."""
        with _opened(self._path) as found:
            if found is None:
                return []
            descriptor, file, size = found
            before: list[bytes] = []
            if file != self._file:
                before = self._read_older(max(self._limit - size, 0))
            if file != self._file or size < self._offset:  # another file, or it was emptied
                self._begin(file)
            return before + self._read(descriptor, size, self._limit)

    def _begin(self, file: _FileId) -> None:
        self._file, self._offset, self._in_line = file, 0, False

    def _read_older(self, room: int) -> list[bytes]:
        """Return the rest of the file that was the feed until now; at first its end."""
        with _opened(self._older) as found:
            if found is None:
                return []
            descriptor, file, size = found
            if self._file is None:
                self._begin(file)
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


class RunTotals:
    """Adds up records, in the order in which they were written.

    Of the losses and of each sort of events, only the last are kept.
    """

    def __init__(self, *, losses: int, events: int) -> None:
        self._facts: dict[str, Any] = {}
        self._began = ""
        self._losses = deque[tuple[int, float]]([], losses)
        self._paces = deque[tuple[float, int]]([], _SPEED_STEPS)
        self._commits = deque[RunCommit]([], events)
        self._alarms = deque[RunAlarm]([], events)
        self._rollbacks = deque[RunRollback]([], events)
        self._events = deque[RunEvent]([], events)
        self._errors = deque[RunEvent]([], events)
        self._healthy = deque[str]([], _REMEMBERED_COMMITS)
        self._seen: dict[bytes, None] = {}
        self._damaged = 0
        self._adders: dict[str, Callable[[Record, float], None]] = {
            "start": self._add_start,
            "step": self._add_step,
            "snapshot": self._add_snapshot,
            "commit": self._add_commit,
            "healthy": self._add_healthy,
            "alarm": self._add_alarm,
            "rollback": self._add_rollback,
            **dict.fromkeys(("resume", "skip", "action", "error", "stop"), self._add_event),
        }

    def view(self, branch: str) -> RunView:
        """Return the sum, as a run on ``branch``."""
        facts = self._facts
        alive = is_process_alive(facts.get("pid"), facts.get("host", ""), self._began)
        return RunView(
            branch=branch,
            alive=False if facts.get("stopped") is not None else alive,
            steps_per_s=self._speed(),
            losses=tuple(self._losses),
            commits=tuple(self._judged(one) for one in reversed(self._commits)),
            alarms=tuple(reversed(self._alarms)),
            rollbacks=tuple(reversed(self._rollbacks)),
            events=tuple(reversed(self._events)),
            errors=tuple(reversed(self._errors)),
            damaged_lines=self._damaged,
            **facts,
        )

    def take(self, line: bytes) -> None:
        """Add one line; damaged ones are counted, those of an unknown kind skipped."""
        record = parse_record(line)
        if record is None:
            self._damaged += 1
            return
        kind, time_s = record["kind"], float(record["time"])
        add = self._adders.get(kind)
        if add is None or (kind != "step" and not self._is_new(line)):
            return
        if not _is_whole(record):
            self._damaged += 1
            return
        add(record, time_s)
        self._facts["updated_s"] = max(self._facts.get("updated_s", 0.0), time_s)

    def _is_new(self, line: bytes) -> bool:
        """Return False for an event that is repeated, as at the beginning of a new file."""
        if line in self._seen:
            return False
        self._seen[line] = None
        if len(self._seen) > _REMEMBERED_LINES:
            del self._seen[next(iter(self._seen))]
        return True

    def _speed(self) -> float | None:
        if len(self._paces) < 2:  # noqa: PLR2004  a beginning and an end
            return None
        last_s, last = self._paces[-1]
        first_s, first = next(pace for pace in self._paces if last_s - pace[0] <= _SPEED_S)
        if last == first:  # the last two steps are far apart
            first_s, first = self._paces[-2]
        return (last - first) / max(last_s - first_s, _LEAST_SPEED_S)

    def _judged(self, commit: RunCommit) -> RunCommit:
        was_left = any(
            back.to_step < commit.step and commit.time_s <= back.time_s for back in self._rollbacks
        )
        is_healthy = bool(commit.commit) and commit.commit in self._healthy
        return dataclasses.replace(commit, is_healthy=is_healthy, is_abandoned=was_left)

    def _add_start(self, record: Record, time_s: float) -> None:
        host, pid = find_text(record, "host"), find_whole(record, "pid")
        self._facts |= {"started_s": time_s, "pid": pid, "host": host, "stopped": None}
        self._facts |= {name: find_whole(record, name) for name in ("every", "total")}
        self._began = find_text(record, "began")
        self._paces.clear()
        text = f"process {pid} on {host}" if pid is not None else ""
        self._events.append(RunEvent("start", find_whole(record, "step"), time_s, text))

    def _add_step(self, record: Record, time_s: float) -> None:
        step, loss = record["step"], find_number(record, "loss")
        self._facts |= {"step": step, "loss": loss, "stopped": None}
        self._facts |= {name: find_number(record, name) for name in ("grad_norm", "lr")}
        if loss is not None:
            self._losses.append((step, loss))
        # A step that comes again after a rollback, or a clock that was set back, says no speed.
        if self._paces and (step <= self._paces[-1][1] or time_s < self._paces[-1][0]):
            self._paces.clear()
        self._paces.append((time_s, step))

    def _add_snapshot(self, record: Record, _time_s: float) -> None:
        self._facts["stall_s"] = find_amount(record, "stall_s")

    def _add_commit(self, record: Record, time_s: float) -> None:
        made = _read(RunCommit, record, time_s)
        self._commits.append(made)
        self._facts["queue_depth"] = made.queue_depth
        if made.stall_s is not None:
            self._facts["stall_s"] = made.stall_s

    def _add_healthy(self, record: Record, _time_s: float) -> None:
        self._healthy.append(find_text(record, "commit"))

    def _add_alarm(self, record: Record, time_s: float) -> None:
        self._alarms.append(_read(RunAlarm, record, time_s))

    def _add_rollback(self, record: Record, time_s: float) -> None:
        self._rollbacks.append(_read(RunRollback, record, time_s))
        self._paces.clear()

    def _add_event(self, record: Record, time_s: float) -> None:
        kind = record["kind"]
        text = find_text(record, "commit" if kind == "resume" else "text")
        text = text or find_text(record, "reason")
        event = RunEvent(kind, find_whole(record, "step"), time_s, text)
        (self._errors if kind == "error" else self._events).append(event)
        if kind == "stop":
            self._facts["stopped"] = text
        elif kind == "resume":
            self._paces.clear()


def _is_whole(record: Record) -> bool:
    """Return whether a record has what one of its kind must have."""
    kind = record["kind"]
    if kind == "healthy":
        return bool(find_text(record, "commit"))
    return all(find_whole(record, name) is not None for name in _NEEDED.get(kind, ()))


_READERS: dict[str, Callable[[Record, str], object]] = {
    "int": find_whole,
    "int | None": find_whole,
    "float | None": find_amount,
    "str": find_text,
}


def _read(kind: type[_Value], record: Record, time_s: float) -> _Value:
    """Return a value read from the record's fields of the same names."""
    fields = [field for field in dataclasses.fields(kind) if field.type in _READERS]
    values = {field.name: _READERS[str(field.type)](record, field.name) for field in fields}
    return kind(time_s=time_s, **values)  # type: ignore[arg-type]

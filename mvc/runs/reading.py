"""The reading end of a feed: its lines, and what their records add up to.

Another process appends to the file meanwhile and replaces it. Reading is bounded whatever is there:
never more than ``limit_bytes`` at once, from the end. A last line without its line feed is still
being written: it waits for the next look. Every list in the sum is bounded too.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING, Any

from mvc.errors import translate_os_errors
from mvc.fs import FileStat, read_at
from mvc.runs.feed import is_process_alive, older_path, open_file
from mvc.runs.records import KINDS, MAX_LINE_BYTES, Record, RunCommit, RunView, find, parse_record

if TYPE_CHECKING:
    from pathlib import Path


_SPEED_STEPS = 64
_SPEED_S = 60.0
_LEAST_SPEED_S = 0.05
_REMEMBERED_LINES = 512
_REMEMBERED_COMMITS = 512


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[int, FileStat] | None]:
    """Yield descriptor and stat of a feed, or None if there is none."""
    try:
        with translate_os_errors(f"read {path}"):
            descriptor, stat = open_file(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    try:
        yield descriptor, stat
    finally:
        os.close(descriptor)


class FeedTail:
    """Reads what is new in a feed since the last call; at first its last ``limit_bytes``."""

    def __init__(self, path: Path, *, limit_bytes: int) -> None:
        self._path = path
        self._limit = limit_bytes
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self._in_line = False  # the offset is inside a line whose beginning was skipped

    def read_lines(self) -> list[bytes]:
        """Return the new lines, without line feeds."""
        # In this order: a file that becomes the older one meanwhile is read nevertheless.
        with _opened(self._path) as feed, _opened(older_path(self._path)) as older:
            if feed is None:
                return []
            now, lines = feed[1], list[bytes]()
            is_new = now.identity != self._file
            if is_new and older is not None and self._file in (None, older[1].identity):
                # The rest of the file that was the feed until now; at first its end.
                lines = self._read(*older, max(self._limit - now.size_bytes, 0))
            return lines + self._read(*feed, self._limit)

    def _read(self, descriptor: int, now: FileStat, room: int) -> list[bytes]:
        if now.identity != self._file or now.size_bytes < self._offset:  # another, or emptied
            self._file, self._offset, self._in_line = now.identity, 0, False
        if now.size_bytes - self._offset > room:
            self._offset, self._in_line = now.size_bytes - room, True
        buffer = bytearray(now.size_bytes - self._offset)
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
        self._kept = {kind.kept_in: deque[Any]([], events) for kind in KINDS.values()}
        self._losses = deque[tuple[int, float]]([], losses)
        self._scales = deque[tuple[int, float]]([], losses)
        self._paces = deque[tuple[float, int]]([], _SPEED_STEPS)
        self._healthy = deque[str]([], _REMEMBERED_COMMITS)
        self._seen: dict[bytes, None] = {}
        self._began = ""
        self._damaged = 0

    def view(self, branch: str) -> RunView:
        """Return the sum, as a run on ``branch``."""
        facts = self._facts
        alive = is_process_alive(facts.get("pid"), facts.get("host", ""), self._began)
        lists: dict[str, Any] = {
            name: tuple(reversed(kept)) for name, kept in self._kept.items() if name
        }
        lists["commits"] = tuple(map(self._judged, lists["commits"]))
        return RunView(
            branch=branch,
            alive=False if facts.get("stopped") is not None else alive,
            steps_per_s=self._speed(),
            losses=tuple(self._losses),
            scales=tuple(self._scales),
            damaged_lines=self._damaged,
            **lists,
            **facts,
        )

    def take(self, line: bytes) -> None:
        """Add one line; damaged ones are counted, those of an unknown kind skipped."""
        record = parse_record(line)
        if record is None:
            self._damaged += 1
        elif record["kind"] == "step":
            self._add(record)
        elif record["kind"] in KINDS and line not in self._seen:
            self._seen[line] = None  # a new file begins with a few events of the older one
            if len(self._seen) > _REMEMBERED_LINES:
                del self._seen[next(iter(self._seen))]
            self._add(record)

    def _add(self, record: Record) -> None:
        name, time_s, facts = record["kind"], record["time_s"], self._facts
        kind = KINDS[name]
        facts.update([(fact, find(record, fact)) for fact in kind.facts])
        facts["updated_s"] = max(facts.get("updated_s", 0.0), time_s)
        if kind.kept_in:
            record["text"] = _text_of(record)
            # Fields with a default are for the reader to judge.
            stored = [field.name for field in fields(kind.value) if field.default is MISSING]
            self._kept[kind.kept_in].append(
                kind.value(**{key: find(record, key) for key in stored})
            )
        if name == "step":
            facts["stopped"] = None
            self._add_step(record["step"], facts["loss"], time_s)
            if facts["scale"] not in (None, self._scales[-1][1] if self._scales else None):
                self._scales.append((record["step"], facts["scale"]))
        elif name == "start":
            facts |= {"started_s": time_s, "stopped": None}
            self._began = find(record, "began")
        elif name == "stop":
            facts["stopped"] = _text_of(record)
        elif name == "healthy":
            self._healthy.append(find(record, "commit"))
        elif name == "commit" and (stall_s := find(record, "stall_s")) is not None:
            facts["stall_s"] = stall_s
        if name in ("start", "resume", "rollback"):
            self._paces.clear()

    def _add_step(self, step: int, loss: float | None, time_s: float) -> None:
        if loss is not None:
            self._losses.append((step, loss))
        # A step that comes again after a rollback, or a clock that was set back, says no speed.
        if self._paces and (step <= self._paces[-1][1] or time_s < self._paces[-1][0]):
            self._paces.clear()
        self._paces.append((time_s, step))

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
            back.to_step < commit.step and commit.time_s <= back.time_s
            for back in self._kept["rollbacks"]
        )
        is_healthy = bool(commit.commit) and commit.commit in self._healthy
        return replace(commit, is_healthy=is_healthy, is_abandoned=was_left)


def _text_of(record: Record) -> str:
    if record["kind"] == "start":
        pid = find(record, "pid")
        return "" if pid is None else f"process {pid} on {find(record, 'host')}"
    text: str = find(record, "commit" if record["kind"] == "resume" else "text")
    return text or find(record, "reason")

"""What the records of a feed add up to; every list in it is bounded."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from mvc.runs.process import is_process_alive
from mvc.runs.records import (
    Record,
    find_amount,
    find_number,
    find_text,
    find_whole,
    parse_record,
)
from mvc.runs.view import RunAlarm, RunCommit, RunEvent, RunRollback, RunView

if TYPE_CHECKING:
    from collections.abc import Callable

    _Value = TypeVar("_Value", RunAlarm, RunCommit, RunRollback)

_SPEED_STEPS = 64
_SPEED_S = 60.0
_LEAST_SPEED_S = 0.05
_REMEMBERED_LINES = 512
_REMEMBERED_COMMITS = 512


class RunTotals:
    """Adds up records, in the order in which they were written.

    Args:
        losses: how many of the last losses are kept.
        events: how many of the last events of each sort are kept.
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
        self._adders: dict[str, Callable[[Record, float], bool]] = {
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
        add, time_s = self._adders.get(record["kind"]), float(record["time"])
        if add is None or (record["kind"] != "step" and not self._is_new(line)):
            return
        if add(record, time_s):  # it had what a record of its kind must have
            self._facts["updated_s"] = max(self._facts.get("updated_s", 0.0), time_s)
        else:
            self._damaged += 1

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

    def _add_start(self, record: Record, time_s: float) -> bool:
        host, pid = find_text(record, "host"), find_whole(record, "pid")
        self._facts |= {"started_s": time_s, "pid": pid, "host": host, "stopped": None}
        self._facts |= {name: find_whole(record, name) for name in ("every", "total")}
        self._began = find_text(record, "began")
        self._paces.clear()
        text = f"process {pid} on {host}" if pid is not None else ""
        self._events.append(RunEvent("start", find_whole(record, "step"), time_s, text))
        return True

    def _add_step(self, record: Record, time_s: float) -> bool:
        step = find_whole(record, "step")
        if step is None:
            return False
        loss = find_number(record, "loss")
        self._facts |= {"step": step, "loss": loss, "stopped": None}
        self._facts |= {name: find_number(record, name) for name in ("grad_norm", "lr")}
        if loss is not None:
            self._losses.append((step, loss))
        # A step that comes again after a rollback, or a clock that was set back, says no speed.
        if self._paces and (step <= self._paces[-1][1] or time_s < self._paces[-1][0]):
            self._paces.clear()
        self._paces.append((time_s, step))
        return True

    def _add_snapshot(self, record: Record, _time_s: float) -> bool:
        self._facts["stall_s"] = find_amount(record, "stall_s")
        return find_whole(record, "step") is not None

    def _add_commit(self, record: Record, time_s: float) -> bool:
        if find_whole(record, "step") is None:
            return False
        made = _read(RunCommit, record, time_s)
        self._commits.append(made)
        self._facts["queue_depth"] = made.queue_depth
        if made.stall_s is not None:
            self._facts["stall_s"] = made.stall_s
        return True

    def _add_healthy(self, record: Record, _time_s: float) -> bool:
        commit = find_text(record, "commit")
        self._healthy.append(commit)
        return bool(commit)

    def _add_alarm(self, record: Record, time_s: float) -> bool:
        self._alarms.append(_read(RunAlarm, record, time_s))
        return True

    def _add_rollback(self, record: Record, time_s: float) -> bool:
        if find_whole(record, "step") is None or find_whole(record, "to_step") is None:
            return False
        self._rollbacks.append(_read(RunRollback, record, time_s))
        self._paces.clear()
        return True

    def _add_event(self, record: Record, time_s: float) -> bool:
        kind = record["kind"]
        text = find_text(record, "commit" if kind == "resume" else "text")
        event = RunEvent(
            kind, find_whole(record, "step"), time_s, text or find_text(record, "reason")
        )
        (self._errors if kind == "error" else self._events).append(event)
        if kind == "stop":
            self._facts["stopped"] = event.text
        elif kind == "resume":
            self._paces.clear()
        return True


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

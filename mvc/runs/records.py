"""Records of a run's feed ⇄ lines of JSON, and what they tell of the run as values. Pure.

A record is an object with ``kind``, ``time`` (seconds since 1970) and the fields of its kind.
Numbers that JSON lacks are written as the texts ``nan``, ``inf`` and ``-inf``. Readers skip kinds
and fields they do not know, and trust nothing: anyone may have written into a feed.

In the values that ``read_run`` returns, None or an empty text means that the feed does not say. Times
(``time_s`` and the like) are in seconds since 1970, durations in seconds.
"""

from __future__ import annotations

import hashlib
import json
import math
import numbers
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

Record = dict[str, Any]

MAX_LINE_BYTES = 64 * 1024
"""A longer line is not a record."""
MAX_TEXT = 2000
"""How many characters of a text are kept."""

_MAX_ITEMS = 64
_MAX_DEPTH = 3
_MAX_WHOLE = 2**63 - 1
_MAX_TIME_S = 253402300799.0  # the end of the year 9999, the last that datetime knows
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_MAX_NAME_BYTES = 180  # what is added to it fits into the 255 bytes of a file name
_HEAD_BYTES = 96


def encode_record(kind: str, time_s: float, fields: Record) -> tuple[bytes | None, int]:
    """Return the line of a record, or None if it is too long, and how many fields were left out.

    Fields are plain values, and lists and dicts of them; anything else is left out.
    """
    record: Record = {"kind": kind, "time": round(time_s, 3)}
    lost = 0
    for name, value in fields.items():
        try:
            record.setdefault(name, _plain(value, _MAX_DEPTH))
        except (TypeError, ValueError, OverflowError):
            lost += 1
    line = json.dumps(record, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"
    return (line, lost) if len(line) <= MAX_LINE_BYTES else (None, lost)


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if isinstance(value, numbers.Integral):
        whole = int(value)
        return whole if abs(whole) <= _MAX_WHOLE else float(whole)
    if isinstance(value, numbers.Real):  # NumPy's numbers are; a tensor is not, it might wait
        number = float(value)
        return number if math.isfinite(number) else str(number)
    if depth and isinstance(value, dict):
        pairs = list(value.items())[:_MAX_ITEMS]
        return {str(key)[:MAX_TEXT]: _plain(item, depth - 1) for key, item in pairs}
    if depth and isinstance(value, (list, tuple)):
        return [_plain(item, depth - 1) for item in value[:_MAX_ITEMS]]
    raise TypeError(f"{type(value).__name__} is not a plain value")


def parse_record(line: bytes) -> Record | None:
    """Return the record in a line, or None if it is damaged or lacks what its kind needs.

    Its time is there as ``time_s``, too.
    """
    try:
        record = json.loads(line) if len(line) <= MAX_LINE_BYTES else None
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return None
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return None
    time_s = record["time_s"] = _number(record.get("time"))
    if time_s is None or not 0 <= time_s <= _MAX_TIME_S:
        return None
    known = KINDS.get(record["kind"])
    needed = [find(record, name) for name in known.needs] if known else []
    return None if None in needed or "" in needed else record


def find(record: Record, name: str) -> Any:
    """Return a field's value; if it is not what it has to be, None, or an empty text."""
    value = record.get(name)
    if name in _READERS:
        return _READERS[name](value)
    return value[:MAX_TEXT] if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    """Any number, which may be infinite or NaN."""
    if isinstance(value, float):
        return value
    if isinstance(value, str):
        return _NOT_FINITE.get(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _amount(value: object) -> float | None:
    """A finite number that is not negative."""
    number = _number(value)
    return number if number is not None and 0 <= number < math.inf else None


def _whole(value: object) -> int | None:
    """A whole number from 0 to 2**63 - 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _MAX_WHOLE else None


_READERS = {
    **dict.fromkeys(("time_s", "loss", "grad_norm", "lr"), _number),
    **dict.fromkeys(("stall_s", "write_s", "seconds", "scale"), _amount),
    **dict.fromkeys(("step", "to_step", "every", "total", "pid", "queue_depth"), _whole),
    **dict.fromkeys(("written_bytes", "plain_bytes", "skipped_batches", "overflows"), _whole),
}
"""Field → what it has to be, in whatever record it is; all others are texts."""


def feed_name(branch: str) -> str:
    """Return the name of a branch's feed without its ending; two branches never share one.

    Everything but letters, digits and ``_.-`` is escaped as in a URL. A long name is cut, and a hash
    of the whole follows after ``~``, which no other name contains.
    """
    name = quote(branch, safe="").replace("~", "%7E")
    if len(name) <= _MAX_NAME_BYTES and not name.startswith("."):
        return name
    digest = hashlib.sha256(branch.encode()).hexdigest()[:32]
    return f"{name[:_HEAD_BYTES].lstrip('.')}~{digest}"


def find_branch(name: str) -> str | None:
    """Return the branch that ``feed_name`` made this from, or None if only a hash is left."""
    return None if "~" in name else unquote(name)


@dataclass(frozen=True, slots=True)
class RunCommit:
    """A commit that a run made.

    Attributes:
        step: training step.
        time_s: when.
        commit: its id.
        subject: first line of its message.
        stall_s: how long the training stood still for it.
        write_s: how long writing it took.
        written_bytes: what was new in the store.
        plain_bytes: size of the whole state.
        queue_depth: states that were waiting to be written.
        is_healthy: whether the run went on without alarm for long enough since.
        is_abandoned: whether the run was rolled back to before it since.
    """

    step: int
    time_s: float
    commit: str
    subject: str
    stall_s: float | None
    write_s: float | None
    written_bytes: int | None
    plain_bytes: int | None
    queue_depth: int | None
    is_healthy: bool = False
    is_abandoned: bool = False


@dataclass(frozen=True, slots=True)
class RunAlarm:
    """A detector found that the run diverges.

    Attributes:
        step: training step.
        time_s: when.
        cause: kind of the alarm, such as ``spike``.
        reason: the numbers, in words.
    """

    step: int | None
    time_s: float
    cause: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunRollback:
    """The run went back to an earlier commit.

    Attributes:
        step: where it was.
        to_step: where it went on.
        time_s: when.
        to_commit: the commit that it went back to.
        diverged_branch: what keeps the abandoned branch.
        skipped_batches: batches of data that were skipped.
        seconds: how long it took.
        reason: why.
    """

    step: int
    to_step: int
    time_s: float
    to_commit: str
    diverged_branch: str
    skipped_batches: int | None
    seconds: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Anything else that happened.

    Attributes:
        kind: ``start``, ``resume``, ``action``, ``skip``, ``error`` or ``stop``.
        step: training step.
        time_s: when.
        text: what, in words.
    """

    kind: str
    step: int | None
    time_s: float
    text: str


@dataclass(frozen=True, slots=True)
class RunView:
    """A run, as its feed tells it.

    Attributes:
        branch: the branch it commits to.
        alive: whether its process exists; None if that is unknown, as on another machine.
        stopped: why it ended; None while it has not said that it did.
        pid: id of its process.
        host: name of its machine.
        started_s: when the process began.
        updated_s: time of its last record.
        step: last training step in the feed.
        total: step at which it will be done.
        every: steps between commits.
        steps_per_s: speed over the last steps.
        loss: of the last step.
        grad_norm: of the last step.
        lr: learning rate of the last step.
        scale: loss scale of the last step, of a run with a ``GradScaler``.
        overflows: steps so far that overflowed, so that the scaler skipped them.
        losses: (step, loss) of the last steps, oldest first; steps repeat after a rollback.
        scales: (step, loss scale) of the last steps that changed it, in the same order.
        queue_depth: states that wait to be written.
        stall_s: how long the training stood still for the last snapshot or commit.
        commits: the last ones, newest first, as in all that follow.
        alarms: what detectors found.
        rollbacks: where it went back.
        events: other things that happened, without errors.
        errors: what went wrong outside the training itself.
        damaged_lines: lines of the feed that are not records.
    """

    branch: str
    alive: bool | None = None
    stopped: str | None = None
    pid: int | None = None
    host: str = ""
    started_s: float | None = None
    updated_s: float | None = None
    step: int | None = None
    total: int | None = None
    every: int | None = None
    steps_per_s: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    lr: float | None = None
    scale: float | None = None
    overflows: int | None = None
    losses: tuple[tuple[int, float], ...] = ()
    scales: tuple[tuple[int, float], ...] = ()
    queue_depth: int | None = None
    stall_s: float | None = None
    commits: tuple[RunCommit, ...] = ()
    alarms: tuple[RunAlarm, ...] = ()
    rollbacks: tuple[RunRollback, ...] = ()
    events: tuple[RunEvent, ...] = ()
    errors: tuple[RunEvent, ...] = ()
    damaged_lines: int = 0


class Kind(NamedTuple):
    """What the feed and its readers do with records of one kind."""

    needs: tuple[str, ...] = ()  # fields without which a record is damaged
    facts: tuple[str, ...] = ()  # fields that are the run's, until the next record says otherwise
    kept_in: str = ""  # the list of the run that it is added to
    value: type[RunAlarm | RunCommit | RunEvent | RunRollback] = RunEvent  # what it is there
    repeated: int = 0  # how many of the last a new file begins with


KINDS = {
    "start": Kind((), ("pid", "host", "every", "total"), "events", repeated=1),
    "resume": Kind(kept_in="events", repeated=1),
    "step": Kind(("step",), ("step", "loss", "grad_norm", "lr", "scale", "overflows")),
    "snapshot": Kind(("step",), ("stall_s",)),
    "commit": Kind(("step",), ("queue_depth",), "commits", RunCommit, repeated=12),
    "healthy": Kind(("commit",), repeated=12),
    "skip": Kind(kept_in="events"),
    "alarm": Kind((), (), "alarms", RunAlarm, repeated=8),
    "action": Kind(kept_in="events"),
    "rollback": Kind(("step", "to_step"), (), "rollbacks", RunRollback, repeated=8),
    "error": Kind(kept_in="errors", repeated=8),
    "stop": Kind(kept_in="events"),
}

"""Readings, verdicts on them, and the last readings of a run as arrays, newest last.

The arrays that a history hands out are read-only views that later readings never overwrite: new
readings go after them, and into new buffers when the old ones are full or readings were forgotten.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import msgspec
import numpy as np

from mvc import FormatError, UsageError
from mvc_hooks.checks import check_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

DEFAULT_CAPACITY = 4096
NOT_FINITE = "not finite"
SPIKE = "spike"
TREND = "trend"
SCALE = "scale"

_HAS_LOSS, _HAS_GRAD_NORM, _ALARM = 1, 2, 4
_NO_LR, _NO_SCALE = 8, 16  # in states only
_COLUMNS = {
    "steps": "int64", "losses": "float64", "grad_norms": "float64", "lrs": "float64",
    "flags": "uint8", "scales": "float64", "overflows": "int64",
}  # fmt: skip
_OF_SCALER = ("scales", "overflows")
_MAX_READINGS = 1 << 22


@dataclass(frozen=True, slots=True)
class Reading:
    """What one step measured.

    Attributes:
        step: the number of the completed step; the first is 1.
        loss: its loss, or None if it was not measured. NaN and infinity are values.
        grad_norm: its gradient norm, or None.
        lr: the learning rate after it, or None if it is unknown.
        scale: the loss scale of a ``GradScaler`` after it, or None.
    """

    step: int
    loss: float | None = None
    grad_norm: float | None = None
    lr: float | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        check_count("step", self.step, 0)
        for name in ("loss", "grad_norm", "lr", "scale"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, float | int):
                raise UsageError(f"{name} of a reading is a {type(value).__name__}, not a float")
            try:
                object.__setattr__(self, name, float(value))
            except OverflowError:
                text = f"{name} of step {self.step} is too large for a float"
                raise UsageError(text) from None


@dataclass(frozen=True, slots=True)
class Verdict:
    """An alarm.

    Attributes:
        cause: ``not finite``, ``spike``, ``trend``, ``scale``, or the name of the user's detector.
        reason: one line with the numbers.
        onset_step: where it began, as far as can be told; a rollback goes back to before it.
        step: the step whose reading raised the alarm.
        advice: how to have fewer of them, for the log; may be empty.
    """

    cause: str
    reason: str
    onset_step: int
    step: int
    advice: str = ""

    def __post_init__(self) -> None:
        check_count("step of a verdict", self.step, 0)
        check_count("onset_step of a verdict", self.onset_step, 0)
        if self.onset_step > self.step:
            raise UsageError(f"onset_step {self.onset_step} of a verdict is after step {self.step}")
        for name in ("cause", "reason"):
            text = getattr(self, name)
            if not isinstance(text, str) or not text.strip():
                raise UsageError(f"{name} of a verdict is {text!r}, not a text")
            object.__setattr__(self, name, " ".join(text.split()))


class History:
    """A bounded window of the newest readings, and which of them raised an alarm."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self._capacity = check_count("capacity of a history", capacity, 1)
        self._first = self._end = 0
        self._columns = self._allocate()
        self._before: tuple[float, int] = (math.nan, 0)

    def __len__(self) -> int:
        return self._end - self._first

    @property
    def capacity(self) -> int:
        """The most readings that are kept."""
        return self._capacity

    @property
    def steps(self) -> NDArray[np.int64]:
        """Step numbers, rising."""
        return self._view("steps")

    @property
    def losses(self) -> NDArray[np.float64]:
        """Losses; NaN also for a step without one."""
        return self._view("losses")

    @property
    def grad_norms(self) -> NDArray[np.float64]:
        """Gradient norms; NaN also for a step without one."""
        return self._view("grad_norms")

    @property
    def lrs(self) -> NDArray[np.float64]:
        """Learning rates; NaN where unknown."""
        return self._view("lrs")

    @property
    def scales(self) -> NDArray[np.float64]:
        """Loss scales, each the last that was known; NaN before."""
        return self._view("scales")

    @property
    def overflows(self) -> NDArray[np.int64]:
        """Steps of the run so far that overflowed, so that the scaler skipped the optimizer."""
        return self._view("overflows")

    @property
    def alarms(self) -> NDArray[np.bool_]:
        """True for a reading that raised an alarm."""
        flags: NDArray[np.bool_] = (self._view("flags") & _ALARM) != 0
        return flags

    @property
    def latest(self) -> Reading | None:
        """The newest reading, or None."""
        return self[-1] if len(self) else None

    @property
    def last_alarm_step(self) -> int | None:
        """The newest step that raised an alarm, as far back as the window goes, or None."""
        alarmed = np.flatnonzero(self.alarms)
        return int(self.steps[alarmed[-1]]) if alarmed.size else None

    @property
    def onset_step(self) -> int:
        """The first step of the unbroken run of alarms that ends with the newest reading."""
        calm = np.flatnonzero(~self.alarms[:-1])
        return int(self.steps[calm[-1] + 1 if calm.size else 0])

    def __getitem__(self, index: int) -> Reading:
        at = range(self._first, self._end)[index]
        flags = self._columns["flags"][at]
        loss = float(self._columns["losses"][at]) if flags & _HAS_LOSS else None
        norm = float(self._columns["grad_norms"][at]) if flags & _HAS_GRAD_NORM else None
        rest = (float(self._columns[name][at]) for name in ("lrs", "scales"))
        known = (None if math.isnan(number) else number for number in rest)
        return Reading(int(self._columns["steps"][at]), loss, norm, *known)

    def begin(self, scale: float | None) -> None:
        """Take the loss scale before the first reading: a lower one is an overflow."""
        self._before = (math.nan if scale is None else scale, 0)

    def append(self, reading: Reading) -> None:
        """Take the newest reading; its step must be larger than the last one."""
        latest = self.latest
        if latest is not None and reading.step <= latest.step:
            raise UsageError(
                f"a reading of step {reading.step} came after one of step {latest.step}",
                hint="call forget_after() when the run goes back",
            )
        if self._end == len(self._columns["steps"]):
            self._move(keep=self._capacity - 1)
        at = self._end
        has_loss, has_norm = reading.loss is not None, reading.grad_norm is not None
        self._columns["steps"][at] = reading.step
        self._columns["losses"][at] = reading.loss if has_loss else np.nan
        self._columns["grad_norms"][at] = reading.grad_norm if has_norm else np.nan
        self._columns["lrs"][at] = np.nan if reading.lr is None else reading.lr
        self._columns["flags"][at] = has_loss * _HAS_LOSS | has_norm * _HAS_GRAD_NORM
        scale, overflows = self._scale_at(at - 1)
        self._columns["scales"][at] = scale if reading.scale is None else reading.scale
        # At zero the scale cannot fall any more, and nothing but zeros and NaN comes of it.
        fell = reading.scale is not None and (reading.scale < scale or not reading.scale)
        self._columns["overflows"][at] = overflows + fell
        self._end += 1
        self._first = max(self._first, self._end - self._capacity)

    def _scale_at(self, at: int) -> tuple[float, int]:
        """Return scale and count of overflows in a row; before all rows, those of what was forgotten."""
        if at < 0:
            return self._before
        return float(self._columns["scales"][at]), int(self._columns["overflows"][at])

    def mark_alarm(self) -> None:
        """Mark the newest reading as an alarm."""
        if not len(self):
            raise UsageError("a history without readings has nothing to mark")
        self._columns["flags"][self._end - 1] |= _ALARM

    def forget_after(self, step: int) -> None:
        """Drop the readings of later steps, as a rollback to ``step`` does."""
        kept = int(np.searchsorted(self.steps, step, side="right"))
        if kept < len(self):
            self._end = self._first + kept
            self._move(keep=kept)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the readings as plain arrays.

        They are as long as the capacity, so that the layout stays the same from commit to commit.
        A run without a scaler has no columns of it. What was not measured is 0 there, and its flag
        says so: a NaN in a commit is a finding about the run.
        """
        columns: dict[str, Any] = {"count": len(self)}
        flags = self._view("flags") | np.isnan(self.lrs) * np.uint8(_NO_LR)
        flags |= np.isnan(self.scales) * np.uint8(_NO_SCALE)
        absent = _find_absent(flags)
        has_scaler = not math.isnan(self._scale_at(self._end - 1)[0])
        for name, dtype in _COLUMNS.items():
            if name in _OF_SCALER and not has_scaler:
                continue
            columns[name] = np.zeros(self._capacity, dtype)
            column = flags if name == "flags" else self._view(name)
            columns[name][: len(self)] = (
                np.where(absent[name], 0, column) if name in absent else column
            )
        return columns

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore readings, the newest if not all fit; a state that is refused changes nothing."""
        if isinstance(state, dict) and isinstance(losses := state.get("losses"), np.ndarray):
            none = np.full(len(losses), np.nan), np.zeros(len(losses), np.int64)
            state = dict(zip(_OF_SCALER, none, strict=True)) | state  # a run without a scaler
        count = _count_readings(state)
        kept = min(count, self._capacity)
        self._columns = self._allocate()
        self._first, self._end = 0, kept
        for name in _COLUMNS:
            self._columns[name][:kept] = state[name][count - kept : count]
        flags = self._columns["flags"][:kept]
        for name, is_absent in _find_absent(flags).items():
            self._columns[name][:kept][is_absent] = np.nan
        flags &= ~np.uint8(_NO_LR | _NO_SCALE)
        if kept:
            self._before = self._scale_at(0)

    def _allocate(self) -> dict[str, NDArray[Any]]:
        # Twice the capacity: readings are moved to the front once per ``capacity`` steps, not at
        # every one.
        return {name: np.zeros(2 * self._capacity, dtype) for name, dtype in _COLUMNS.items()}

    def _view(self, name: str) -> NDArray[Any]:
        view = self._columns[name][self._first : self._end]
        view.flags.writeable = False
        return view

    def _move(self, *, keep: int) -> None:
        fresh, self._before = self._allocate(), self._scale_at(self._end - keep - 1)
        for name, column in self._columns.items():
            fresh[name][:keep] = column[self._end - keep : self._end]
        self._columns, self._first, self._end = fresh, 0, keep


def _find_absent(flags: NDArray[np.uint8]) -> dict[str, NDArray[np.bool_]]:
    """Return column → where it has no value, by the flags of a state."""
    return {
        "losses": flags & _HAS_LOSS == 0,
        "grad_norms": flags & _HAS_GRAD_NORM == 0,
        "lrs": flags & _NO_LR != 0,
        "scales": flags & _NO_SCALE != 0,
    }


def _count_readings(state: Mapping[str, Any]) -> int:
    """Return the number of readings in a state; it comes from a commit, so nothing is assumed."""
    if not isinstance(state, dict) or state.keys() != {"count", *_COLUMNS}:
        raise FormatError(
            f"the state of a history is not a dict of count and {', '.join(_COLUMNS)}"
        )
    columns, count = {name: state[name] for name in _COLUMNS}, state["count"]
    for name, dtype in _COLUMNS.items():
        column = columns[name]
        if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype != dtype:
            raise FormatError(f"{name} of a history is not a one-dimensional array of {dtype}")
    room = len(columns["steps"])
    if any(len(column) != room for column in columns.values()) or room > _MAX_READINGS:
        raise FormatError(f"the columns of a history are not of one length up to {_MAX_READINGS:,}")
    if type(count) is not int or not 0 <= count <= room:
        raise FormatError(f"a history holds {count!r} of {room:,} readings")
    steps: NDArray[np.int64] = columns["steps"][:count]
    if count and (steps[0] < 0 or steps[-1] >= 1 << 62 or (steps[1:] <= steps[:-1]).any()):
        raise FormatError("the steps of a history do not rise")
    if (columns["flags"][:count] >= 2 * _NO_SCALE).any():
        raise FormatError("a history has unknown flags")
    return count


Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
"""A whole number of a loaded state."""
_State = TypeVar("_State")


def parse_state(what: str, state: object, form: type[_State]) -> _State:
    """Return a state that comes from a commit; FormatError if it has another form."""
    try:
        return msgspec.convert(state, form)
    except msgspec.ValidationError as error:
        raise FormatError(f"the state of {what} has another form: {error}") from None

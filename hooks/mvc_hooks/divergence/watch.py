"""The watch: readings go in, alarms come out. Its detectors may be functions of the user.

Detectors are pure functions of the history that decide whether its newest reading is an alarm. They
keep no state. What an alarm changes (its reading leaves the statistics, a cooldown begins) is kept
by the history and ``Watch``, so it is committed, restored and rolled back with the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeAlias, runtime_checkable

import msgspec
import numpy as np

from mvc import UsageError
from mvc_hooks.checks import check_count
from mvc_hooks.divergence.history import Count, History, Reading, Verdict, parse_state
from mvc_hooks.divergence.scale import ScaleCollapse
from mvc_hooks.divergence.spike import NotFinite, Spike
from mvc_hooks.divergence.trend import Trend

_MAX_NAMES = 1024
Judges: TypeAlias = "Callable[[History], object] | Iterable[Callable[[History], object]]"
"""One detector or function of the user, or several."""


class _WatchState(msgspec.Struct, forbid_unknown_fields=True):
    history: Any
    reported: Annotated[dict[str, Count], msgspec.Meta(max_length=_MAX_NAMES)]


@runtime_checkable
class Detector(Protocol):
    """What ``Watch`` calls after every reading."""

    @property
    def name(self) -> str:
        """What its alarms are called."""

    @property
    def cooldown(self) -> int:
        """Steps after a reported alarm in which it reports no other."""

    def __call__(self, history: History) -> Verdict | None:
        """Judge the newest reading."""


@dataclass(frozen=True, slots=True)
class _UserDetector:
    """A user's function; its answer is turned into a verdict."""

    judge: Callable[[History], object]
    name: str
    cooldown: int

    def __call__(self, history: History) -> Verdict | None:
        try:
            answer = self.judge(history)
        except Exception as error:
            raise UsageError(
                f"detector {self.name!r} failed: {type(error).__name__}: {error}"
            ) from error
        if answer is None or isinstance(answer, Verdict):
            return answer
        latest = history.latest
        if isinstance(answer, bool | np.bool_):
            answer = f"{self.name} raised an alarm" if answer else None
        elif not isinstance(answer, str) or not answer.strip():
            raise UsageError(
                f"detector {self.name!r} returned {answer!r}",
                hint="return a Verdict, a reason, True, or None if all is well",
            )
        if answer is None or latest is None:
            return None
        return Verdict(self.name, answer, history.onset_step, latest.step)


def as_detector(
    judge: Callable[[History], object], *, name: str | None = None, cooldown: int | None = None
) -> Detector:
    """Return a user's function as a detector.

    Args:
        judge: takes the history and returns a ``Verdict``, the reason for an alarm as a text, True
            for an alarm, False or None for none. A detector is returned as it is, unless it gets
            another name or cooldown.
        name: what its alarms are called; defaults to the function's name.
        cooldown: steps after a reported alarm in which it reports no other; defaults to 0.

    Raises:
        UsageError: not callable, or a class instead of an instance. When called, the detector
            raises UsageError if the function raises anything, or returns anything else.
    """
    if isinstance(judge, type):
        raise UsageError(f"a detector is {judge.__name__}(), not the class {judge.__name__}")
    if not callable(judge):
        raise UsageError(f"a detector is a function of the history, not a {type(judge).__name__}")
    if isinstance(judge, Detector):
        if name is None and cooldown is None:
            return judge
        name, cooldown = name or judge.name, judge.cooldown if cooldown is None else cooldown
    if cooldown is not None:
        check_count("cooldown of a detector", cooldown, 0)
    own = getattr(judge, "__name__", None) or type(judge).__name__
    return _UserDetector(judge, name or str(own), cooldown or 0)


def default_detectors(*, has_scaler: bool = False) -> tuple[Detector, ...]:
    """Return the detectors of a run that names none.

    A ``GradScaler`` searches for its scale by up to 16 overflowing gradient norms in a row.
    """
    if not has_scaler:
        return NotFinite(), Spike(), Trend()
    return NotFinite(overflows=16), Spike(), Trend(), ScaleCollapse()


class Watch:
    """Detectors over one history.

    A reading with a verdict is marked as an alarm in the history, reported or not: it leaves the
    statistics, and the run is not calm. During a detector's cooldown its verdicts are not reported
    again, so that one event is one alarm.
    """

    def __init__(self, detectors: Judges | None = None) -> None:
        self.history = History()
        if detectors is None:
            detectors = default_detectors()
        elif not isinstance(detectors, Iterable):
            detectors = (detectors,)
        chosen = tuple(map(as_detector, detectors))
        # Detectors of one name are told apart: ``spike``, ``spike 2``.
        named: dict[str, Detector] = {}
        for detector in chosen:
            name, count = detector.name, 1
            while name in named:
                count += 1
                name = f"{detector.name} {count}"
            named[name] = detector
        if len(named) > _MAX_NAMES:
            raise UsageError(f"{len(named)} detectors are too many: at most {_MAX_NAMES}")
        self._detectors = named
        self._reported: dict[str, int] = {}

    def take(self, reading: Reading) -> Verdict | None:
        """Take the newest reading and return the alarm that it raises, if any."""
        self.history.append(reading)
        reported = None
        is_alarm = False
        for name, detector in self._detectors.items():
            verdict = detector(self.history)
            if verdict is None:
                continue
            is_alarm = True
            since = self._reported.get(name)
            is_cooling = since is not None and reading.step - since <= detector.cooldown
            if reported is None and not is_cooling:
                reported = verdict
                self._reported[name] = reading.step
        if is_alarm:
            self.history.mark_alarm()
        return reported

    def forget_after(self, step: int) -> None:
        """Forget readings, alarms and cooldowns of later steps, as a rollback to ``step`` does."""
        self.history.forget_after(step)
        self._reported = {name: at for name, at in self._reported.items() if at <= step}

    def state_dict(self) -> dict[str, Any]:
        """Return history and cooldowns as plain data."""
        return {"history": self.history.state_dict(), "reported": dict(self._reported)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore history and cooldowns; a state that is refused changes nothing."""
        loaded = parse_state("a watch", state, _WatchState)
        self.history.load_state_dict(loaded.history)
        self._reported = loaded.reported

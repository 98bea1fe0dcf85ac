"""Samples that are left out, and why.

What is skipped is passed over: the positions of all other samples stay. So a skip that is added in
the middle of a run changes only what comes after. Samples and ranges of indices (the records of a
shard) are skipped in every epoch, windows of positions (global batches) once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.errors import FormatError, UsageError
from mvc.sampling.permutation import MAX_SIZE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.sampling.plan import Located, SamplePlan

    Positions = NDArray[np.int64]

_MAX_ENTRIES, _MAX_TEXT = 1 << 20, 1000


@dataclass(frozen=True, slots=True, order=True)
class SkippedRange:
    """Samples ``first`` to ``last`` of a source, both included, and why."""

    source: str
    first: int
    last: int
    reason: str


@dataclass(frozen=True, slots=True, order=True)
class SkippedWindow:
    """Positions from ``start`` until before ``stop``, and why."""

    start: int
    stop: int
    reason: str


@dataclass(frozen=True)
class Skips:
    """What is skipped, sorted; ``add_samples`` and ``add_window`` return it with more."""

    ranges: tuple[SkippedRange, ...] = ()
    windows: tuple[SkippedWindow, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ranges or self.windows)

    def add_samples(
        self, source: str, first: int, last: int | None = None, *, reason: str
    ) -> Skips:
        """Return it with a sample more, or with those from ``first`` to ``last``.

        Raises:
            UsageError: no whole numbers in order, or no reason.
        """
        one = SkippedRange(source, first, first if last is None else last, reason)
        _check_bounds("samples", one.first, one.last, reason)
        ranges = tuple(sorted({*self.ranges, one}))
        return Skips(_check_number(ranges), self.windows)

    def add_window(self, start: int, stop: int, *, reason: str) -> Skips:
        """Return it with a window of positions more; UsageError as for samples."""
        _check_bounds("positions", start, stop - 1, reason)
        windows = tuple(sorted({*self.windows, SkippedWindow(start, stop, reason)}))
        return Skips(self.ranges, _check_number(windows))

    def join(self, other: Skips) -> Skips:
        """Return what either skips."""
        ranges = tuple(sorted({*self.ranges, *other.ranges}))
        windows = tuple(sorted({*self.windows, *other.windows}))
        return Skips(_check_number(ranges), _check_number(windows))

    def find(self, plan: SamplePlan, positions: Positions, located: Located) -> NDArray[np.bool_]:
        """Return which of some positions are skipped; ``located`` is what the plan says is there."""
        found = _is_within(self._windows, positions)
        for number, source in enumerate(plan.sources):
            spans = self._ranges.get(source.name)
            if spans is not None:
                found |= (located.source == number) & _is_within(spans, located.index)
        return found

    def leave_window(self, position: int) -> int:
        """Return the first position from this one on that is in no window."""
        at = int(np.searchsorted(self._windows[:, 0], position, "right")) - 1
        return position if at < 0 else max(position, int(self._windows[at, 1]) + 1)

    @cached_property
    def _windows(self) -> Positions:
        return _join_spans([(one.start, one.stop - 1) for one in self.windows])

    @cached_property
    def _ranges(self) -> dict[str, Positions]:
        spans: dict[str, list[tuple[int, int]]] = {}
        for one in self.ranges:
            spans.setdefault(one.source, []).append((one.first, one.last))
        return {source: _join_spans(its) for source, its in spans.items()}

    def reason(self, plan: SamplePlan, position: int) -> str | None:
        """Return why a position is skipped; None if it is not."""
        for window in self.windows:
            if window.start <= position < window.stop:
                return window.reason
        located = plan.locate(np.array([position], np.int64))
        name, index = plan.sources[int(located.source[0])].name, int(located.index[0])
        for one in self.ranges:
            if one.source == name and one.first <= index <= one.last:
                return one.reason
        return None

    def to_json(self) -> dict[str, Any]:
        """Return them as plain values, which ``parse`` takes."""
        return {
            "ranges": [[one.source, one.first, one.last, one.reason] for one in self.ranges],
            "windows": [[one.start, one.stop, one.reason] for one in self.windows],
        }

    @classmethod
    def parse(cls, value: object) -> Skips:
        """Return stored skips; FormatError if they are malformed."""
        if not isinstance(value, Mapping) or set(value) != {"ranges", "windows"}:
            raise FormatError("stored skips need the fields ranges and windows")
        ranges = [SkippedRange(*one) for one in _read_rows(value["ranges"], (str, int, int, str))]
        windows = [SkippedWindow(*one) for one in _read_rows(value["windows"], (int, int, str))]
        try:
            for one in ranges:
                _check_bounds("samples", one.first, one.last, one.reason)
            for window in windows:
                _check_bounds("positions", window.start, window.stop - 1, window.reason)
        except UsageError as error:
            raise FormatError(f"stored skips: {error}") from None
        return cls(tuple(sorted(set(ranges))), tuple(sorted(set(windows))))


def _join_spans(given: list[tuple[int, int]]) -> Positions:
    """Return first and last of spans that do not touch, in order."""
    spans: list[list[int]] = []
    for first, last in sorted(given):
        if spans and first <= spans[-1][1] + 1:
            spans[-1][1] = max(spans[-1][1], last)
        else:
            spans.append([first, last])
    return np.array(spans, np.int64).reshape(-1, 2)


def _is_within(spans: Positions, values: Positions) -> NDArray[np.bool_]:
    if not len(spans):
        return np.zeros(len(values), np.bool_)
    at = np.searchsorted(spans[:, 0], values, "right") - 1
    found: NDArray[np.bool_] = (at >= 0) & (values <= spans[at, 1])
    return found


def _check_bounds(what: str, first: object, last: object, reason: object) -> None:
    whole = type(first) is int and type(last) is int
    if not whole or not 0 <= first <= last < MAX_SIZE:  # type: ignore[operator]
        raise UsageError(
            f"{what} {first!r} to {last!r} cannot be skipped: no whole numbers in order"
        )
    if not isinstance(reason, str) or not 0 < len(reason.strip()) <= _MAX_TEXT:
        raise UsageError(
            f"{what} {first} to {last} are skipped without a reason", hint='pass reason="..."'
        )


def _check_number(entries: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(entries) > _MAX_ENTRIES:
        raise UsageError(f"more than {_MAX_ENTRIES} entries of skips")
    return entries


def _read_rows(value: object, kinds: tuple[type, ...]) -> list[list[Any]]:
    if not isinstance(value, list) or len(value) > _MAX_ENTRIES:
        raise FormatError("stored skips have no list where one belongs")
    for row in value:
        if not isinstance(row, list) or [type(one) for one in row] != list(kinds):
            raise FormatError("an entry of stored skips is malformed")
    return value

"""Samples that are left out, and why.

What is skipped is passed over: the positions of all other samples stay. So a skip that is added in
the middle of a run changes only what comes after. Samples and ranges of indices (the records of a
shard) are skipped in every epoch, windows of positions (global batches) once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.errors import FormatError, UsageError
from mvc.sampling.permutation import MAX_SIZE, is_whole

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
        last = first if last is None else last
        _check_bounds("samples", first, last, reason)
        return self.join(Skips((SkippedRange(source, first, last, reason),)))

    def add_window(self, start: int, stop: int, *, reason: str) -> Skips:
        """Return it with a window of positions more; UsageError as for samples."""
        _check_bounds("positions", start, stop - 1, reason)
        return self.join(Skips((), (SkippedWindow(start, stop, reason),)))

    def join(self, other: Skips) -> Skips:
        """Return what either skips."""
        ranges = tuple(sorted({*self.ranges, *other.ranges}))
        windows = tuple(sorted({*self.windows, *other.windows}))
        if max(len(ranges), len(windows)) > _MAX_ENTRIES:
            raise UsageError(f"more than {_MAX_ENTRIES} entries of skips")
        return Skips(ranges, windows)

    def find(self, plan: SamplePlan, positions: Positions, located: Located) -> NDArray[np.bool_]:
        """Return which of some positions are skipped; ``located`` is what the plan says is there."""
        is_skipped = _is_within(self._windows, positions)
        for number, source in enumerate(plan.sources):
            spans = self._ranges.get(source.name)
            if spans is not None:
                is_skipped |= (located.source == number) & _is_within(spans, located.index)
        return is_skipped

    def leave_window(self, position: int) -> int:
        """Return the first position from this one on that is in no window."""
        at = int(np.searchsorted(self._windows[:, 0], position, "right")) - 1
        return position if at < 0 else max(position, int(self._windows[at, 1]) + 1)

    @cached_property
    def _windows(self) -> Positions:
        return _join_spans([(window.start, window.stop - 1) for window in self.windows])

    @cached_property
    def _ranges(self) -> dict[str, Positions]:
        spans: dict[str, list[tuple[int, int]]] = {}
        for skipped in self.ranges:
            spans.setdefault(skipped.source, []).append((skipped.first, skipped.last))
        return {source: _join_spans(its) for source, its in spans.items()}

    def reason(self, plan: SamplePlan, position: int) -> str | None:
        """Return why a position is skipped; None if it is not."""
        for window in self.windows:
            if window.start <= position < window.stop:
                return window.reason
        located = plan.locate(np.array([position], np.int64))
        name, index = plan.sources[int(located.source[0])].name, int(located.index[0])
        for skipped in self.ranges:
            if skipped.source == name and skipped.first <= index <= skipped.last:
                return skipped.reason
        return None

    def to_json(self) -> dict[str, Any]:
        """Return them as plain values, which ``parse`` takes."""
        return {
            "ranges": [list(astuple(skipped)) for skipped in self.ranges],
            "windows": [list(astuple(window)) for window in self.windows],
        }

    @classmethod
    def parse(cls, value: object) -> Skips:
        """Return stored skips; FormatError if they are malformed."""
        if not isinstance(value, Mapping) or set(value) != {"ranges", "windows"}:
            raise FormatError("stored skips need the fields ranges and windows")
        ranges = [SkippedRange(*row) for row in _read_rows(value["ranges"], (str, int, int, str))]
        windows = [SkippedWindow(*row) for row in _read_rows(value["windows"], (int, int, str))]
        try:
            for skipped in ranges:
                _check_bounds("samples", skipped.first, skipped.last, skipped.reason)
            for window in windows:
                _check_bounds("positions", window.start, window.stop - 1, window.reason)
        except UsageError as error:
            raise FormatError(f"stored skips: {error.message}") from None
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
    is_within: NDArray[np.bool_] = (at >= 0) & (values <= spans[at, 1])
    return is_within


def _check_bounds(what: str, first: Any, last: object, reason: object) -> None:
    if not is_whole(first, 0, MAX_SIZE - 1) or not is_whole(last, first, MAX_SIZE - 1):
        raise UsageError(
            f"{what} {first!r} to {last!r} cannot be skipped: no whole numbers in order"
        )
    if not isinstance(reason, str) or not 0 < len(reason.strip()) <= _MAX_TEXT:
        raise UsageError(
            f"{what} {first} to {last} are skipped without a reason", hint='pass reason="..."'
        )


def _read_rows(value: object, kinds: tuple[type, ...]) -> list[list[Any]]:
    if not isinstance(value, list) or len(value) > _MAX_ENTRIES:
        raise FormatError("stored skips have no list where one belongs")
    for row in value:
        if not isinstance(row, list) or tuple(map(type, row)) != kinds:
            raise FormatError("an entry of stored skips is malformed")
    return value

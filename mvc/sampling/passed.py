"""What a run with a plan passed over, as its ledger keeps it: windows of positions, ranges of samples.

A range of samples is skipped in every epoch, from the position at which the skip was asked for until
the one at which it no longer was. A window is skipped once. As columns of numbers, a
thousand windows take about 3 KB, which a commit only stores if they are not those of the one before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from mvc.errors import FormatError
from mvc.sampling.ids import check_name, decode_ids, encode_ids
from mvc.sampling.permutation import MAX_SIZE
from mvc.sampling.skips import SkippedRange, SkippedWindow, Skips

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.sampling.plan import Located, SamplePlan

MAX_REASONS = 64
OTHER_REASONS = "other reasons"
MAX_WINDOWS, MAX_RANGES = 1 << 16, 1 << 15
_WINDOW_COLUMNS, _RANGE_COLUMNS = 3, 6
_OPEN = MAX_SIZE
"""In place of the position at which a range that is still skipped would no longer be."""


@dataclass(frozen=True, slots=True, order=True)
class PassedRange:
    """Samples that are skipped at the positions from ``since`` until before ``until``."""

    skipped: SkippedRange
    since: int
    until: int = _OPEN


@dataclass(frozen=True)
class Passed:
    """What was passed over, and will be, from position ``complete_from`` on.

    Attributes:
        latest: the skips that it was last updated with, if that is known.
    """

    windows: tuple[SkippedWindow, ...] = ()
    ranges: tuple[PassedRange, ...] = ()
    complete_from: int = 0
    latest: Skips | None = field(default=None, compare=False, repr=False)

    def update(self, skips: Skips, cursor: int) -> Passed:
        """Return what is passed over if other skips hold from a position on."""
        if skips is self.latest or not (skips or self.windows or self.ranges):
            return self
        wanted = set(skips.ranges)
        kept = [
            passed
            if passed.until != _OPEN or passed.skipped in wanted
            else replace(passed, until=cursor)
            for passed in self.ranges
        ]
        known = {passed.skipped for passed in self.ranges if passed.until == _OPEN}
        ranges = [*kept, *(PassedRange(skipped, cursor) for skipped in wanted - known)]
        past = [replace(window, stop=min(window.stop, cursor)) for window in self.windows]
        future = [replace(window, start=max(window.start, cursor)) for window in skips.windows]
        windows = [window for window in (*past, *future) if window.start < window.stop]
        bounded = self._bound(windows, [passed for passed in ranges if passed.since < passed.until])
        return replace(bounded, latest=skips)

    def add_window(self, start: int, stop: int, reason: str) -> Passed:
        """Return it with a window more, if that is not empty."""
        if start >= stop:
            return self
        return self._bound([*self.windows, SkippedWindow(start, stop, reason)], self.ranges)

    def _bound(self, windows: Sequence[SkippedWindow], ranges: Sequence[PassedRange]) -> Passed:
        """Return these, or the latest of them if they are too many."""
        joined: list[SkippedWindow] = []
        for window in sorted(windows):
            last = joined[-1] if joined else None
            if last is not None and last.reason == window.reason and window.start <= last.stop:
                joined[-1] = replace(last, stop=max(last.stop, window.stop))
            else:
                joined.append(window)
        spared = sorted(ranges, key=lambda passed: (passed.until, passed))
        complete_from = self.complete_from
        if len(joined) > MAX_WINDOWS:
            complete_from = max(complete_from, joined[-MAX_WINDOWS - 1].stop)
        if len(spared) > MAX_RANGES:
            complete_from = max(complete_from, spared[-MAX_RANGES - 1].until)
        return Passed(
            tuple(joined[-MAX_WINDOWS:]), tuple(sorted(spared[-MAX_RANGES:])), complete_from
        )

    def find(
        self, plan: SamplePlan, positions: NDArray[np.int64], located: Located
    ) -> NDArray[np.bool_]:
        """Return which of some positions were passed over."""
        is_passed = self._as_skips[None].find(plan, positions, located)
        for span, skips in self._as_skips.items():
            if span is not None:
                is_in = (span[0] <= positions) & (positions < span[1])
                is_passed |= is_in & skips.find(plan, positions, located)
        return is_passed

    @cached_property
    def _as_skips(self) -> dict[tuple[int, int] | None, Skips]:
        """The windows, and by their span the ranges."""
        groups: dict[tuple[int, int], list[SkippedRange]] = {}
        for passed in self.ranges:
            groups.setdefault((passed.since, passed.until), []).append(passed.skipped)
        skips: dict[tuple[int, int] | None, Skips] = {None: Skips((), self.windows)}
        return skips | {span: Skips(tuple(skipped)) for span, skipped in groups.items()}

    def find_reason(
        self, reason: str, plan: SamplePlan, positions: NDArray[np.int64], located: Located
    ) -> NDArray[np.bool_]:
        """Return which of some positions were passed over for a reason."""
        windows = tuple(window for window in self.windows if window.reason == reason)
        ranges = tuple(passed for passed in self.ranges if passed.skipped.reason == reason)
        return Passed(windows, ranges).find(plan, positions, located)

    def reason(self, plan: SamplePlan, position: int) -> str | None:
        """Return why a position was passed over; None if it was not."""
        for span, skips in self._as_skips.items():
            if span is None or span[0] <= position < span[1]:
                why = skips.reason(plan, position)
                if why is not None:
                    return why
        return None

    # Stored.

    def to_json(self) -> dict[str, Any]:
        """Return it as fields of an entry."""
        names: dict[str, int] = {}

        def number(reason: str) -> int:
            if reason not in names and len(names) >= MAX_REASONS - 1:
                reason = OTHER_REASONS
            return names.setdefault(reason, len(names))

        windows = [
            (window.start, window.stop - window.start, number(window.reason))
            for window in self.windows
        ]
        sources: dict[str, int] = {}
        ranges = [
            (
                sources.setdefault(passed.skipped.source, len(sources)),
                passed.skipped.first,
                passed.skipped.last - passed.skipped.first,
                number(passed.skipped.reason),
                passed.since,
                passed.until,
            )
            for passed in self.ranges
        ]
        fields = {
            "windows": _encode_rows(windows),
            "ranges": _encode_rows(ranges),
            "reasons": list(names),
            "sources": list(sources),
            "complete_from": self.complete_from,
        }
        return {name: value for name, value in fields.items() if value}

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Self:
        """Return it from the fields of an entry; FormatError if they are malformed."""
        reasons = _parse_names(value.get("reasons", []), MAX_REASONS)
        sources = _parse_names(value.get("sources", []), MAX_RANGES)
        complete_from = value.get("complete_from", 0)
        if type(complete_from) is not int or complete_from < 0:
            raise FormatError("a ledger entry does not say from where on it lists skips")
        windows = [
            SkippedWindow(start, start + length, _look_up(reasons, reason))
            for start, length, reason in _decode_rows(
                value.get("windows"), _WINDOW_COLUMNS, MAX_WINDOWS
            )
        ]
        ranges = [
            PassedRange(
                SkippedRange(_look_up(sources, source), first, first + more, _look_up(reasons, why)),
                since, until,
            )
            for source, first, more, why, since, until in _decode_rows(value.get("ranges"), _RANGE_COLUMNS, MAX_RANGES)
        ]  # fmt: skip
        spans = [(window.start, window.stop) for window in windows]
        spans += [(passed.since, passed.until) for passed in ranges]
        spans += [(passed.skipped.first, passed.skipped.last + 1) for passed in ranges]
        if not all(0 <= first < stop <= MAX_SIZE for first, stop in spans):
            raise FormatError("a ledger entry has an invalid skip")
        return cls(tuple(sorted(windows)), tuple(sorted(ranges)), complete_from)


def _encode_rows(rows: Sequence[tuple[int, ...]]) -> bytes:
    return encode_ids(np.array(rows, np.int64).T.ravel()) if rows else b""


def _decode_rows(data: object, columns: int, most: int) -> list[list[int]]:
    if data is None:
        return []
    flat = decode_ids(data, columns * most)
    if isinstance(flat, tuple) or len(flat) % columns:
        raise FormatError("a ledger entry has a truncated list of skips")
    rows: list[list[int]] = flat.reshape(columns, -1).T.tolist()
    return rows


def _parse_names(value: object, most: int) -> list[str]:
    if not isinstance(value, list) or len(value) > most:
        raise FormatError("a ledger entry has no list of names")
    return list(map(check_name, value))


def _look_up(names: list[str], number: int) -> str:
    if not 0 <= number < len(names):
        raise FormatError("a ledger entry names what it does not have")
    return names[number]

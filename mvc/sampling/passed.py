"""What a run with a plan passed over, as its ledger keeps it: windows of positions, ranges of samples.

A range of samples is skipped in every epoch, from the position on at which the run was told to, and
until the position at which it no longer was. A window is skipped once. As columns of numbers, a
thousand windows take about 3 KB, which a commit only stores if they are not those of the one before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from mvc.errors import FormatError
from mvc.sampling.ids import check_name, decode_ids, encode_ids
from mvc.sampling.permutation import MAX_SIZE
from mvc.sampling.skips import SkippedRange, SkippedWindow, Skips

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
            one if one.until != _OPEN or one.skipped in wanted else replace(one, until=cursor)
            for one in self.ranges
        ]
        known = {one.skipped for one in self.ranges if one.until == _OPEN}
        ranges = [*kept, *(PassedRange(one, cursor) for one in wanted - known)]
        past = [_cut(one, 0, cursor) for one in self.windows]
        future = [_cut(one, cursor, MAX_SIZE) for one in skips.windows]
        windows = [one for one in (*past, *future) if one.start < one.stop]
        found = self._bound(windows, [one for one in ranges if one.since < one.until])
        return replace(found, latest=skips)

    def add_window(self, start: int, stop: int, reason: str) -> Passed:
        """Return it with a window more, if that is not empty."""
        if start >= stop:
            return self
        return self._bound([*self.windows, SkippedWindow(start, stop, reason)], self.ranges)

    def _bound(self, windows: Sequence[SkippedWindow], ranges: Sequence[PassedRange]) -> Passed:
        """Return these, or the latest of them if they are too many."""
        joined = _join_windows(sorted(windows))
        spared = sorted(ranges, key=lambda one: (one.until, one))
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
        found = self._as_skips[None].find(plan, positions, located)
        for span, skips in self._as_skips.items():
            if span is not None:
                is_in = (span[0] <= positions) & (positions < span[1])
                found |= is_in & skips.find(plan, positions, located)
        return found

    @cached_property
    def _as_skips(self) -> dict[tuple[int, int] | None, Skips]:
        """The windows, and by their span the ranges."""
        groups: dict[tuple[int, int], list[SkippedRange]] = {}
        for one in self.ranges:
            groups.setdefault((one.since, one.until), []).append(one.skipped)
        found: dict[tuple[int, int] | None, Skips] = {None: Skips((), self.windows)}
        found.update({span: Skips(tuple(its)) for span, its in groups.items()})
        return found

    def find_reason(
        self, reason: str, plan: SamplePlan, positions: NDArray[np.int64], located: Located
    ) -> NDArray[np.bool_]:
        """Return which of some positions were passed over for a reason."""
        windows = tuple(one for one in self.windows if one.reason == reason)
        ranges = tuple(one for one in self.ranges if one.skipped.reason == reason)
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

        def number(text: str, most: int) -> int:
            if text not in names and len(names) >= most - 1:
                text = OTHER_REASONS
            return names.setdefault(text, len(names))

        windows = [
            (one.start, one.stop - one.start, number(one.reason, MAX_REASONS))
            for one in self.windows
        ]
        sources: dict[str, int] = {}
        ranges = [
            (
                sources.setdefault(one.skipped.source, len(sources)), one.skipped.first,
                one.skipped.last - one.skipped.first, number(one.skipped.reason, MAX_REASONS),
                one.since, one.until,
            )
            for one in self.ranges
        ]  # fmt: skip
        found = {
            "windows": _encode_rows(windows),
            "ranges": _encode_rows(ranges),
            "reasons": list(names),
            "sources": list(sources),
            "complete_from": self.complete_from,
        }
        return {name: value for name, value in found.items() if value}

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
        spans = [(one.start, one.stop) for one in windows]
        spans += [(one.since, one.until) for one in ranges]
        spans += [(one.skipped.first, one.skipped.last + 1) for one in ranges]
        if not all(0 <= first < stop <= MAX_SIZE for first, stop in spans):
            raise FormatError("a ledger entry has an invalid skip")
        return cls(tuple(sorted(windows)), tuple(sorted(ranges)), complete_from)


def _cut(one: SkippedWindow, start: int, stop: int) -> SkippedWindow:
    return SkippedWindow(max(one.start, start), min(one.stop, stop), one.reason)


def _join_windows(windows: Sequence[SkippedWindow]) -> list[SkippedWindow]:
    joined: list[SkippedWindow] = []
    for one in windows:
        if joined and joined[-1].reason == one.reason and one.start <= joined[-1].stop:
            last = joined.pop()
            joined.append(replace(last, stop=max(last.stop, one.stop)))
        else:
            joined.append(one)
    return joined


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
    return [check_name(one) for one in value]


def _look_up(names: list[str], number: int) -> str:
    if not 0 <= number < len(names):
        raise FormatError("a ledger entry names what it does not have")
    return names[number]

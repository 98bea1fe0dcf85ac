"""Spans of time as people write them: ``90s``, ``30m``, ``12h``, ``7d``, ``2w``, ``1y``.

A year is 365 days. Pure functions, for every command that takes an age.
"""

from __future__ import annotations

import re

from mvc.errors import UsageError

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_WRITTEN = ("y", "d", "h", "m", "s")  # no weeks: 7d is what people compare with
_DURATION = re.compile(r"([0-9]{1,16})([smhdwy])", re.ASCII)
_MAX_S = 2**53


def parse_duration(text: str) -> int:
    """Return the seconds that a text such as ``7d`` stands for; UsageError if it stands for none."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text[:40]!r} is not a span of time",
            hint="write a whole number and a unit: 90s, 30m, 12h, 7d, 2w or 1y",
        )
    return min(int(match[1]) * _UNITS_S[match[2]], _MAX_S)


def duration_text(seconds: int) -> str:
    """Return the shortest text that ``parse_duration`` reads back as these whole seconds."""
    for unit in _WRITTEN:
        if seconds and seconds % _UNITS_S[unit] == 0:
            return f"{seconds // _UNITS_S[unit]}{unit}"
    return "0s"

"""Which commits of the log are shown, and in what order; imported only when an option asks."""

from __future__ import annotations

import math
import re
import time
from datetime import datetime
from operator import eq, ge, gt, le, lt
from typing import TYPE_CHECKING

from mvc.cli.parameters import parse_number
from mvc.errors import UsageError
from mvc.upkeep.durations import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mvc.operations.log import LogEntry

    Test = Callable[[LogEntry], bool]

_AGO = re.compile(r"(\d{1,9})[ .]*(second|minute|hour|day|week|year)s?(?:[ .]ago)?", re.ASCII)
_METRIC = re.compile(r"([^<>=]+)(?:(<=|>=|<|>|=)(.+))?")
_COMPARE = {"<": lt, "<=": le, ">": gt, ">=": ge, "=": eq}


def make_tests(
    since: str | None,
    until: str | None,
    messages: Sequence[str] | None,
    authors: Sequence[str] | None,
    metrics: Sequence[str] | None,
) -> list[Test]:
    """Return what a commit must pass to be shown; UsageError names a value that is not valid."""
    tests: list[Test] = []
    if since is not None:
        since_s = _parse_moment("--since", since)
        tests.append(lambda entry: entry.info.commit_time_s >= since_s)
    if until is not None:
        until_s = _parse_moment("--until", until)
        tests.append(lambda entry: entry.info.commit_time_s <= until_s)
    if messages:
        message = _compile("--grep", messages)
        tests.append(lambda entry: message.search(entry.message) is not None)
    if authors:
        author = _compile("--author", authors)
        tests.append(lambda entry: author.search(_author(entry)) is not None)
    return [*tests, *map(_metric_test, metrics or ())]


def _parse_moment(option: str, text: str) -> float:
    """Return seconds since 1970 of a date in local time or an age; UsageError if it is neither."""
    now_s = time.time()
    if text in ("now", "yesterday"):
        return now_s - 86_400 * (text == "yesterday")
    ago = _AGO.fullmatch(text)
    try:
        if ago:
            return now_s - parse_duration(f"{ago[1]}{ago[2][0]}")
        if text[:1].isdigit() and "-" not in text:
            return now_s - parse_duration(text)
        return datetime.fromisoformat(text).timestamp()
    except (UsageError, ValueError, OverflowError):
        raise UsageError(
            f"{option} {text[:40]!r} is not a date or an age",
            hint='write 2026-11-20, "2026-11-20 16:30", 12h, 7d or "2 weeks ago"',
        ) from None


def _compile(option: str, patterns: Sequence[str]) -> re.Pattern[str]:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except (re.error, OverflowError) as error:
            raise UsageError(
                f"{option} {pattern[:80]!r} is not a valid pattern: {error}",
                hint="put a backslash before a character that stands for itself",
            ) from None
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.MULTILINE)


def _author(entry: LogEntry) -> str:
    return f"{entry.author.name} <{entry.author.email}>"


def metric_name(text: str) -> str:
    """Return the metric that ``loss`` or ``loss<2.5`` asks for."""
    return _split_metric(text)[0]


def _split_metric(text: str) -> tuple[str, str | None, float]:
    match = _METRIC.fullmatch(text)
    number = parse_number(match[3].strip()) if match and match[2] else math.nan
    if match is None or number is None:
        raise UsageError(
            f"--metric {text[:80]!r} is not a metric", hint='write loss, or "loss<2.5" in quotes'
        )
    return match[1].strip(), match[2], number


def _metric_test(text: str) -> Test:
    name, sign, number = _split_metric(text)

    def test(entry: LogEntry) -> bool:
        value = entry.metrics.get(name)
        return value is not None and (sign is None or bool(_COMPARE[sign](value, number)))

    return test


def sort_entries(entries: Sequence[LogEntry], field: str) -> list[LogEntry]:
    """Return commits by step or a metric, smallest first; those without it, or NaN, come last."""
    name, sign = field.removeprefix("-"), -1 if field.startswith("-") else 1

    def key(entry: LogEntry) -> tuple[bool, float]:
        value = entry.step if name == "step" else entry.metrics.get(name)
        return (True, 0) if value is None or math.isnan(value) else (False, sign * value)

    if entries and all(key(entry)[0] for entry in entries):
        raise UsageError(f"no commit shown has the metric {name!r}", hint='"mvc log" shows metrics')
    return sorted(entries, key=key)

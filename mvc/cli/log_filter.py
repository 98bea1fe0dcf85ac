"""Which commits of the log are shown, and in what order; imported only when an option asks."""

from __future__ import annotations

import calendar
import math
import re
from datetime import datetime, timedelta
from operator import eq, ge, gt, le, lt
from typing import TYPE_CHECKING, Any

from mvc.cli.parameters import parse_number
from mvc.errors import UsageError
from mvc.upkeep.durations import parse_duration
from mvc.workspace.health import find_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mvc.operations.log import LogEntry

    Test = Callable[[LogEntry], bool]

_AGO = re.compile(r"(\d{1,9} ?(second|minute|hour|day|week|month|year)s? ?)+(ago)?", re.ASCII)
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_METRIC = re.compile(r"([^<>=]+)(?:(<=|>=|<|>|=)(.+))?")
_COMPARE = {"<": lt, "<=": le, ">": gt, ">=": ge, "=": eq}


def make_tests(options: Mapping[str, Any]) -> list[Test]:
    """Return what a commit must pass to be shown, as the options of the log say it.

    Raises:
        UsageError: a value is not valid.
    """
    tests: list[Test] = []
    flags = re.MULTILINE | (re.IGNORECASE if options["ignore-case"] else 0)
    if options["since"] is not None:
        since_s = parse_moment("--since", options["since"])
        tests.append(lambda entry: entry.info.commit_time_s >= since_s)
    if options["until"] is not None:
        until_s = parse_moment("--until", options["until"])
        tests.append(lambda entry: entry.info.commit_time_s <= until_s)
    if options["grep"]:
        patterns = [_compile("--grep", pattern, flags) for pattern in options["grep"]]
        enough, invert = all if options["all-match"] else any, options["invert-grep"]
        tests.append(
            lambda entry: enough(p.search(entry.message) is not None for p in patterns) != invert
        )
    if options["author"]:
        authors = [_compile("--author", pattern, flags) for pattern in options["author"]]
        tests.append(
            lambda entry: any(
                author.search(f"{entry.author.name} <{entry.author.email}>") for author in authors
            )
        )
    if options["merges"] is not None:
        tests.append(lambda entry: (len(entry.info.parents) > 1) is options["merges"])
    return [*tests, *map(_metric_test, options["metric"])]


def _compile(option: str, pattern: str, flags: int) -> re.Pattern[str]:
    try:
        return re.compile(pattern, flags)
    except (re.error, OverflowError) as error:
        raise UsageError(
            f"{option} {pattern[:80]!r} is not a valid pattern: {error}",
            hint="put a backslash before a character that stands for itself",
        ) from None


def parse_moment(option: str, text: str) -> float:
    """Return seconds since 1970 of a date in local time or an age; UsageError if it is neither."""
    now = datetime.now().astimezone()
    words = " ".join(re.split(r"[\s.,]+", text.strip().lower()))
    try:
        found = _parse_age(words, now) or _parse_day(words, now)
        if found is not None:
            return found.timestamp()
        if text[:1].isdigit() and "-" not in text and "/" not in text:
            return now.timestamp() - parse_duration(text)
        if text.startswith("@"):
            return float(int(text[1:]))
        return datetime.fromisoformat(text.replace("/", "-")).timestamp()
    except (UsageError, ValueError, OverflowError):
        raise UsageError(
            f"{option} {text[:40]!r} is not a date or an age",
            hint='write 2026-11-20, "2026-11-20 16:30", 12h, 7d, "2 weeks ago", yesterday or friday',
        ) from None


def _parse_age(words: str, now: datetime) -> datetime | None:
    """Return the time of ``2 weeks 3 days ago`` or ``last month``, or None."""
    words = re.sub(r"^last (?=(second|minute|hour|day|week|month|year)$)", "1 ", words)
    if not _AGO.fullmatch(words):
        return None
    for number, unit in re.findall(r"(\d+) ?([a-z]+)", words.removesuffix(" ago")):
        kind = unit.removesuffix("s")
        if kind in ("month", "year"):
            now = _months_before(now, int(number) * (12 if kind == "year" else 1))
        else:
            now -= timedelta(**{f"{kind}s": int(number)})
    return now


def _months_before(moment: datetime, months: int) -> datetime:
    """Return the same day of an earlier month, or its last one if it has no such day."""
    year, month = divmod(moment.year * 12 + moment.month - 1 - months, 12)
    last = calendar.monthrange(year, month + 1)[1]
    return moment.replace(year=year, month=month + 1, day=min(moment.day, last))


def _parse_day(words: str, now: datetime) -> datetime | None:
    """Return the time that a word such as ``yesterday`` or ``friday`` names, or None.

    As in Git: yesterday and the days of the week are the time of day that it is now, on that day.
    """
    name = words.removeprefix("last ")
    if name in _DAYS:
        back = (now.weekday() - _DAYS.index(name)) % 7
        return now - timedelta(days=back or 7)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    known = {"now": now, "yesterday": now - timedelta(days=1), "today": midnight}
    return {**known, "midnight": midnight}.get(words)


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
        value = find_value(entry.info, name)
        return value is not None and (sign is None or bool(_COMPARE[sign](value, number)))

    return test


def sort_entries(entries: Sequence[LogEntry], field: str) -> list[LogEntry]:
    """Return commits by step, date or a metric, smallest first; those without it, or NaN, come last."""
    name, sign = field.removeprefix("-"), -1 if field.startswith("-") else 1

    def key(entry: LogEntry) -> tuple[bool, float]:
        is_date = name == "date"
        value = entry.info.commit_time_s if is_date else find_value(entry.info, name)
        return (True, 0) if value is None or math.isnan(value) else (False, sign * value)

    if entries and all(key(entry)[0] for entry in entries):
        raise UsageError(f"no commit shown has the metric {name!r}", hint='"mvc log" shows metrics')
    return sorted(entries, key=key)

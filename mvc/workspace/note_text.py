"""The text of Git notes that mvc writes for people and reads again: paragraphs of ``Key: value``.

Whoever has a stock Git may write such notes as well, so what is read is taken as far as it makes
sense, and is cut where it would be endless.
"""

from __future__ import annotations

import re
import time
from datetime import datetime

MAX_LINE_CHARS = 500
"""What a reason or remark may take; the rest is left out and replaced by an ellipsis."""

_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", re.ASCII)
_EMPTY_LINE = re.compile(r"\n[ \t]*\n")


def one_line(text: str) -> str:
    """Return a text on one line, with spaces for what cannot be printed, cut where it is long."""
    plain = "".join(sign if sign.isprintable() else " " for sign in text)
    line = " ".join(plain.split())
    return line if len(line) <= MAX_LINE_CHARS else line[: MAX_LINE_CHARS - 1] + "…"


def time_text(time_s: int) -> str:
    """Return seconds since 1970 as ``2026-11-20T16:00:00Z``."""
    return time.strftime(_TIME_FORMAT, time.gmtime(time_s))


def find_time(text: str) -> int | None:
    """Return the seconds since 1970 that ``time_text`` made a text of, or None for other texts."""
    if not _TIME.fullmatch(text):
        return None
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError):
        return None


def split_paragraphs(text: str) -> list[str]:
    """Return what empty lines part."""
    return [part.strip("\n") for part in _EMPTY_LINE.split(text) if part.strip()]

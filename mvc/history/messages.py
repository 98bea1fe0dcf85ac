"""Commit messages and their trailers, by the rules of ``git interpret-trailers``.

The trailer block is the last paragraph of a message, never its first (the subject). It counts as
one if every line is ``Key: value`` or continues the line before it by beginning with a space; or
if at least one line is of the kinds Git itself writes (``Signed-off-by:``) and a quarter of the
lines are trailers. Values stand on one line: a line break inside a value becomes a space.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mvc.errors import UsageError

_SPACE = " \t\r"  # what Git calls white space inside a line
_KEY = re.compile(r"[A-Za-z0-9-]+")
_TRAILER = re.compile(r"([A-Za-z0-9-]+)[ \t]*:(.*)", re.DOTALL)
_LINE_BREAK = re.compile(r"\s*[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]\s*")
_GIT_WROTE = ("Signed-off-by: ", "(cherry picked from commit ")


def format_message(text: str, trailers: Sequence[tuple[str, str]]) -> str:
    """Return a message with trailers added after those that it already ends with."""
    block = ""
    for key, value in trailers:
        if not _KEY.fullmatch(key):
            raise UsageError(
                f"{key!r} cannot be a trailer key", hint="use letters, digits and dashes only"
            )
        block += f"{key}: {_LINE_BREAK.sub(' ', value).strip()}".rstrip() + "\n"
    text = text.rstrip(_SPACE + "\n")
    if not block:
        return text + "\n" if text else ""
    between = "\n" if _find_block(text.split("\n")) is not None else "\n\n"
    return text + between + block


def parse_trailers(message: str) -> tuple[tuple[str, str], ...]:
    """Return the (key, value) pairs at the end of a message, in order, each on one line."""
    lines = message.rstrip(_SPACE + "\n").split("\n")
    start = _find_block(lines)
    trailers: list[tuple[str, str]] = []
    is_open = False
    for line in lines[start:] if start is not None else ():
        match = _TRAILER.match(line)
        if is_open and line[0] in _SPACE:
            key, value = trailers[-1]
            trailers[-1] = (key, f"{value} {line.strip()}".strip())
        elif match:
            trailers.append((match[1], match[2].strip()))
            is_open = True
        else:
            is_open = False
    return tuple(trailers)


def drop_trailers(message: str, keys: frozenset[str]) -> str:
    """Return a message without the trailers of some keys, and without an empty block at its end."""
    lines = message.rstrip(_SPACE + "\n").split("\n")
    start = _find_block(lines)
    if start is None or keys.isdisjoint(key for key, _ in parse_trailers(message)):
        return message
    kept, is_dropped = lines[:start], False
    for line in lines[start:]:
        match = _TRAILER.match(line)
        is_dropped = match[1] in keys if match else is_dropped and line[0] in _SPACE
        kept += [] if is_dropped else [line]
    return "\n".join(kept).rstrip(_SPACE + "\n") + "\n"


def message_subject(message: str) -> str:
    """Return the first paragraph of a message on one line."""
    lines = message.split("\n")
    first, end = _find_title(lines)
    return " ".join(line.rstrip(_SPACE) for line in lines[first:end])


def message_body(message: str) -> str:
    """Return what stands between the subject and the trailers, without blank lines around it."""
    lines = message.rstrip(_SPACE + "\n").split("\n")
    start = _find_block(lines)
    _, end = _find_title(lines)
    return "\n".join(lines[end:start]).strip("\n")


def _is_blank(line: str) -> bool:
    return not line.strip(_SPACE)


def _find_title(lines: Sequence[str]) -> tuple[int, int]:
    """Return the first line of the first paragraph and the line after its last."""
    first = 0
    while first < len(lines) and _is_blank(lines[first]):
        first += 1
    end = first
    while end < len(lines) and not _is_blank(lines[end]):
        end += 1
    return first, end


def _find_block(lines: Sequence[str]) -> int | None:
    """Return the first line of the trailer block; ``lines`` does not end with blank ones."""
    first = len(lines)
    while first and not _is_blank(lines[first - 1]):
        first -= 1
    return first if 0 < first < len(lines) and _is_block(lines[first:]) else None


def _is_block(paragraph: Sequence[str]) -> bool:
    """Apply Git's rule; it looks from the last line up, so that it knows what a line continues."""
    trailers = others = pending = 0
    by_git = False
    for line in reversed(paragraph):
        if line.startswith("#"):
            others, pending = others + pending, 0
        elif line.startswith(_GIT_WROTE):
            trailers, pending, by_git = trailers + 1, 0, True
        elif line[0] in _SPACE:
            pending += 1
        elif _TRAILER.match(line):
            trailers, pending = trailers + 1, 0
        else:
            others, pending = others + 1 + pending, 0
    others += pending
    return trailers > 0 and (others == 0 or (by_git and trailers * 3 >= others))

"""Changed lines of two versions of a text, as ``diff -u`` writes them. Pure."""

from __future__ import annotations

MAX_TEXT_BYTES = 1 << 20
_MAX_LINES = 2000  # that differ: comparing takes the square of it at worst
_CONTEXT = 3
_NO_END = "\\ No newline at end of file"


def changed_lines(old: bytes, new: bytes) -> tuple[str, ...]:
    """Return hunks with three lines of context; nothing if either is not text, or too much differs."""
    before, after = _lines(old), _lines(new)
    if before is None or after is None:
        return ()
    start = _count_same(before, after)
    end = _count_same(before[start:][::-1], after[start:][::-1])
    start, end = max(start - _CONTEXT, 0), max(end - _CONTEXT, 0)
    before, after = before[start : len(before) - end], after[start : len(after) - end]
    if max(len(before), len(after)) > _MAX_LINES:
        return ()
    from difflib import SequenceMatcher  # noqa: PLC0415  few comparisons need it

    hunks: list[str] = []
    for group in SequenceMatcher(None, before, after).get_grouped_opcodes(_CONTEXT):
        first, last = group[0], group[-1]
        old_range = _range(first[1] + start, last[2] + start)
        hunks.append(f"@@ -{old_range} +{_range(first[3] + start, last[4] + start)} @@")
        for kind, left, right, new_left, new_right in group:
            if kind == "equal":
                hunks += _signed(" ", before[left:right])
            else:
                hunks += [
                    *_signed("-", before[left:right]),
                    *_signed("+", after[new_left:new_right]),
                ]
    return tuple(hunks)


def _lines(data: bytes) -> list[str] | None:
    """Return the lines of a text with their ends, or None if the bytes are not text."""
    if len(data) > MAX_TEXT_BYTES or b"\0" in data:
        return None
    try:
        *whole, rest = data.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        return None
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


def _count_same(left: list[str], right: list[str]) -> int:
    """Return how many first lines are the same."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(left), len(right)))


def _range(start: int, stop: int) -> str:
    count = stop - start
    first = start + 1 if count else start
    return f"{first}" if count == 1 else f"{first},{count}"


def _signed(sign: str, lines: list[str]) -> list[str]:
    signed: list[str] = []
    for line in lines:
        signed.append(sign + line.removesuffix("\n"))
        if not line.endswith("\n"):
            signed.append(_NO_END)
    return signed

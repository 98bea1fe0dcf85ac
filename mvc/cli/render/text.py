"""Sizes, numbers, dates, names and columns as text."""

from __future__ import annotations

import re
import time
import unicodedata
from typing import TYPE_CHECKING

from mvc.cli.output import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mvc.cli.output import Output

    Cell = str | tuple[str, ...]

SHORT_ID = 7
BLOCKS = " ▁▂▃▄▅▆▇█"
PLAIN = " ..::==##"
"""Bars for an encoding that lacks the blocks."""
CHANGES = {
    "added": "new file", "removed": "deleted", "modified": "modified", "renamed": "renamed",
}  # fmt: skip
_SIGNS = {"+": "green", "-": "red", "@": "cyan"}
_STEP = 1024
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_TIME_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
_ROUNDED, _LONG_S = 0.9995, 1000.0  # what would round to four digits
_NEXT_UNIT_FROM = 999.5  # what would round to four digits
_WHOLE_FROM = 99.95  # what would round to four digits with one decimal
_SMALLEST_NAME = 12
_LEAST_NAME = 28
_LEAST_PIECE = 6

_NAMED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\a": "\\a"}


def size_text(size_bytes: int) -> str:
    """Return a number of bytes: ``812 B``, ``3.1 GiB``, ``412 MiB``."""
    if abs(size_bytes) < _STEP:
        return f"{size_bytes:,} B"
    value, unit = size_bytes / _STEP, 0
    while abs(value) >= _NEXT_UNIT_FROM and unit < len(_UNITS) - 1:
        value, unit = value / _STEP, unit + 1
    digits = f"{value:,.1f}" if abs(value) < _WHOLE_FROM else f"{value:,.0f}"
    return f"{digits.removesuffix('.0')} {_UNITS[unit]}"


def count_text(count: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 file``, ``1,234 files``."""
    word = noun if count == 1 else plural or f"{noun}s"
    return f"{count:,} {word}"


def some_text(names: Sequence[str], most: int) -> str:
    """Return the first names and how many more there are: ``a, b, c and 4 more``."""
    more = len(names) - most
    shown = ", ".join(map(printable, names[:most]))
    return f"{shown} and {more:,} more" if more > 0 else shown


def step_text(step: int | None) -> str:
    """Return `` (step 1,000)``, or nothing for a commit without a step."""
    return "" if step is None else f" (step {step:,})"


def ratio_text(ratio: float) -> str:
    """Return a ratio as percents: ``41 %``, ``3.4 %``, ``0.02 %``."""
    percent = 100 * ratio
    digits = next(digits for digits, least in ((0, 9.95), (1, 0.995), (2, 0)) if percent >= least)
    return f"{percent:,.{digits}f} %"


def seconds_text(seconds: float) -> str:
    """Return a duration: ``0.3 s``, ``2 min 5 s``."""
    if seconds < 60:  # noqa: PLR2004  a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:  # noqa: PLR2004  an hour
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def short_text(seconds: float) -> str:
    """Return a duration: ``41 µs``, ``3.25 ms``, ``1.5 s``."""
    if seconds <= 0:
        return "0"
    unit, scale = next(
        (one for one in _TIME_UNITS if seconds >= _ROUNDED * one[1]), _TIME_UNITS[-1]
    )
    return f"{seconds / scale:,.0f} s" if seconds >= _LONG_S else f"{seconds / scale:.3g} {unit}"


def number_text(value: float) -> str:
    """Return a metric with at most six significant digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def shape_text(dtype: str, shape: Sequence[int]) -> str:
    """Return ``BF16[4096, 14336]``; ``F32[]`` is a scalar."""
    return f"{dtype}[{', '.join(map(str, shape))}]"


def short_id(commit: str | None) -> str:
    """Return the first digits of a commit id."""
    return (commit or "0" * SHORT_ID)[:SHORT_ID]


def iso_date(time_s: int, timezone_s: int) -> str:
    """Return ISO 8601 with its offset: ``2025-01-31T12:00:00+01:00``."""
    return _date("%Y-%m-%dT%H:%M:%S", time_s, timezone_s) + _offset(timezone_s, ":")


def utc_date(time_s: float | None) -> str | None:
    """Return ISO 8601 in UTC, to the second, or None for a time that is not known."""
    return None if time_s is None else iso_date(int(time_s), 0)


def git_date(time_s: int, timezone_s: int) -> str:
    """Return a date as ``git log`` writes it: ``Fri Jan 31 12:00:00 2025 +0100``."""
    moment = time.gmtime(time_s + timezone_s)
    return _date(f"%a %b {moment.tm_mday} %H:%M:%S %Y ", time_s, timezone_s) + _offset(timezone_s)


def _date(pattern: str, time_s: int, timezone_s: int) -> str:
    return time.strftime(pattern, time.gmtime(time_s + timezone_s))


def _offset(timezone_s: int, colon: str = "") -> str:
    hours, minutes = divmod(abs(timezone_s) // 60, 60)
    return f"{'-' if timezone_s < 0 else '+'}{hours:02d}{colon}{minutes:02d}"


def quote_path(path: str) -> str:
    """Return a path as ``git status --porcelain`` writes it, quoted if need be."""
    if path.isprintable() and not any(sign in path for sign in '"\\'):
        return f'"{path}"' if " " in path else path
    return '"' + "".join(map(_quoted, path)) + '"'


def _quoted(sign: str) -> str:
    if sign in _NAMED:
        return _NAMED[sign]
    if sign.isprintable():
        return sign
    return "".join(f"\\{byte:03o}" for byte in sign.encode("utf-8", "surrogateescape"))


def cell_width(text: str) -> int:
    """Return how many terminal columns a text without colour codes takes."""
    if text.isascii():
        return len(text)
    return sum(_sign_width(sign) for sign in text)


def _sign_width(sign: str) -> int:
    if unicodedata.combining(sign) or unicodedata.category(sign) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def cut_middle(text: str, width: int) -> str:
    """Return a name cut in its middle to at most ``width`` columns; numbers stay if they can.

    ``model.layers.17.self_attn.q_proj.weight`` becomes ``mod…s.17.….q_proj.weight``.
    """
    if cell_width(text) <= width:
        return text
    *pieces, last = re.split("([0-9]+)", text)
    numbers, texts = pieces[1::2], pieces[::2]
    room = width - sum(map(len, numbers))
    if not numbers or room <= len(texts):
        return _cut_inside(text, width, width // 2)
    # What follows the last number tells tensors of a layer apart, so it gets most of the room.
    others = min(sum(map(cell_width, texts)), _LEAST_PIECE * len(texts))
    most = min(max(room * 2 // 3, room - others), room - len(texts))
    kept = [_cut_inside(last, most, 1)]
    room -= cell_width(kept[0])
    for place, piece in reversed([*enumerate(texts)]):
        kept.append(_cut_inside(piece, room // (place + 1), 1 if place else room // 2))
        room -= cell_width(kept[-1])
    ends = kept[:0:-1]
    return "".join(part for pair in zip(ends, numbers, strict=True) for part in pair) + kept[0]


def _cut_inside(text: str, width: int, head: int) -> str:
    """Return text whose first ``head`` columns and whose end stay."""
    if cell_width(text) <= width:
        return text
    head = max(min(head, width - 2), 0)
    return _take(text, head) + "…" + _take(text[::-1], width - 1 - head)[::-1]


def bars(out: Output) -> str:
    """Return signs of growing height that a stream can show."""
    return BLOCKS if can_show(out, BLOCKS) else PLAIN


def can_show(out: Output, text: str) -> bool:
    """Return whether the encoding of a stream has all characters of a text."""
    try:
        text.encode(getattr(out.stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def cut_end(text: str, width: int) -> str:
    """Return text cut at the end to at most ``width`` columns."""
    return text if cell_width(text) <= width else _take(text, width - 1) + "…"


def _take(text: str, width: int) -> str:
    taken = 0
    for position, sign in enumerate(text):
        taken += _sign_width(sign)
        if taken > width:
            return text[:position]
    return text


def pad(text: str, width: int, align: str = "<") -> str:
    """Return text padded to ``width`` columns; ``>`` aligns it to the right."""
    space = " " * (width - cell_width(text))
    return space + text if align == ">" else text + space


def columns(
    rows: Sequence[Sequence[str]],
    aligns: str,
    *,
    width: int | None = None,
    spare: int | None = None,
) -> list[list[str]]:
    """Return rows of cells, without colour codes, padded so that columns line up.

    ``aligns`` has one of ``<>`` per column. ``width`` is the room for a row without the spaces
    between cells; the first column is cut to fit, once the column ``spare`` is left out.
    """
    if not rows:
        return []
    widths = [max(map(cell_width, column)) for column in zip(*rows, strict=True)]
    rest = 0 if width is None else width - sum(widths[1:])
    if spare is not None and width is not None and rest < min(widths[0], _LEAST_NAME):
        kept = [[cell for place, cell in enumerate(row) if place != spare] for row in rows]
        aligns = aligns[:spare] + aligns[spare + 1 :]
        return columns(kept, aligns, width=width + len("  "))
    if width is not None and sum(widths) > width:
        # Names are long and similar at both ends; the other columns are short and all needed.
        widths[0] = min(widths[0], max(width - sum(widths[1:]), _SMALLEST_NAME))
        rows = [[cut_middle(first, widths[0]), *rest] for first, *rest in rows]
    return [
        [pad(cell, size, align) for cell, size, align in zip(row, widths, aligns, strict=True)]
        for row in rows
    ]


def table_lines(
    out: Output,
    rows: Sequence[Sequence[Cell]],
    aligns: str,
    *,
    indent: str = "",
    width: int | None = None,
) -> Iterator[str]:
    """Yield rows of cells as lines; a cell is a text, or a text and the names of its styles."""
    pairs = [[cell if isinstance(cell, tuple) else (cell,) for cell in row] for row in rows]
    shown = columns([[cell[0] for cell in row] for row in pairs], aligns, width=width)
    for row, texts in zip(pairs, shown, strict=True):
        texts[-1] = texts[-1].rstrip()
        cells = (out.style(text, *cell[1:]) for text, cell in zip(texts, row, strict=True))
        yield f"{indent}{'  '.join(cells)}".rstrip()


def fact_lines(out: Output, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a line for each name, in bold, and what there is to say of it."""
    return table_lines(out, [((name, "bold"), text) for name, text in rows], "<<")


def change_lines(
    out: Output, lines: Sequence[str], most: int | None, see_all: str
) -> Iterator[str]:
    """Yield changed lines of a text, or the first ones, in colour."""
    shown = lines if most is None or len(lines) <= most else lines[: max(most - 1, 0)]
    for line in shown:
        text, colour = printable(line.expandtabs()), _SIGNS.get(line[:1])
        yield f"  {out.style(text, colour) if colour else text}"
    if len(shown) < len(lines):
        more = len(lines) - len(shown)
        yield out.style(f"  … and {count_text(more, 'more line')} ({see_all} shows them)", "dim")

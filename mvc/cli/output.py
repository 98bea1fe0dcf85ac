"""The two output streams, their colours, and JSON.

Results go to standard output, everything else (warnings, errors, progress) to standard error.
Only terminals get colours, unless ``NO_COLOR`` or ``FORCE_COLOR`` is set. Text from a repository or
file passes through ``printable`` first: it could hold codes that move a terminal's cursor.
"""

from __future__ import annotations

import io
import math
import os
import re
import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mvc.cli.pager import Pager

P = ParamSpec("P")

_CODES = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36",
}  # fmt: skip
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNDECODABLE = range(0xDC80, 0xDD00)
_PAGED: list[tuple[Output, Pager]] = []
_UNPAGED: list[bool] = []

_SPREAD = 2
_LAST: list[Callable[[], None]] = []


@dataclass(frozen=True, slots=True)
class Output:
    """One of the two standard streams; ``width`` is None unless it is a terminal."""

    stream: TextIO
    colour: bool
    width: int | None
    height: int = 24

    def line(self, text: str = "") -> None:
        """Write one line."""
        self.stream.write(text + "\n")

    def lines(self, lines: Iterable[str]) -> None:
        """Write many lines at once."""
        self.stream.writelines(f"{line}\n" for line in lines)

    def style(self, text: str, *names: str) -> str:
        """Return text in colours if the stream shows them."""
        if not (self.colour and text and names):
            return text
        codes = ";".join(_CODES[name] for name in names)
        return f"\x1b[{codes}m{text}\x1b[0m"


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown: errors and conflicts only, a progress bar, JSON."""

    quiet: bool = False
    progress: bool = False
    as_json: bool = False

    @property
    def as_text(self) -> bool:
        """Whether people read the result, and not a program or nobody."""
        return not (self.quiet or self.as_json)

    def aloud(self, *, when: bool = True) -> Shown:
        """Return this without ``--quiet``: what there is to say has to be said."""
        return replace(self, quiet=False) if when else self

    def answer(
        self,
        fields: object,
        write: Callable[Concatenate[Output, P], None],
        *args: P.args,
        **options: P.kwargs,
    ) -> None:
        """Print a result: ``fields``, or what they return, as JSON, else what ``write`` writes."""
        if self.as_json:
            write_json(fields() if callable(fields) else fields)
        elif not self.quiet:
            write(stdout(), *args, **options)

    def page(
        self,
        fields: object,
        write: Callable[Concatenate[Output, P], None],
        *args: P.args,
        **options: P.kwargs,
    ) -> None:
        """Print a result that may be long, as ``answer`` does; a terminal's user gets a pager."""
        if self.as_text:
            paged()  # standard output is the pager's from now on
        self.answer(fields, write, *args, **options)


def stdout() -> Output:
    """Return standard output as it is now; what a pager shows is a terminal's."""
    return _PAGED[0][0] if _PAGED else _output(sys.stdout)


def paged() -> Output:
    """Return standard output; on a terminal, the user's pager shows it from now on."""
    out = stdout()
    is_wanted = out.width is not None and os.environ.get("TERM", "dumb") != "dumb"
    if is_wanted and sys.stdout is sys.__stdout__ and not _PAGED and not _UNPAGED:
        from mvc.cli.pager import start_pager

        pager = start_pager(warn)
        if pager is not None:
            _PAGED.append((out, pager))
    return out


def turn_off_pager() -> None:
    """Let this command write to the terminal itself."""
    _UNPAGED.append(True)


def end_pager() -> bool:
    """Wait until the user has quit the pager; return whether there was one."""
    _UNPAGED.clear()
    if not _PAGED:
        return False
    _PAGED[0][1].wait()
    _PAGED.clear()
    return True


def stderr() -> Output:
    """Return standard error as it is now."""
    return _output(sys.stderr)


def _output(stream: TextIO) -> Output:
    is_terminal = stream.isatty()
    if not is_terminal:
        return Output(stream, _wants_colour(is_terminal), None)
    import shutil

    return Output(stream, _wants_colour(is_terminal), *shutil.get_terminal_size())


def _wants_colour(is_terminal: bool) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal and os.environ.get("TERM") != "dumb"


def prepare_streams() -> None:
    """Escape what the streams cannot encode instead of failing; open those that are closed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # mvc status >&-
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  for good
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def printable(text: str) -> str:
    """Return text with every character escaped that a terminal would not simply show."""
    return _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code in _UNDECODABLE:
        code -= 0xDC00  # how Python keeps a file name's byte that is not UTF-8
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"  # noqa: PLR2004  a byte


def warn(text: str) -> None:
    """Write one warning."""
    err = stderr()
    err.line(f"{err.style('warning:', 'yellow', 'bold')} {printable(text)}")


def say_last(action: Callable[[], None]) -> None:
    """Say something once the command is over."""
    _LAST.append(action)


def end_command(*, wanted: bool) -> None:
    """Say what was left for the end, if that is wanted."""
    while _LAST:
        action = _LAST.pop()
        if wanted:
            action()


def write_json(value: object) -> None:
    """Write a value as JSON to standard output; the shapes are described in docs/json.md."""
    sys.stdout.write(json_text(value) + "\n")


def json_text(value: object) -> str:
    """Return a value as JSON; NaN and infinities, which JSON lacks, become text.

    Two levels are indented, the rest has a line for each item: indents would be a third of the text
    of a large model, and only Python's slow encoder makes them.
    """
    from json import dumps

    def spread(value: object, depth: int) -> str:
        if depth and value and isinstance(value, dict):
            parts = [f"{dumps(key)}: {spread(item, depth - 1)}" for key, item in value.items()]
        elif depth and value and isinstance(value, list):
            parts = [spread(item, depth - 1) for item in value]
        else:
            return dumps(value, allow_nan=False)
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        indent = "\n" + "  " * (_SPREAD - depth)
        return f"{opening}{indent}  {f',{indent}  '.join(parts)}{indent}{closing}"

    return spread(json_ready(value), _SPREAD)


def json_ready(value: object) -> object:
    """Return a value with ``nan``, ``inf`` and ``-inf`` as text and tuples as lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(item) for item in value]
    return value


def pick(value: object, names: str) -> dict[str, Any]:
    """Return attributes of a value for JSON.

    ``to=commit.id`` gives one another name, ``refs(name old)`` picks from what is there: a value,
    each of several, or None.
    """
    fields: dict[str, Any] = {}
    for name, find, inner in _parse_names(names):
        found = find(value)
        if inner and isinstance(found, (list, tuple)):
            fields[name] = [pick(item, inner) for item in found]
        else:
            fields[name] = pick(found, inner) if inner and found is not None else found
    return fields


@lru_cache
def _parse_names(names: str) -> list[tuple[str, Callable[[object], Any], str]]:
    matches = re.finditer(r"(\w+)(?:=([\w.]+))?(?:\(([^)]*)\))?", names)
    return [(match[1], attrgetter(match[2] or match[1]), match[3]) for match in matches]

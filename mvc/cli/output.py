"""Where text goes and what it may look like there.

Results go to standard output, everything else (warnings, errors, progress) to standard error.
Colours appear on a terminal only; ``NO_COLOR`` takes them away, ``FORCE_COLOR`` brings them into a
pipe. Text that came from a repository or a file may hold anything, also the codes that move a
terminal's cursor: it passes through ``printable`` first.
"""

from __future__ import annotations

import io
import math
import os
import re
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable

_CODES = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36",
}  # fmt: skip
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNDECODABLE = range(0xDC80, 0xDD00)


@dataclass(frozen=True, slots=True)
class Output:
    """One of the two standard streams.

    Attributes:
        stream: the stream.
        colour: whether text on it may be coloured.
        width: columns of the terminal behind it; None where there is none.
    """

    stream: TextIO
    colour: bool
    width: int | None

    def line(self, text: str = "") -> None:
        """Write one line."""
        self.stream.write(text + "\n")

    def lines(self, lines: Iterable[str]) -> None:
        """Write many lines at once."""
        self.stream.writelines(f"{line}\n" for line in lines)

    def style(self, text: str, *names: str) -> str:
        """Return text in colours; as it is where the stream shows none."""
        if not self.colour or not text:
            return text
        codes = ";".join(_CODES[name] for name in names)
        return f"\x1b[{codes}m{text}\x1b[0m"


def stdout() -> Output:
    """Return standard output as it is now."""
    return _output(sys.stdout)


def stderr() -> Output:
    """Return standard error as it is now."""
    return _output(sys.stderr)


def _output(stream: TextIO) -> Output:
    is_terminal = stream.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else None
    return Output(stream, _wants_colour(is_terminal), width)


def _wants_colour(is_terminal: bool) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal and os.environ.get("TERM") != "dumb"


def prepare_streams() -> None:
    """Let text that the streams' encoding lacks come out escaped instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def printable(text: str) -> str:
    """Return text with everything escaped that a terminal would obey instead of showing."""
    return _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code in _UNDECODABLE:
        code -= 0xDC00  # a byte that is no UTF-8, as Python carries it in a file name
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"  # noqa: PLR2004  a byte


def warn(text: str) -> None:
    """Write one warning."""
    err = stderr()
    err.line(f"{err.style('warning:', 'yellow', 'bold')} {printable(text)}")


def write_json(value: object) -> None:
    """Write a value as JSON to standard output; the shapes are described in docs/json.md."""
    sys.stdout.write(json_text(value) + "\n")


def json_text(value: object) -> str:
    """Return a value as JSON; numbers that JSON lacks become text."""
    import json

    return json.dumps(json_ready(value), indent=2, allow_nan=False)


def json_ready(value: object) -> object:
    """Return a value with ``nan``, ``inf`` and ``-inf`` as text, tuples and sets as lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(item) for item in value]
    return value

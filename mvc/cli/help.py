"""What ``--help`` shows of a command and of ``mvc``; imported only when someone asks."""

from __future__ import annotations

import shutil
import textwrap
from inspect import cleandoc
from typing import TYPE_CHECKING

from mvc.cli import COMMANDS, NAMES
from mvc.cli.errors import EXIT_CODES
from mvc.cli.parameters import HELP, Line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LEAST_WIDTH, _MOST_WIDTH = 50, 98
_NAMES_WIDTH = 30  # longer ones have a line of their own


def command_help(name: str, command: Callable[..., None]) -> str:
    """Return the help of a command: its usage line, docstring and options."""
    line = Line(command)
    paragraphs = cleandoc(command.__doc__ or "").split("\n\n")
    parts = [_wrap(f"Usage: {usage(name, line)}", "", " " * len(f"Usage: mvc {name} "))]
    parts += [_wrap(paragraph, "  ") for paragraph in paragraphs]
    return (
        "\n\n".join([*parts, _options_text([*option_rows(line), (HELP.shown, HELP.help)])]) + "\n"
    )


def mvc_help(top: Line) -> str:
    """Return the overview: commands by what they are for, and the options of ``mvc`` itself."""
    width = max(map(len, NAMES))
    parts = [
        "Usage: mvc [-C PATH] [--no-pager] COMMAND [ARGS]...",
        _wrap("Git for model parameters: checkpoints in, history, same bytes out."),
    ]
    for purpose, commands in COMMANDS.items():
        rows = (f"  {name:<{width}}  {summary}" for name, summary in commands.items())
        parts.append("\n".join([purpose, *rows]))
    codes = ", ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    last = f'"mvc COMMAND --help" explains a command.\n{_wrap(f"Exit codes: {codes}.")}'
    return "\n\n".join([*parts, _options_text(option_rows(top)), last]) + "\n"


def usage(name: str, line: Line) -> str:
    """Return how a command is called."""
    return " ".join(
        [f"mvc {name} [OPTIONS]", *(place.metavar for place in line.arguments.values())]
    )


def option_rows(line: Line) -> list[tuple[str, str]]:
    """Return (spellings, what it does) of a command's own options."""
    rows = {}
    for _, option in line.options.values():
        has_default = option.kind in (str, int) and option.default not in (None, "")
        about = option.help + (f"  [default: {option.default}]" if has_default else "")
        if option is not HELP:
            rows[option.shown] = about
    return list(rows.items())


def _options_text(rows: list[tuple[str, str]]) -> str:
    return "\n".join(["Options:", *_option_lines(rows)])


def _option_lines(rows: list[tuple[str, str]]) -> Iterator[str]:
    indent = min(max(len(names) for names, _ in rows), _NAMES_WIDTH) + 4
    for names, about in rows:
        first = f"  {names}".ljust(indent)
        if len(first) > indent:
            yield first
            first = " " * indent
        yield _wrap(about, first, " " * indent)


def _wrap(words: str, first: str = "", rest: str | None = None) -> str:
    columns = shutil.get_terminal_size().columns
    width = min(max(columns - 2, _LEAST_WIDTH), _MOST_WIDTH)
    return textwrap.fill(
        words, width, initial_indent=first, subsequent_indent=first if rest is None else rest
    )

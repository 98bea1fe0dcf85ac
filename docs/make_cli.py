"""Writes the reference part of docs/cli.md from the commands: ``python docs/make_cli.py``.

A test compares the page with what this makes, so the page cannot become outdated.
"""

from __future__ import annotations

from inspect import cleandoc
from pathlib import Path

from mvc.cli import COMMANDS
from mvc.cli.help import option_rows, usage
from mvc.cli.parameters import Line, load_command

PAGE = Path(__file__).parent / "cli.md"
MARK = "<!-- From here on written by docs/make_cli.py. -->\n"


def reference() -> str:
    """Return the reference of all commands as Markdown."""
    parts: list[str] = []
    for purpose, commands in COMMANDS.items():
        parts.append(f"## {purpose[0].upper()}{purpose[1:]}\n")
        parts += map(_section, commands)
    return "\n".join(parts)


def _section(name: str) -> str:
    command = load_command(name)
    line, description = Line(command), cleandoc(command.__doc__ or "")
    rows = [
        "| `{}` | {} |".format(*(cell.replace("|", "\\|") for cell in row))
        for row in option_rows(line)
    ]
    table = "\n".join(["| option | what it does |", "|---|---|", *rows])
    return f"### mvc {name}\n\n```\n{usage(name, line)}\n```\n\n{description}\n\n{table}\n"


def page() -> str:
    """Return the whole page: its introduction as it is, and the reference."""
    introduction = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    return f"{introduction}{MARK}\n{reference()}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

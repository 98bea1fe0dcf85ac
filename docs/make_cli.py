"""Writes the reference part of docs/cli.md from the commands: ``python docs/make_cli.py``.

A test compares the page with what this makes, so the page cannot become outdated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.main import get_command

from mvc.cli import COMMANDS
from mvc.cli.group import app

PAGE = Path(__file__).parent / "cli.md"
MARK = "<!-- From here on written by docs/make_cli.py. -->\n"


def reference() -> str:
    """Return the reference of all commands as Markdown."""
    group: Any = get_command(app)
    top = group.make_context("mvc", ["log", "-h"], resilient_parsing=True)
    parts: list[str] = []
    for purpose, commands in COMMANDS.items():
        parts.append(f"## {purpose[0].upper()}{purpose[1:]}\n")
        for name in commands:
            command = group.get_command(top, name)
            context = command.make_context(name, [], parent=top, resilient_parsing=True)
            parts.append(_section(name, command, context))
    return "\n".join(parts)


def _section(name: str, command: Any, context: Any) -> str:
    usage = " ".join([f"mvc {name}", *command.collect_usage_pieces(context)])
    rows = [
        "| `{}` | {} |".format(*(cell.replace("|", "\\|") for cell in record))
        for parameter in command.get_params(context)
        if parameter.param_type_name == "option" and parameter.name != "help"
        and (record := parameter.get_help_record(context))
    ]  # fmt: skip
    table = "\n".join(["| option | what it does |", "|---|---|", *rows])
    return f"### mvc {name}\n\n```\n{usage}\n```\n\n{command.help.strip()}\n\n{table}\n"


def page() -> str:
    """Return the whole page: its introduction as it is, and the reference."""
    introduction = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    return f"{introduction}{MARK}\n{reference()}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

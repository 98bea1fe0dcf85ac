"""The group of commands: its table is true, and typer still has what it replaces."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

from typer import core

from mvc.cli import NAMES, commands, missing
from mvc.cli.parameters import load_command

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_of_commands_is_true():
    folder = Path(commands.__file__).parent
    assert sorted([*(name.replace("-", "_") for name in NAMES), "__init__"]) == sorted(
        path.stem for path in folder.glob("*.py")
    )
    assert len(NAMES) == len(set(NAMES))
    for name in NAMES:
        assert callable(load_command(name))


def test_the_pinned_typer_has_what_the_group_replaces():
    """Without this method every command would import pydantic; look at group.py for a new typer."""
    assert metadata.version("typer").startswith("0.29.")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "typer>=0.29,<0.30" in project["dependencies"]
    assert callable(core.TyperOption.get_runtime_param)
    assert callable(core.TyperArgument.get_runtime_param)


def test_no_hint_for_a_mistyped_command_names_one_that_overwrites():
    words = [*missing._INSTEAD, "resett", "restor", "rmm", "mvv", "remot", "prun", "gcc", "rolback"]
    for word in words:
        hint = missing.hint_instead(word)
        assert not any(f"'{name}'" in hint or f'"mvc {name} ' in hint for name in _OVERWRITE), hint
        assert word not in NAMES


_OVERWRITE = ("restore", "reset", "rm", "mv", "gc")

"""Command lines that are read without typer mean what typer says they mean."""

from __future__ import annotations

import importlib

import pytest
from typer.main import get_command

from mvc.cli import NAMES
from mvc.cli.group import app
from mvc.cli.parameters import read_line

PLAIN = [
    "status", "status -s -b", "status --no-untracked --json", "log", "log -5 --oneline", "log -n 5",
    "log -n5 HEAD~2 -- a b", "log --max-count=3 main a/b", "log -- a", "branch", "branch new main",
    "branch -d old", "tag v1 -m text", "tag -mtext v1", "commit -m one -m two -q", "commit -am text",
    "commit -a --message=x=y --step +12 --metric loss=1 --metric acc=2 --no-delta", "commit a b -m x",
    "diff --name-only HEAD~1 HEAD -- x", "add . -q --no-progress", "add a b", "checkout -",
    "checkout -b new HEAD~1 -f", "checkout - -- a", "restore -SW -s HEAD a b", "reset --hard HEAD",
    "switch -", "switch -q main", "config user.name", "config user.name Ada", "export HEAD m.st -o x",
    "mv a b", "rm --cached -r a", "cat HEAD m.st w", "du", "fsck --data", "ls HEAD", "init", "init x",
    "gc -n --grace 7d", "prune --keep-last 3 --keep-every=100 -n", "undo", "rollback HEAD~2", "doctor",
]  # fmt: skip
FOR_TYPER = [
    "status --help", "status -h", "status --shrot", "status x", "status --json=yes", "log -n", "log -x",
    "log -n many", "log --max-count= a", "commit -m", "commit --step=1.5 -m x", "commit -m -x",
    "restore", "restore -S", "mv", "mv -- a", "config a b c", "add -- a", "branch -3", "cat",
    "switch -c", "cat", "commit -m x --step 1234567890123456789",
]  # fmt: skip


def _command(line):
    name, *words = line.split(" ")
    return name, words, getattr(importlib.import_module(f"mvc.cli.commands.{name}"), name)


@pytest.mark.parametrize("line", PLAIN)
def test_a_plain_line_is_read_as_typer_reads_it(line):
    name, words, function = _command(line)
    group = get_command(app)
    top = group.make_context("mvc", ["log", "-h"], resilient_parsing=True)
    context = group.get_command(top, name).make_context(name, list(words), parent=top)
    expected = {key: value for key, value in context.params.items() if key != "help"}
    found = read_line(function, words)
    assert found == expected
    assert {key: type(value) for key, value in found.items()} == {
        key: type(value) for key, value in expected.items()
    }


@pytest.mark.parametrize("line", FOR_TYPER)
def test_help_mistakes_and_rare_spellings_are_left_to_typer(line):
    _, words, function = _command(line)
    assert read_line(function, words) is None


@pytest.mark.parametrize("name", NAMES)
def test_every_option_of_every_command_is_known(name):
    """A parameter of another kind would silently send every line of its command to typer."""
    group = get_command(app)
    top = group.make_context("mvc", ["log", "-h"], resilient_parsing=True)
    command, module = group.get_command(top, name), name.replace("-", "_")
    function = getattr(importlib.import_module(f"mvc.cli.commands.{module}"), module)
    options = [one for one in command.params if one.param_type_name == "option"]
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    words = ["1" for one in arguments if one.required]
    needed = [word for one in options if one.required for word in (one.opts[0], "1")]
    for option in options:
        for spelling in (*option.opts, *option.secondary_opts):
            if option.name != "help":
                value = [] if option.is_flag else ["1"]
                assert read_line(function, [spelling, *value, *needed, *words]) is not None, (
                    spelling
                )

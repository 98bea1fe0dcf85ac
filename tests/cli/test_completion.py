"""TAB in bash, zsh and fish, and what it is told."""

import os
import shutil
import subprocess
import sys

import pytest

from mvc.cli import COMMANDS
from support.screen import Screen

FILES = ":"


def told(shell, *words):
    return [line.split("\t")[0] for line in shell.ok("completion", "--", *words).lines]


def test_what_could_stand_next(shell):
    for line, expected in [
        ("comm", ["commit"]),
        ("-C . stat", ["status"]),
        ("-C ", [FILES]),
        ("--no", ["--no-pager"]),
        ("help re", ["reflog", "remote", "restore", "reset", "revert", "repack"]),
        ("ci", ["ci"]),
        ("ci --am", ["--amend"]),
        ("log --one", ["--oneline"]),
        ("log --no-d", ["--no-decorate"]),
        ("log --sort ", ["loss", "acc"]),
        ("commit --metric ", []),
        ("commit -am ", []),
        ("commit -m x ", [FILES]),
        ("commit -F ", [FILES]),
        ("add ", [FILES]),
        ("switch ", ["main", "side"]),
        ("switch s", ["side"]),
        ("rollback --branch m", ["main"]),
        ("tag new ", ["main", "side", "HEAD", "v1"]),
        ("restore --source=v", ["--source=v1"]),
        ("log main..s", [FILES, "main..side"]),
        ("log v1 -- ", [FILES]),
        ("export v1 ", [FILES]),
        ("du --by t", ["tag", "tensor"]),
        ("config core.p", ["core.pager"]),
        ("completion f", ["fish"]),
        ("nonsense ", None),
    ]:
        shell.ok("config", "--global", "alias.ci", "commit -a")
        *before, word = line.split(" ")
        if expected is None:
            assert shell("completion", "--", *before, word).code == 2
        else:
            assert told(shell, *before, word) == expected


def test_remotes_and_what_is_known_of_them(shell):
    shell.ok("remote", "add", "origin", "../store")
    shell.ok("push", "-q", "--all")
    assert told(shell, "push", "") == ["origin"]
    assert told(shell, "push", "origin", "s") == ["side"]
    assert told(shell, "fetch", "-p", "o") == ["origin"]
    assert told(shell, "remote", "sho") == ["show"]
    assert told(shell, "remote", "show", "") == ["origin"]
    assert told(shell, "scale", "sta") == ["status"]
    assert told(shell, "scale", "gate", "ma") == ["main"]
    assert told(shell, "show", "origin/") == [FILES, "origin/main", "origin/side"]
    assert told(shell, "fsck", "--remote", "") == ["origin"]


def test_what_it_is_is_told_too(shell):
    assert "side\tanother config" in shell.ok("completion", "--", "switch", "").lines
    assert {"text": "--oneline"}.items() <= shell.json("completion", "--", "log", "--o")[0].items()
    commands = [name for group in COMMANDS.values() for name in group]
    assert told(shell, "") == [*commands, "help"]


def test_a_shell_must_be_named(shell):
    for line in ([], ["tcsh"], ["bash", "zsh"]):
        answer = shell("completion", *line)
        assert (answer.code, answer.error) == (2, "name one shell: bash, zsh or fish")


@pytest.fixture
def installed(shell, tmp_path):
    """A shell in which ``mvc`` can be called, and a file with a space in its name added."""
    command = tmp_path / "mvc"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m mvc "$@"\n')
    command.chmod(0o755)
    shell.environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    (shell.folder / "my notes.txt").touch()
    return shell


def run(shell, *command):
    done = subprocess.run(
        command, cwd=shell.folder, env={**os.environ, **shell.environment},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_bash(installed):
    for line, expected in [
        ("mvc comm", "commit"),
        ("mvc du --by=co", "commit"),  # bash has split the word at the sign
        ("mvc log main..v", "main..v1"),
        ("mvc add my", "my notes.txt"),
        ("mvc add my\\ no", "my notes.txt"),
        ("mvc commit --file=my", "my notes.txt"),
        ("mvc show main@", ""),
    ]:
        script = f"""
            eval "$(mvc completion bash)"
            COMP_LINE='{line}' COMP_POINT={len(line)}
            _mvc
            printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        assert run(installed, "bash", "--norc", "-c", script) == [expected]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish(installed):
    script = "mvc completion fish | source; complete -C 'mvc switch s'; complete -C 'mvc add my'"
    found = run(installed, "fish", "--no-config", "-c", script)
    assert found == ["side\tanother config", "my notes.txt"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh(installed):
    with Screen(installed, "-f", "-i", program=["zsh"]) as screen:
        screen.press(b'PS1="ready> "; eval "$(mvc completion zsh)"\n')
        screen.wait_for("Jready> ")
        screen.press(b"mvc switch s\t\n")
        screen.wait_for("Switched to branch 'side'")
        screen.press(b"mvc add my\t\n")
        screen.wait_for("added 1 file")
        screen.press(b"exit\n")
        assert screen.end() == 0

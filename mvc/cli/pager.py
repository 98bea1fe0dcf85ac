"""The user's pager on a terminal, found and run as Git does; imported only when one is wanted."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.workspace.settings import read_user_settings

if TYPE_CHECKING:
    from collections.abc import Callable

_DEFAULT = "less"
_FOR_LESS = {"LESS": "FRX", "LV": "-c"}
"""Quit if all fits on the screen, show colours, and leave the text there."""
_PLAIN_WORD = re.compile(r"\s*([\w./+-]+)(\s|$)")


@dataclass(frozen=True, slots=True)
class Pager:
    """A pager that runs; standard output goes to it until it is waited for."""

    process: int
    terminal: int

    def wait(self) -> None:
        """Hand over the rest, wait until the user has quit, and take the terminal back."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pager's from here on
        try:
            with suppress(BrokenPipeError):
                sys.stdout.flush()
            _replace(1, os.open(os.devnull, os.O_WRONLY))  # closes the pipe
            sys.stdout.flush()  # what a pager that was quit early did not take goes nowhere
            os.waitpid(self.process, 0)
        finally:
            _replace(1, self.terminal)
            signal.signal(signal.SIGINT, before)


def start_pager(warn: Callable[[str], None]) -> Pager | None:
    """Send standard output to the user's pager; None if there is none to be had."""
    command = _find_pager(warn)
    if command is None:
        return None
    reading, writing = os.pipe()
    # Not with the subprocess module, whose import takes longer than the start of a pager.
    process = os.posix_spawn(
        "/bin/sh",
        ["sh", "-c", command],
        {**_FOR_LESS, **os.environ},
        file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0)],
    )
    os.close(reading)
    sys.stdout.flush()
    terminal = os.dup(1)
    _replace(1, writing)
    return Pager(process, terminal)


def _replace(descriptor: int, by: int) -> None:
    os.dup2(by, descriptor)
    os.close(by)


def _find_pager(warn: Callable[[str], None]) -> str | None:
    """Return the user's pager as a shell command."""
    settings, variables = read_user_settings(), os.environ
    named = (variables.get("MVC_PAGER"), settings.get("core.pager"), variables.get("PAGER"))
    chosen = next((one for one in named if one is not None), _DEFAULT).strip()
    if chosen in ("", "cat"):
        return None
    word = _PLAIN_WORD.match(chosen)
    if word is None or shutil.which(word[1]):
        return chosen
    if chosen != _DEFAULT:
        warn(f"pager {chosen!r} was not found")
    return None

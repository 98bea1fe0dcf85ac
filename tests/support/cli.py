"""Runs command lines in this process: as a user would, only without the price of a new one."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from mvc.cli.main import run

IDENTITY = {
    "GIT_AUTHOR_NAME": "Ada Lovelace",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
}
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


@dataclass
class Answer:
    """What one command line gave."""

    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The line that begins with ``error:``, without that word; fails where there is none."""
        (line,) = [line for line in self.err.splitlines() if line.startswith("error: ")]
        return line.removeprefix("error: ")

    @property
    def hint(self) -> str:
        lines = [line for line in self.err.splitlines() if line.startswith("hint: ")]
        return lines[0].removeprefix("hint: ") if lines else ""


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@dataclass
class Shell:
    """A folder to run ``mvc`` in."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __call__(self, *arguments: str, folder: str | Path = ".", terminal: bool = False) -> Answer:
        """Run one command line in ``folder`` below the shell's; ``terminal`` plays a terminal."""
        wrapper = _Terminal if terminal else io.TextIOWrapper
        out, err = (wrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        before, variables = Path.cwd(), dict(os.environ)
        os.chdir(self.folder / folder)
        os.environ.update(self.environment)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = run(list(arguments))
        finally:
            os.chdir(before)
            os.environ.clear()
            os.environ.update(variables)
        for stream in (out, err):
            stream.flush()
        return Answer(code, out.buffer.getvalue(), err.buffer.getvalue().decode())

    def ok(self, *arguments: str, folder: str | Path = ".", terminal: bool = False) -> Answer:
        """Run one command line that must succeed."""
        answer = self(*arguments, folder=folder, terminal=terminal)
        assert answer.code == 0, (arguments, answer)
        return answer

    def json(self, *arguments: str, code: int = 0):
        """Run one command line with ``--json``; return what it printed."""
        at = list(arguments).index("--") if "--" in arguments else len(arguments)
        answer = self(*arguments[:at], "--json", *arguments[at:])
        assert answer.code == code, (arguments, answer)
        return answer.json

    def process(self, *arguments: str, **options) -> subprocess.CompletedProcess:
        """Run one command line in a process of its own."""
        return subprocess.run(
            [sys.executable, "-m", "mvc", *arguments],
            cwd=self.folder,
            env={**os.environ, **self.environment},
            capture_output=True,
            check=False,
            timeout=600,
            **options,
        )


def plain(text: str) -> str:
    """Return text without colours."""
    return _COLOUR.sub("", text)

"""Runs one command line on a terminal: what it shows, keys that are pressed, how it ends."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time


class Screen:
    """One command on a pseudo terminal; ``program`` is ``mvc`` unless it is another one."""

    def __init__(
        self, shell, *arguments, columns=80, rows=24, program=(sys.executable, "-m", "mvc")
    ):
        self._main, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(inner)
        self._inner = inner
        environment = {**os.environ, **shell.environment}
        del environment["COLUMNS"]
        self.process = subprocess.Popen(
            [*program, *arguments],
            cwd=shell.folder, env=environment, stdin=inner, stdout=inner, stderr=inner,
            start_new_session=True,
        )  # fmt: skip
        self.text = ""

    def wait_for(self, text, deadline_s=300):
        end = time.monotonic() + deadline_s
        while text not in self.text:
            assert time.monotonic() < end, self.text
            if select.select([self._main], [], [], 1)[0]:
                self.text += os.read(self._main, 65536).decode(errors="replace")

    def press(self, keys):
        os.write(self._main, keys)

    def end(self):
        """Wait until it ends; return its exit code."""
        while self.process.poll() is None:
            if select.select([self._main], [], [], 0.1)[0]:
                self.text += os.read(self._main, 65536).decode(errors="replace")
        while select.select([self._main], [], [], 0)[0]:  # what it wrote last
            self.text += os.read(self._main, 65536).decode(errors="replace")
        assert termios.tcgetattr(self._inner) == self.before  # the terminal is as it was
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._main)
        os.close(self._inner)

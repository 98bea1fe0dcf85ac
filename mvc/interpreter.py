"""Modules of ours in a Python process of their own."""

from __future__ import annotations

import sys

_RUN = (
    "import runpy, sys; end = 2 + int(sys.argv[1]); "
    "sys.path[:] = filter(None, sys.argv[2:end]); del sys.argv[1:end]; "
    "runpy.run_module({!r}, run_name='__main__', alter_sys=True)"
)


def module_command(module: str, *arguments: str) -> list[str]:
    """Return a command that runs a module, and finds all others where this process does.

    The path is set late: Python itself must not start with a types.py of the current folder, or an
    encodings.py beside the user's script.
    """
    path = sys.path
    return [sys.executable, "-P", "-c", _RUN.format(module), str(len(path)), *path, *arguments]

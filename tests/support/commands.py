"""Programs in processes of their own, as users start them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_python(*arguments, folder=None, code=0, **environment):
    """Run Python on some arguments, in a folder, with the packages of this tree; return what ended.

    Fails where the exit code is not the expected one; None is any.
    """
    paths = os.pathsep.join([str(ROOT), str(ROOT / "hooks")])
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done

"""What takes long to make is made once for all workers of a test run."""

from __future__ import annotations

import fcntl
import os
import shutil


def make_once(tmp_path_factory, name, make):
    """Return a folder that ``make`` filled, in this process or in another worker's."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder, done = root / name, root / f"{name}.done"
    with open(root / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder

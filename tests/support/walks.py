"""Random walks over all that can be done to a repository, each step checked against a model of it."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def fresh_folder():
    """Yield a folder in memory, where syncing costs nothing."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="mvc-test-", dir=memory))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def walk(machine, steps, names, random):
    """Call methods of a machine with arguments drawn from ``steps``, and its ``check`` after each.

    Args:
        machine: has ``can(name)``, whether there is something to do it with.
        steps: name of a method → name of an argument → what it may be.
        names: of the methods to call, in order.
        random: draws the arguments.
    """
    for name in names:
        if machine.can(name):
            arguments = {key: random.choice(values) for key, values in steps[name].items()}
            machine.trail.append((name, arguments))
            getattr(machine, name)(**arguments)
            machine.check()

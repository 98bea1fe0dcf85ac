"""Writers that begin at once: forked from a process that has everything imported.

A short run is over before its writer has imported what it needs, which costs more than all that it writes. So
where a test is about the run, its writers are forked (``support.forking``), and only then run the command that
would have started them. From there on all is as ever: a process with a group of its own, which has of the run
what it was handed and nothing else. ``real_writers`` are for tests of what a start or an end has to do with its
parent.

The process that forks lives as long as the fixture that started it; ``VARIABLE`` leads the children of the
tests to it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import signal
import subprocess
import sys
from types import SimpleNamespace

from mvc.training import CommitRequest, RunStore
from support.forking import Forked, forking, import_for

VARIABLE = "MVC_TEST_WRITERS"


@contextlib.contextmanager
def forked_writers():
    """Have the writers of this process, and of zygotes that it starts, forked within the block."""
    if sys.platform != "linux":  # elsewhere sockets like these do not exist
        yield
        return
    with forking("support.writers") as path:
        os.environ[VARIABLE] = path
        use_forked()
        try:
            yield
        finally:
            use_real()
            del os.environ[VARIABLE]


def use_forked():
    """Have the writers of this process forked, while there is a process to fork them."""
    from mvc_hooks.writer import process

    process.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": _start})


def use_real():
    """Have the writers of this process started as those of users are."""
    from mvc_hooks.writer import process

    process.subprocess = subprocess


def _start(command, *, pass_fds, stderr, process_group, **options):
    assert process_group == 0
    if VARIABLE not in os.environ:
        places = {"pass_fds": pass_fds, "stderr": stderr, "process_group": process_group}
        return subprocess.Popen(command, **places, **options)
    descriptors = {2: stderr.fileno(), **{one: one for one in pass_fds}}
    code = command[command.index("-c") :]
    return Forked(os.environ[VARIABLE], code, descriptors, dict(os.environ))


# In the process that forks.


def prepare():
    """Import all that a writer needs."""
    from mvc import operations
    from mvc_hooks.writer.messages import GROUP_SIGNALS

    # As in the process of a run while it starts a writer, which inherits that.
    signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
    for module in pkgutil.walk_packages(operations.__path__, f"{operations.__name__}."):
        importlib.import_module(module.name)
    import_for(_commit)


def _commit(folder):
    import numpy as np

    import mvc
    import mvc.training

    repo = mvc.Repo.init(folder)
    repo.identity = mvc.Identity("Test", "test@example.org")
    layout = mvc.training.layout_state({"a": np.arange(9.0), "b": [1, "x"]})
    image = memoryview(bytearray(layout.size_bytes))
    for part in layout.parts:
        part.copy_into(image)
    files = {one.path: image[one.offset :][: one.size_bytes] for one in layout.files}
    for step in (1, 2):
        done = RunStore(repo).commit_image(
            files, CommitRequest(message="x", step=step, metrics={"loss": 1.0})
        )
        repo.runs.mark_healthy(done.commit)

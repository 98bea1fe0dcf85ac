"""One call of the operating system fails, or the user presses Ctrl-C in its place; then all is well.

Unlike with a loss of power everything that cleans up runs, and the process goes on.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading

from mvc.errors import StorageError

FAULTS = {
    "io-error": OSError(errno.EIO, "Input/output error"),
    "ctrl-c": KeyboardInterrupt(),
}
_CALLS = (
    *("fsync", "rename", "replace", "unlink", "mkdir", "rmdir", "symlink"),
    *("write", "writev", "pwrite", "truncate", "ftruncate"),
)


class OneFault:
    """Raises ``error`` in place of call number ``at``, counted over all that change the disk."""

    def __init__(self, error=None, at=-1):
        self.error = error
        self.at = at
        self.calls = 0
        self.name = None
        self._lock = threading.Lock()
        self._originals = {}

    def __enter__(self):
        for name in _CALLS:
            self._patch(name, lambda *args, **kwargs: True)
        self._patch("open", _creates)
        return self

    def __exit__(self, *exc_info):
        for name, original in self._originals.items():
            setattr(os, name, original)
        return False

    def _patch(self, name, counts):
        original = self._originals[name] = getattr(os, name)

        def call(*args, **kwargs):
            if counts(*args, **kwargs):
                self._count(name)
            return original(*args, **kwargs)

        setattr(os, name, call)

    def _count(self, name):
        with self._lock:
            self.calls += 1
            if self.calls - 1 == self.at:
                self.name = name
                raise self.error


def _creates(path, flags, *args, **kwargs):
    return bool(flags & os.O_CREAT)


def fail_calls(verb, origin, folder, fault, stride):
    """Run a verb on copies of a folder, with a fault at one call after another; yield (where, the copy)."""
    work = folder / "work"
    shutil.copytree(origin, work, symlinks=True)
    with OneFault() as counted:
        verb(work)
    shutil.rmtree(work)
    assert counted.calls > 5
    for step in range(0, counted.calls, stride):
        shutil.copytree(origin, work, symlinks=True)
        with OneFault(FAULTS[fault], step) as faulty:
            try:
                verb(work)
            except KeyboardInterrupt:
                assert fault == "ctrl-c"
            except StorageError as error:
                assert fault == "io-error"
                assert "input/output error" in str(error)
        yield f"{faulty.name}, call {step} of {counted.calls}", work
        shutil.rmtree(work)

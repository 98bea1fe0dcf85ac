"""One checkpointer per branch: a lock that the run and its writer hold together.

The lock is the kernel's (``flock``), on a descriptor that the writer inherits: it is free when both
processes are gone, whatever killed them. A writer that outlives its run finishes its commit; a run
that resumes waits for that.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import time
import urllib.parse
from typing import TYPE_CHECKING

from torch import distributed

from mvc import ConflictError, StorageError
from mvc.training import is_process_alive, this_process
from mvc_hooks.snapshot.memory import keep_from_children

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger("mvc_hooks")

_PAUSE_S = 0.05
_FOLDER = "runs"
_HOLDER_BYTES = 512


class BranchLock:
    """The lock of one branch; the writer inherits its descriptor."""

    def __init__(self, git_dir: Path, branch: str, *, patience_s: float = 600.0) -> None:
        """Take it; wait so long for a writer that outlived its run, then raise ConflictError."""
        folder = git_dir / _FOLDER
        path = folder / f"{urllib.parse.quote(branch, safe='')}.lock"
        try:
            folder.mkdir(exist_ok=True)
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageError(f"cannot open {path}: {error.strerror}") from error
        try:
            self._take(branch, patience_s)
        except OSError as error:
            self.release()
            raise StorageError(f"cannot lock {path}: {error.strerror}") from error
        except BaseException:
            self.release()
            raise
        keep_from_children(self)

    def _take(self, branch: str, patience_s: float) -> None:
        deadline_s = time.monotonic() + patience_s
        has_told = False
        while True:
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = _read_holder(self.descriptor)
            if _may_run(holder) or time.monotonic() > deadline_s:
                raise ConflictError(
                    f"branch {branch!r} is being written by {_name(holder)}", hint=_advise()
                )
            if not has_told:
                has_told = True
                log.warning("waiting for the last commit of %s, which has ended", _name(holder))
            time.sleep(_PAUSE_S)
        # One write of a fixed length: a reader sees the old holder or this one, never a mixture.
        text = json.dumps(this_process()).encode().ljust(_HOLDER_BYTES)
        os.pwrite(self.descriptor, text, 0)

    def release(self) -> None:
        """Close it; the writer's share ends with the writer."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    drop_in_child = release  # a forked child would hold the lock as long as it lives


def _advise() -> str:
    size = os.environ.get("WORLD_SIZE", "")
    if (
        size.isdigit()
        and int(size) > 1
        and not (distributed.is_available() and distributed.is_initialized())
    ):
        return (
            f"this is one of {size} processes (WORLD_SIZE) that do not know each other yet: call "
            "torch.distributed.init_process_group() before the checkpointer is made"
        )
    return "one checkpointer writes a branch: stop that run, or pass branch=..."


def _read_holder(descriptor: int) -> dict[str, object]:
    try:
        holder = json.loads(os.pread(descriptor, _HOLDER_BYTES, 0))
    except (ValueError, RecursionError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _may_run(holder: dict[str, object]) -> bool:
    """Return whether the run (not its writer) may be alive; on another host it may."""
    pid, host, began = holder.get("pid"), holder.get("host"), holder.get("began")
    if type(pid) is not int or pid < 1 or not isinstance(host, str):
        return True
    return is_process_alive(pid, host, began if isinstance(began, str) else "") is not False


def _name(holder: dict[str, object]) -> str:
    pid, host = holder.get("pid"), holder.get("host")
    if type(pid) is not int or not isinstance(host, str):
        return "another process"
    here = " (this process)" if pid == os.getpid() and host == socket.gethostname() else ""
    return f"process {pid} on {host}{here}"

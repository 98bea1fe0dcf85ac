"""One checkpointer per branch: a lock that the run and its writer hold together.

The lock is the kernel's (``flock``), on a descriptor that the writer inherits, so it is free when
both are gone, whatever killed them. A writer that outlives its run finishes a commit; whoever
resumes the run waits for that.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import urllib.parse
from typing import TYPE_CHECKING

from mvc import ConflictError, StorageError
from mvc_hooks.forked import keep_from_children

if TYPE_CHECKING:
    from pathlib import Path

_PAUSE_S = 0.05
_FOLDER = "runs"
_HOLDER_BYTES = 512
_STATE, _BEGAN = 0, 19  # fields behind the name in /proc/PID/stat
_GONE = ("Z", "X", "x")


class BranchLock:
    """The lock of one branch.

    Attributes:
        descriptor: for the writer to inherit.
    """

    def __init__(self, git_dir: Path, branch: str, *, patience_s: float = 60.0) -> None:
        """Take it.

        Args:
            git_dir: of the repository.
            branch: which one.
            patience_s: how long a writer that outlived its run is waited for.

        Raises:
            ConflictError: another run has it.
            StorageError: the machine refused.
        """
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
        while not self._try():
            holder = self._read_holder()
            if _is_running(holder) or time.monotonic() > deadline_s:
                raise ConflictError(
                    f"branch {branch!r} is being written by {_name(holder)}",
                    hint="one checkpointer writes a branch: stop that run, or pass branch=...",
                )
            time.sleep(_PAUSE_S)
        pid = os.getpid()
        holder = {"pid": pid, "host": socket.gethostname(), "began": _look(pid)[1]}
        # One write of one length: whoever reads sees the one before or this one, and no mixture.
        os.pwrite(self.descriptor, json.dumps(holder).encode().ljust(_HOLDER_BYTES), 0)

    def _try(self) -> bool:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _read_holder(self) -> dict[str, object]:
        try:
            holder = json.loads(os.pread(self.descriptor, _HOLDER_BYTES, 0))
        except (ValueError, RecursionError):
            return {}
        return holder if isinstance(holder, dict) else {}

    def release(self) -> None:
        """Let go; the writer's share ends with the writer."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def drop_in_child(self) -> None:
        """Let go of it in a forked child, which would hold it as long as it lives."""
        self.release()


def _is_running(holder: dict[str, object]) -> bool:
    """Tell whether the run (not its writer) is alive; on another host, nobody can.

    A process id alone does not say so: ids are used again, and a killed process that nobody waited
    for keeps its own.
    """
    pid, began = holder.get("pid"), holder.get("began")
    if type(pid) is not int or pid < 1 or holder.get("host") != socket.gethostname():
        return True
    state, now_began = _look(pid)
    if state:
        return state not in _GONE and (not began or began == now_began)
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _look(pid: int) -> tuple[str, str]:
    """Return state and beginning of a process, both empty where the system tells nothing."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read(4096).rpartition(b")")[2].split()
        return fields[_STATE].decode(), fields[_BEGAN].decode()
    except (OSError, IndexError, ValueError):
        return "", ""


def _name(holder: dict[str, object]) -> str:
    pid, host = holder.get("pid"), holder.get("host")
    if type(pid) is not int or not isinstance(host, str):
        return "another process"
    here = " (this process)" if pid == os.getpid() and host == socket.gethostname() else ""
    return f"process {pid} on {host}{here}"

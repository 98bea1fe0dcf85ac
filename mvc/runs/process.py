"""Whether the process that wrote something is still there.

A process id alone is not enough: ids are used again, and a killed process that was not waited for
keeps its own. Linux also says when a process began, in clock ticks since the machine started; both
together identify one process.
"""

from __future__ import annotations

import os
import platform

_STATE, _BEGAN = 0, 19  # fields after the name in /proc/PID/stat
_GONE = ("Z", "X", "x")


def this_process() -> dict[str, object]:
    """Return what ``is_process_alive`` needs to know of this process, as fields of a record."""
    return {"pid": os.getpid(), "host": platform.node(), "began": _read_stat(os.getpid())[1]}


def is_process_alive(pid: int | None, host: str, began: str) -> bool | None:
    """Return whether a process exists; None if that is unknown: it is on another machine.

    Args:
        pid: its id, if known.
        host: name of its machine.
        began: when it began, as ``this_process`` writes it; empty if unknown.
    """
    if pid is None or host != platform.node():
        return None
    state, now_began = _read_stat(pid)
    if state:
        return state not in _GONE and began in ("", now_began)
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _read_stat(pid: int) -> tuple[str, str]:
    """Return state and beginning of a process, both empty if the system does not say."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read(4096).rpartition(b")")[2].split()
        return fields[_STATE].decode(), fields[_BEGAN].decode()
    except (OSError, IndexError, ValueError):
        return "", ""

"""Whether the process that wrote a feed is still there.

A process id alone is not enough: ids are used again. Linux tells when a process began, in clock
ticks since the machine started, and both together are one process.
"""

from __future__ import annotations

import os
import platform

_STATE, _BEGAN = 0, 19  # fields behind the name in /proc/PID/stat
_GONE = ("Z", "X", "x")


def this_process() -> dict[str, object]:
    """Return what ``is_alive`` needs to know of this process, as fields of a record."""
    return {"pid": os.getpid(), "host": platform.node(), "began": _look(os.getpid())[1]}


def is_alive(pid: int | None, host: str, began: str) -> bool | None:
    """Tell whether a process exists.

    Args:
        pid: its id; None where nobody knows.
        host: name of its machine.
        began: when it began, as ``this_process`` writes it; empty where nobody knows.

    Returns:
        None where that cannot be told: it is on another machine.
    """
    if pid is None or host != platform.node():
        return None
    state, now_began = _look(pid)
    if not state:
        return _answers(pid)
    return state not in _GONE and began in ("", now_began)


def _look(pid: int) -> tuple[str, str]:
    """Return state and beginning of a process, both empty where the kernel tells nothing."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read(4096).rpartition(b")")[2].split()
        return fields[_STATE].decode(), fields[_BEGAN].decode()
    except (OSError, IndexError, ValueError):
        return "", ""


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True

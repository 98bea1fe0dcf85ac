"""How much memory is free.

The kernel promises more memory than it has, and kills a process when the pages are used. So a
snapshot that does not fit has to be refused before it is allocated.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_OWN_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def measure_room() -> int | None:
    """Return the bytes that machine and control group of this process have left, if known."""
    rooms = [room for room in (_machine_room(), _group_room()) if room is not None]
    return min(rooms, default=None)


def _machine_room() -> int | None:
    found = _read_numbers(_MEMINFO)
    if "MemAvailable:" not in found:
        return None
    return (found["MemAvailable:"] + found.get("SwapFree:", 0)) * 1024


def _group_room() -> int | None:
    """Return what is left of the limit of this process's own group (cgroup v2)."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        line = next(one for one in _OWN_GROUP.read_text().split("\n") if one.startswith("0::"))
        group = _GROUPS / line[3:].lstrip("/")
        limit = int((group / "memory.max").read_text())  # fails for "max", which means no limit
        used = int((group / "memory.current").read_text())
        cache = _read_numbers(group / "memory.stat")
        dropped = cache.get("inactive_file", 0) + cache.get("active_file", 0)
        return max(0, limit - used + dropped)
    return None


def _read_numbers(path: Path) -> dict[str, int]:
    """Return name → number of a file with such lines."""
    found = {}
    with contextlib.suppress(OSError):
        for line in path.read_text().split("\n"):
            words = line.split()
            if len(words) > 1 and words[1].isdigit():
                found[words[0]] = int(words[1])
    return found

"""Runs commands one after the other and says what each cost; a process of its own, kept tiny.

The kernel counts the memory of the process that forks as the child's peak until the child has
replaced it, so the process that starts a measured command must be small. Hence this script: it imports only
the standard library's smallest, started with ``python -I -S``. It reads one JSON request from its
standard input and writes one JSON answer.
"""

import ctypes
import json
import os
import sys
import time


def sync_file_system(folder):
    """Write everything dirty on the file system of ``folder`` to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    ctypes.CDLL(None).syncfs(descriptor)
    os.close(descriptor)


def read_processor():
    """Return (busy, all) seconds of all cores since the machine started."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    unit = os.sysconf("SC_CLK_TCK")
    idle = ticks[3] + ticks[4]  # waiting for the disk is idle, too
    return (sum(ticks) - idle) / unit, sum(ticks) / unit


def wait_until_quiet(patience_s):
    """Return once the machine was idle for a second, or once patience is at its end."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        busy, total = read_processor()
        time.sleep(1)
        busy_after, total_after = read_processor()
        if busy_after - busy < 0.1 * (total_after - total):
            return


def own_seconds():
    """Return the processor time of this process and of all that it ran."""
    return sum(os.times()[:4])


def run(command, request, log):
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, log, 1),
        (os.POSIX_SPAWN_DUP2, log, 2),
    ]
    began = time.perf_counter()
    pid = os.posix_spawnp(command[0], command, request["env"], file_actions=actions)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    seconds = time.perf_counter() - began
    io = read_io(pid)
    _, status, usage = os.wait4(pid, 0)
    return {
        "command": command,
        "status": os.waitstatus_to_exitcode(status),
        "seconds": seconds,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss * 1024,
        "read_bytes": io.get("rchar"),
        "written_bytes": io.get("wchar"),
    }


def read_io(pid):
    """Return the kernel's count of bytes that went through read and write calls."""
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as file:
            return {name: int(value) for name, value in (line.split(":") for line in file)}
    except OSError:
        return {}


def main():
    request = json.load(sys.stdin)
    os.chdir(request["folder"])
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sync_file_system(request["folder"])
    wait_until_quiet(request["patience_s"])
    steps = []
    busy, total = read_processor()
    own = own_seconds()
    began = time.perf_counter()
    for command in request["commands"]:
        steps.append(run(command, request, log))
        if steps[-1]["status"]:
            break
    seconds = time.perf_counter() - began
    sync_file_system(request["folder"])
    durable_seconds = time.perf_counter() - began
    own = own_seconds() - own
    busy_after, total_after = read_processor()
    others = (busy_after - busy - own) / max(total_after - total, 0.01)
    answer = {
        "seconds": seconds,
        "durable_seconds": durable_seconds,
        "others_share": min(max(others, 0.0), 1.0),
        "steps": steps,
    }
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()

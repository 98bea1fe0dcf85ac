"""What a test takes of the machine: memory within a limit, threads that run at the same time."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def peak_below(limit_bytes: int) -> Iterator[None]:
    """Fail where more than that is allocated at once."""
    tracemalloc.start()
    try:
        yield
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < limit_bytes


def killed(act: Callable[[], Any]) -> None:
    """Make a call in a process of its own that is killed within."""
    child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def die(*_: Any) -> None:
    """Have this process killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_replace(act: Callable[[], Any], when: str, suffix: str = "") -> None:
    """Make a call in a process that is killed at its first rename of a file of that ending.

    Args:
        when: "before" or "after": the temporary file exists then, and is not or just in its place.
    """
    replace = os.replace

    def strike(source: Any, target: Any) -> None:
        is_it = str(source).endswith(suffix)
        if when == "after" or not is_it:
            replace(source, target)
        if is_it:
            die()

    def run() -> None:
        os.replace = strike
        act()

    killed(run)


@contextlib.contextmanager
def forked(*calls: Callable[[], Any]) -> Iterator[Callable[[], bool]]:
    """Make calls in a process each beside what is within; all must end well.

    Yields what tells whether any is still at work.
    """
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=call) for call in calls]
    for process in processes:
        process.start()
    yield lambda: any(process.is_alive() for process in processes)
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(calls)


def fork_each(*calls: Callable[[], Any]) -> None:
    """Make calls in a process each, at the same time; all must end well."""
    with forked(*calls):
        pass


def run_together(*calls: Callable[[], Any]) -> None:
    """Make calls in a thread each; return when all have ended."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

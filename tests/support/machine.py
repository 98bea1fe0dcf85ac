"""What a test takes of the machine: memory within a limit, threads that run at the same time."""

from __future__ import annotations

import contextlib
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


def run_together(*calls: Callable[[], Any]) -> None:
    """Make calls in a thread each; return when all have ended."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

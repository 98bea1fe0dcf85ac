"""Arithmetic over several cores: in forked processes where a fork is safe, otherwise in threads.

Threads that make short passes of NumPy wait for the interpreter's lock: two of them do 1.3 times
the work of one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from mvc.chunkstore.parallel import for_each

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from typing import NoReturn

    from mvc.progress import ByteProgress

T = TypeVar("T")
R = TypeVar("R")

FORK_BYTES = 64 << 20
"""With less to do, a fork does not pay."""


def compute_each(
    items: Sequence[T],
    compute: Callable[[T], R],
    take: Callable[[T, R], int],
    *,
    size_bytes: int,
    threads: int,
    progress: ByteProgress = None,
) -> None:
    """Call ``take(item, compute(item))`` for every item; errors and Ctrl-C are as in ``for_each``.

    ``compute`` may run in another process: it changes nothing here, and returns what can be pickled. ``take`` is
    called here, by several threads, and returns the bytes that were done; ``size_bytes`` is that of all items.
    """
    workers = min(threads, len(items))

    def answer(number: int) -> R:
        return compute(items[number])

    with ExitStack() as stack:
        asks: list[Callable[[int], R]] = [answer] * workers
        if workers > 1 and size_bytes >= FORK_BYTES and _is_alone():
            asks = [stack.enter_context(_forked(answer)) for _ in range(workers)]
        for_each(
            range(len(items)),
            asks.pop if workers else lambda: answer,
            lambda number, ask: take(items[number], ask(number)),
            threads=workers,
            progress=progress,
        )


def _is_alone() -> bool:
    """Return whether this process is one thread, so that a child finds no lock that another holds."""
    if sys.platform != "linux" or threading.active_count() > 1:
        return False
    for _ in range(10):  # a thread that was joined may still be about to end
        with contextlib.suppress(FileNotFoundError):
            if len(os.listdir("/proc/self/task")) == 1:
                return True
        time.sleep(0.001)
    return False  # threads of a library


@contextmanager
def _forked(answer: Callable[[int], R]) -> Iterator[Callable[[int], R]]:
    """Yield a function that has a child answer; what the child fails at is answered here.

    So an error is raised where it is handled, and a child that was killed is only slower. The last
    that was begun has to end first: it has the pipes of those before.
    """
    from multiprocessing import Pipe  # noqa: PLC0415  small work needs none

    ours, theirs = Pipe()
    child = os.fork()
    if not child:
        ours.close()
        _serve(theirs, answer)
    theirs.close()

    def ask(number: int) -> R:
        result = None
        with contextlib.suppress(OSError, EOFError):  # it was killed
            ours.send(number)
            result = ours.recv()
        return answer(number) if result is None else result

    try:
        yield ask
    finally:
        ours.close()
        with contextlib.suppress(ChildProcessError):  # where SIGCHLD is ignored
            os.waitpid(child, 0)


def _serve(requests: Connection[Any, Any], answer: Callable[[int], object]) -> NoReturn:
    """Answer until the other end is closed, also because its process ended."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who asks
        while True:
            result = None
            number = requests.recv()
            with contextlib.suppress(Exception):
                result = answer(number)
            requests.send(result)
    finally:
        os._exit(0)  # nothing of the process that was copied is closed or written twice

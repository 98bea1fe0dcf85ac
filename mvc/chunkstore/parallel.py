"""Independent items over a few threads: at once, or job by job at a changing priority.

And work that Ctrl-C does not cut in two.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from mvc.progress import ByteProgress

T = TypeVar("T")
S = TypeVar("S")
P = ParamSpec("P")


class NiceThreads:
    """Threads for jobs; at every job ``niceness`` is asked by how much to lower their priority.

    A thread can lower its priority but, without rights, never raise it again. So when less niceness
    is wanted, new threads do the next jobs, and the old ones end with theirs. Only on Linux does a
    thread have a priority of its own; elsewhere nothing changes.
    """

    def __init__(self, threads: int, name: str, niceness: Callable[[], int] | None = None) -> None:
        self._threads, self._name = threads, name
        self._niceness = niceness or (lambda: 0)
        self._executor: ThreadPoolExecutor | None = None
        self._is = 0

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Hand a job to one of the threads."""
        wanted = self._niceness()
        if self._executor is None or wanted < self._is:
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  readers need none

            self.close(wait=False)
            self._is = wanted

            def step_back() -> None:
                if wanted and sys.platform == "linux":
                    with contextlib.suppress(OSError):
                        os.nice(wanted)

            self._executor = ThreadPoolExecutor(self._threads, self._name, initializer=step_back)
        return self._executor.submit(work, *args, **kwargs)

    def close(self, *, wait: bool = True) -> None:
        """End the threads when their jobs are done."""
        if self._executor is not None:
            self._executor.shutdown(wait=wait)
            self._executor = None


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Let Ctrl-C wait until the block has ended: what it does is done whole or not begun."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield  # nothing can interrupt it
        return
    held: list[Any] = []
    signal.signal(signal.SIGINT, lambda *what: held.append(what))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            handler(*held[0])


def for_each(
    items: Sequence[T],
    make_state: Callable[[], S],
    work: Callable[[T, S], int],
    *,
    threads: int,
    progress: ByteProgress = None,
) -> None:
    """Call ``work(item, state)`` for every item in turn, each thread with a state of its own.

    ``work`` returns the bytes it did, for ``progress``, which is called in the calling thread. With
    one item or one thread, the calling thread does the work. The first exception that ``work``
    raised is raised here once all threads have ended.
    """
    threads = min(threads, len(items))
    if threads <= 1:
        state = make_state()
        results = (work(item, state) for item in items)
    else:
        results = _work_on_threads(items, make_state, work, threads)
    with contextlib.closing(results):
        for size_bytes in results:
            if progress is not None:
                progress(size_bytes)


def _work_on_threads(
    items: Sequence[T], make_state: Callable[[], S], work: Callable[[T, S], int], threads: int
) -> Generator[int]:
    from queue import SimpleQueue  # noqa: PLC0415  most commands have one item

    queue = iter(items)
    lock = threading.Lock()
    results: SimpleQueue[int | BaseException | None] = SimpleQueue()
    stop = threading.Event()

    def run() -> None:
        try:
            state = make_state()
            while not stop.is_set():
                with lock:
                    item = next(queue, None)
                if item is None:
                    break
                results.put(work(item, state))
        except BaseException as error:  # noqa: BLE001  raised again in the calling thread
            results.put(error)
        finally:
            results.put(None)

    workers = [threading.Thread(target=run, name="mvc-read") for _ in range(threads)]
    for worker in workers:
        worker.start()
    try:
        while threads:
            result = results.get()
            if result is None:
                threads -= 1
            elif isinstance(result, BaseException):
                try:
                    raise result
                finally:
                    del result  # else the error and its traceback keep each other
            else:
                yield result
    finally:
        stop.set()
        for worker in workers:
            worker.join()

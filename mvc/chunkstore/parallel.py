"""Independent items over a few threads, with bounded memory and prompt failure."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mvc.progress import ByteProgress

T = TypeVar("T")
S = TypeVar("S")


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
        for item in items:
            done = work(item, state)
            if progress is not None:
                progress(done)
        return
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
        _collect(results, threads, progress)
    finally:
        stop.set()
        for worker in workers:
            worker.join()


def _collect(
    results: SimpleQueue[int | BaseException | None], threads: int, progress: ByteProgress
) -> None:
    while threads:
        result = results.get()
        if result is None:
            threads -= 1
        elif isinstance(result, BaseException):
            try:
                raise result
            finally:
                del result  # else the error and its traceback keep each other
        elif progress is not None:
            progress(result)

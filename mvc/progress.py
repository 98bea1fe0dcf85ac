"""How long work reports its progress: to whoever asked for it in this thread.

A progress callback is called with the bytes done since its last call. If it also has a method
``expect``, that is called first with the bytes to come, and again whenever more turn up: enough
for a bar that shows the time left.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    ByteProgress = Callable[[int], None] | None

_progress: ContextVar[ByteProgress] = ContextVar("mvc.progress", default=None)


@contextlib.contextmanager
def reporting(progress: ByteProgress) -> Iterator[None]:
    """Report the bytes of all work that this thread does in the ``with`` block.

        with mvc.reporting(bar):
            repo.push()

    What other threads do meanwhile, such as commits in the background, is not reported. The callback
    may be called from a thread that works for this one; it may use repositories itself, which is not
    reported either.

    Args:
        progress: called with the bytes handled since its last call: read, written, sent or received,
            whichever takes the time. If it has a method ``expect``, that is called with the bytes to
            come, and again when more turn up. None reports nothing.
    """
    token = _progress.set(progress)
    try:
        yield
    finally:
        _progress.reset(token)


def current_progress() -> ByteProgress:
    """Return the callback of this thread, to hand to threads that work for it."""
    progress = _progress.get()
    if progress is None:
        return None

    def count(size_bytes: int) -> None:
        with reporting(None):  # what the callback does is not the work that it counts
            progress(size_bytes)

    return count


def report(size_bytes: int) -> None:
    """Report bytes that are done."""
    progress = current_progress()
    if progress is not None:
        progress(size_bytes)


def announce(size_bytes: int) -> None:
    """Announce bytes to come, if that is wanted."""
    expect = getattr(_progress.get(), "expect", None)
    if expect is not None:
        expect(size_bytes)

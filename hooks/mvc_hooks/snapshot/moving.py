"""Host memory copied by several threads that share one queue of pieces.

One thread cannot fill the memory bus of a large machine. A parallel loop that gives every thread
its fixed share can, but then waits for the slowest, tensor after tensor; and while a writer and
data loaders run on the same cores, some thread is always off its core. Here a thread that has a
core takes the next piece, so that the wait at the end is for one piece per thread at most.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PIECE_BYTES = 16 * 2**20
_WORTH_BYTES = 64 * 2**20  # less is moved before a second thread has started
_MOST_THREADS = 16

_memmove = ctypes.CDLL(None).memmove
_memmove.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_memmove.restype = None


def move_runs(runs: Iterable[tuple[int, int, int]]) -> None:
    """Copy runs of memory.

    Args:
        runs: address to copy to, address to copy from, and bytes of each; both stay valid until
            this returns, and nothing else writes to them.
    """
    pieces = deque(_cut(runs))
    count = 1
    if sum(size_bytes for *_, size_bytes in pieces) >= _WORTH_BYTES:
        count = min(torch.get_num_threads(), _MOST_THREADS, len(pieces))
    threads = [
        threading.Thread(target=_work, args=(pieces,), daemon=True) for _ in range(count - 1)
    ]
    for thread in threads:
        thread.start()
    _work(pieces)
    for thread in threads:
        thread.join()


def _cut(runs: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    for target, source, size_bytes in runs:
        for start in range(0, size_bytes, _PIECE_BYTES):
            yield target + start, source + start, min(_PIECE_BYTES, size_bytes - start)


def _work(pieces: deque[tuple[int, int, int]]) -> None:
    while pieces:
        try:
            piece = pieces.popleft()
        except IndexError:  # another thread took the last one
            return
        _memmove(*piece)  # other threads run meanwhile: ctypes releases the interpreter lock

"""live tensors → image, in one copy.

Host memory is copied at once, by several threads if there is much of it. From a CUDA device the
copy is asynchronous, into pinned memory. What only ``optimizer.step`` changes (parameters and the
optimizer's own state) is copied on a side stream, during the next forward and backward pass;
whatever could change earlier (buffers, averages, generators) goes on the stream of the training
itself, whose later work waits for it. The *fence* makes the stream of the training wait for the
side stream; it has to stand before the next ``optimizer.step``. The host never waits for either.

The device keeps that order. It cannot see the host change a parameter between the snapshot and the
fence by other means than ``optimizer.step``; the version counter that torch keeps of every tensor
does. Such a snapshot is torn, and is not used.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mvc.training import StateLayout
    from mvc_hooks.snapshot.memory import SharedMemory

_LARGE_BYTES = 2**20
_PIECE_BYTES = 16 * 2**20
_WORTH_BYTES = 64 * 2**20  # less is moved before a second thread has started
_MOST_THREADS = 16

_memmove = ctypes.CDLL(None).memmove
_memmove.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_memmove.restype = None


@dataclass(slots=True)
class Fence:
    """What has to happen before a snapshot can be read, and before its tensors may change.

    Per stream there is an event at the end of the copies; a tensor that is copied on a side stream
    is watched by its version counter, and a change before the fence tears the snapshot.
    """

    events: list[tuple[int, torch.cuda.Event]] = field(default_factory=list)
    watched: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    is_torn: bool = False

    def stand(self) -> None:
        """Make the training's streams wait for the copies; called before ``optimizer.step``."""
        if not self.watched:
            return
        self._judge()
        for device, event in self.events:
            torch.cuda.current_stream(device).wait_event(event)

    def _judge(self) -> None:
        """Look whether what is watched has changed; after that it may.

        Also called when the copies have ended: nothing tells whether a change came before that.
        """
        if any(tensor._version != version for tensor, version in self.watched):  # noqa: SLF001  the only name it has
            self.is_torn = True
        self.watched = []

    def is_done(self) -> bool:
        """Return whether all copies have ended; never waits."""
        if not all(event.query() for _, event in self.events):  # type: ignore[no-untyped-call]  # torch has no types
            return False
        self._judge()
        return True

    def wait(self) -> None:
        """Wait for the copies on the host."""
        for _, event in self.events:
            event.synchronize()
        self._judge()


def copy_layout(
    layout: StateLayout, memory: SharedMemory, fenced: Mapping[int, torch.Tensor] | None = None
) -> Fence:
    """Copy a live state into memory; the fence is done at once if no device is involved.

    ``fenced`` are the tensors that only ``optimizer.step`` changes, by storage address.
    """
    memory.wait_ready()
    image, runs = memory.view(), list[tuple[int, memoryview]]()
    copier = _DeviceCopier(memory, fenced or {})
    try:
        for part in layout.parts:
            words = part.find_device_words()
            if words is not None and words.is_cuda:
                copier.copy(words, part.offset)
                continue
            # Small arrays are copied one by one: a thread would cost more than the copy.
            seen = part.view() if part.size_bytes >= _LARGE_BYTES else None
            if seen is None:
                part.copy_into(image)
            else:
                runs.append((part.offset, seen))
        start = memory.bytes.data_ptr()
        move_runs(
            (start + offset, np.frombuffer(seen, np.uint8).ctypes.data, seen.nbytes)
            for offset, seen in runs
        )
    except BaseException:
        copier.finish().wait()  # copies under way still write to the memory
        raise
    return copier.finish()


class _DeviceCopier:
    """Copies from CUDA devices, each on its side stream or its current one."""

    def __init__(self, memory: SharedMemory, fenced: Mapping[int, torch.Tensor]) -> None:
        self._memory = memory
        self._fenced = fenced
        self._sides: dict[int, torch.cuda.Stream] = {}
        self._fence = Fence()

    def copy(self, words: torch.Tensor, offset: int) -> None:
        self._memory.pin()
        size = words.numel() * words.element_size()
        target = self._memory.bytes[offset : offset + size].view(words.dtype).view(words.shape)
        side = self._sides.get(words.device.index)
        if side is None:  # what it copies waits for all work up to now
            side = torch.cuda.Stream(words.device)  # type: ignore[no-untyped-call]  # torch has no types
            side.wait_stream(torch.cuda.current_stream(words.device))
            self._sides[words.device.index] = side
        live = self._fenced.get(words.untyped_storage().data_ptr())
        if live is None or live.is_inference():  # inference tensors have no version counter
            target.copy_(words, non_blocking=True)
            return
        with torch.cuda.stream(side):
            target.copy_(words, non_blocking=True)
        # Otherwise torch could hand out the memory of a freed tensor while it is being copied.
        words.record_stream(side)
        self._fence.watched.append((live, live._version))  # noqa: SLF001  the only name it has

    def finish(self) -> Fence:
        for index, side in self._sides.items():
            for stream in (side, torch.cuda.current_stream(index)):
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no types
                event.record(stream)
                self._fence.events.append((index, event))
        return self._fence


def move_runs(runs: Iterable[tuple[int, int, int]]) -> None:
    """Copy runs of (target, source, bytes) of host memory, by several threads that share one queue of pieces.

    One thread cannot fill the memory bus of a large machine. A parallel loop that gives every
    thread its fixed share can, but then waits for the slowest, tensor after tensor; and while a
    writer and data loaders run on the same cores, some thread is always off its core. Here a thread
    that has a core takes the next piece, so the wait at the end is for one piece per thread at most.
    """
    pieces = deque(
        (target + start, source + start, min(_PIECE_BYTES, size_bytes - start))
        for target, source, size_bytes in runs
        for start in range(0, size_bytes, _PIECE_BYTES)
    )
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


def _work(pieces: deque[tuple[int, int, int]]) -> None:
    while pieces:
        try:
            piece = pieces.popleft()
        except IndexError:  # another thread took the last one
            return
        _memmove(*piece)  # other threads run meanwhile: ctypes releases the interpreter lock

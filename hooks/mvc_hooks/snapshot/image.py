"""One frozen state, and the pool of memory that they are frozen into."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc import StorageError, layout_state
from mvc_hooks.snapshot.copying import Fence, copy_layout
from mvc_hooks.snapshot.memory import SharedMemory

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from mvc import LayoutPlan


@dataclass(slots=True, eq=False)
class Snapshot:
    """A frozen state, held by the ring, by commits that read it, or by both.

    ``places`` are name of each file → offset and length in the memory, which goes back to the pool
    when the last holder releases it.
    """

    step: int
    memory: SharedMemory
    places: dict[str, tuple[int, int]]
    size_bytes: int
    fence: Fence
    stall_s: float
    pool: MemoryPool
    holders: int = 1

    def files(self) -> dict[str, memoryview]:
        """Return name → bytes of its files, once the copies are done."""
        self.fence.wait()
        return {path: self.memory.view(*place) for path, place in self.places.items()}

    def hold(self) -> Snapshot:
        """Count one more holder, who has to release it; return the snapshot."""
        self.holders += 1
        return self

    def release(self) -> None:
        """Give it up; its memory is used again when no holder is left."""
        self.holders -= 1
        if not self.holders:
            self.fence.wait()  # a copy that is still running would write to the next snapshot
            self.pool.give_back(self.memory)


class MemoryPool:
    """Memory for snapshots, used again and again; most states are laid out by the same ``plan``."""

    def __init__(self, folder: str | None = None) -> None:
        self.plan: LayoutPlan | None = None
        self._folder = folder
        self._free: list[SharedMemory] = []
        self._preparing: threading.Thread | None = None
        self._is_closed = False

    def prepare(self, state: Mapping[str, object]) -> None:
        """Allocate memory in the background; if there is not enough, the first snapshot will report it."""
        layout = layout_state(state, self.plan)
        self.plan = layout.plan
        if not self._free and self._preparing is None:
            self._preparing = threading.Thread(
                target=self._allocate, args=(layout.size_bytes,), daemon=True
            )
            self._preparing.start()

    def _allocate(self, size_bytes: int) -> None:
        with contextlib.suppress(StorageError):
            self._free.append(self._make(size_bytes))

    def _make(self, size_bytes: int) -> SharedMemory:
        # A little room to grow: step counters and the positions of loaders get longer.
        return SharedMemory(size_bytes + size_bytes // 64, self._folder)

    def take(self, size_bytes: int) -> SharedMemory:
        """Return free memory of at least that length."""
        self._wait_prepared()
        for memory in self._free:
            if memory.size_bytes >= size_bytes:
                self._free.remove(memory)
                return memory
        self.trim()  # the state has grown: what is too small now stays too small
        return self._make(size_bytes)

    def give_back(self, memory: SharedMemory) -> None:
        """Take back memory that no one reads any more."""
        if self._is_closed:
            memory.close()
        else:
            self._free.append(memory)

    def trim(self) -> None:
        """Free what is not in use."""
        self._wait_prepared()
        while self._free:
            self._free.pop().close()

    def close(self) -> None:
        """Free what is not in use, and the rest when it comes back."""
        self._is_closed = True
        self.trim()

    def _wait_prepared(self) -> None:
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None


def take_snapshot(
    state: Mapping[str, object],
    step: int,
    pool: MemoryPool,
    fenced: Mapping[int, torch.Tensor] | None = None,
    *,
    since_s: float | None = None,
) -> Snapshot:
    """Freeze a live state.

    Tensors may change again when this returns, those of ``fenced`` once the fence stands. The stall
    counts from ``since_s`` of ``time.perf_counter()``, if that is given.
    """
    since_s = time.perf_counter() if since_s is None else since_s
    layout = layout_state(state, pool.plan)
    pool.plan = layout.plan
    memory = pool.take(layout.size_bytes)
    try:
        fence = copy_layout(layout, memory, fenced)
    except BaseException:
        pool.give_back(memory)
        raise
    places = {file.path: (file.offset, file.size_bytes) for file in layout.files}
    stall_s = time.perf_counter() - since_s
    return Snapshot(step, memory, places, layout.size_bytes, fence, stall_s, pool)

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
    """A frozen state.

    Attributes:
        step: training step it was taken after.
        memory: what it lies in.
        places: name of each file → offset and length in there.
        size_bytes: length of the whole.
        fence: when it can be read.
        stall_s: how long the training stood still for it.
        readers: commits that read it; its memory is not used again before there are none.
        is_dropped: whether its owner has no more use for it, so that its last reader frees it.
    """

    step: int
    memory: SharedMemory
    places: dict[str, tuple[int, int]]
    size_bytes: int
    fence: Fence
    stall_s: float
    readers: int = 0
    is_dropped: bool = False

    def files(self) -> dict[str, memoryview]:
        """Return name → bytes of its files, once the copies are done."""
        self.fence.wait()
        return {path: self.memory.view(*place) for path, place in self.places.items()}


class MemoryPool:
    """Memory for snapshots: what came back is used again, and nothing that is still read.

    Attributes:
        plan: how the last state was laid out; the next one mostly is the same.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.plan: LayoutPlan | None = None
        self._folder = folder
        self._free: list[SharedMemory] = []
        self._preparing: threading.Thread | None = None

    def prepare(self, size_bytes: int) -> None:
        """Allocate the first memory ahead of its use, in the background.

        Where there is not that much, the first snapshot will say so.
        """
        if not self._free and self._preparing is None:
            self._preparing = threading.Thread(
                target=self._allocate, args=(size_bytes,), daemon=True
            )
            self._preparing.start()

    def _allocate(self, size_bytes: int) -> None:
        with contextlib.suppress(StorageError):
            self._free.append(SharedMemory(size_bytes + size_bytes // 64, self._folder))

    def _wait_prepared(self) -> None:
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None

    def take(self, size_bytes: int) -> SharedMemory:
        """Return free memory of at least that length.

        Raises:
            StorageError: there is not that much.
        """
        self._wait_prepared()
        for memory in self._free:
            if memory.size_bytes >= size_bytes:
                self._free.remove(memory)
                return memory
        while self._free:  # the state has grown: what is too small will not be of use again
            self._free.pop().close()
        return SharedMemory(size_bytes + size_bytes // 64, self._folder)

    def give_back(self, memory: SharedMemory) -> None:
        """Take back memory that nobody reads any more."""
        self._free.append(memory)

    def close(self) -> None:
        """Free what is not in use."""
        self._wait_prepared()
        while self._free:
            self._free.pop().close()


def take_snapshot(
    state: Mapping[str, object],
    step: int,
    pool: MemoryPool,
    fenced: Mapping[int, torch.Tensor] | None = None,
    *,
    since_s: float | None = None,
) -> Snapshot:
    """Freeze a live state.

    Args:
        state: nested; its tensors may change again when this returns, those of ``fenced`` once
            the fence stands.
        step: training step it belongs to.
        pool: gives the memory.
        fenced: as for ``copy_layout``.
        since_s: ``time.perf_counter()`` of when the training began to stand still.

    Raises:
        StorageError: no memory.
        UnsupportedError: a value that is not data; the message names its path.
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
    return Snapshot(step, memory, places, layout.size_bytes, fence, stall_s)

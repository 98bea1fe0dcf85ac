"""Frozen states, the pool of memory they are frozen into, and the ring of the last few of them.

The ring is kept in memory or in a local folder; it allows rollbacks to between two commits.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mvc import StorageError, UsageError
from mvc.training import layout_state
from mvc_hooks.checks import check_count
from mvc_hooks.snapshot.copying import Fence, copy_layout
from mvc_hooks.snapshot.memory import SharedMemory
from mvc_hooks.snapshot.stamp import STAMP_BYTES, renew_stamp

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from mvc.training import LayoutPlan, StateLayout


@dataclass(slots=True, eq=False)
class Snapshot:
    """A frozen state, held by the ring, by commits that read it, or by both.

    ``places`` are name of each file → offset and length in the memory, which goes back to the pool
    when the last holder releases it. If it is what one of several ranks keeps, the text that
    says what is where lies in the memory too, at ``form``.
    """

    step: int
    memory: SharedMemory
    places: dict[str, tuple[int, int]]
    size_bytes: int
    fence: Fence
    stall_s: float
    pool: MemoryPool
    form: tuple[int, int] = (0, 0)
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
        self._taken = self._wanted_bytes = 0
        self._is_closed = False

    def prepare(self, state: Mapping[str, object], **terms: Any) -> None:
        """Allocate memory in the background; if there is not enough, the first snapshot will report it.

        If memory is in use, it waits until that is back, and perhaps large enough.
        """
        layout = self.lay_out(state, **terms)
        self._wanted_bytes = layout.size_bytes + len(layout.form or b"") + STAMP_BYTES
        self._start_preparing()

    def lay_out(self, state: Mapping[str, object], **terms: Any) -> StateLayout:
        """Return the layout of a state; the next one of the same form is made faster."""
        layout = layout_state(state, self.plan, **terms)
        self.plan = layout.plan
        return layout

    def _start_preparing(self) -> None:
        if self._taken or not self._wanted_bytes:
            return
        size_bytes, self._wanted_bytes = self._wanted_bytes, 0
        self._drop_smaller(size_bytes)
        if not self._free and self._preparing is None:
            self._preparing = threading.Thread(
                target=self._allocate, args=(size_bytes,), daemon=True
            )
            self._preparing.start()

    def _allocate(self, size_bytes: int) -> None:
        with contextlib.suppress(StorageError):
            self._free.append(self._make(size_bytes))

    def _make(self, size_bytes: int) -> SharedMemory:
        # A little room to grow: step counters and the positions of loaders get longer.
        return SharedMemory(size_bytes + size_bytes // 64, self._folder)

    def take(self, size_bytes: int) -> SharedMemory:
        """Return free memory of at least that length, and of a stamp, which is renewed."""
        size_bytes += STAMP_BYTES
        self._wait_prepared()
        self._drop_smaller(size_bytes)
        memory = self._free.pop(0) if self._free else self._make(size_bytes)
        self._taken += 1
        renew_stamp(memory.view())
        return memory

    def _drop_smaller(self, size_bytes: int) -> None:
        """Free what a state has outgrown, as it does when its optimizer takes the first step."""
        for memory in [free for free in self._free if free.size_bytes < size_bytes]:
            self._free.remove(memory)
            memory.close()

    def give_back(self, memory: SharedMemory) -> None:
        """Take back memory that no one reads any more."""
        self._taken -= 1
        if self._is_closed:
            memory.close()
        else:
            self._free.append(memory)
            self._start_preparing()

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
    **terms: Any,
) -> Snapshot:
    """Freeze a live state; ``terms`` say to ``layout_state`` which of several ranks does so.

    Tensors may change again when this returns, those of ``fenced`` once the fence stands. The stall
    counts from ``since_s`` of ``time.perf_counter()``, if that is given.
    """
    since_s = time.perf_counter() if since_s is None else since_s
    layout = pool.lay_out(state, **terms)
    form = layout.form or b""
    place = (layout.size_bytes, len(form)) if form else (0, 0)
    memory = pool.take(layout.size_bytes + len(form))
    try:
        memory.view(*place)[:] = form
        fence = copy_layout(layout, memory, fenced)
    except BaseException:
        pool.give_back(memory)
        raise
    places = {file.path: (file.offset, file.size_bytes) for file in layout.files}
    stall_s = time.perf_counter() - since_s
    return Snapshot(step, memory, places, layout.size_bytes, fence, stall_s, pool, place)


@dataclass(frozen=True, slots=True)
class Ring:
    """How many snapshots are kept, and how often they are taken.

    Attributes:
        every: steps between two snapshots.
        keep: how many to keep at most.
        max_bytes: their size together at most; None means no limit.
        folder: keep them in unlinked files there; None means in memory.
    """

    every: int = 100
    keep: int = 4
    max_bytes: int | None = None
    folder: str | None = None

    def __post_init__(self) -> None:
        for name in ("every", "keep", "max_bytes"):
            value = getattr(self, name)
            if value is not None or name != "max_bytes":
                check_count(f"{name} of a ring", value, 1)


class SnapshotRing:
    """The ring itself."""

    def __init__(self, settings: Ring) -> None:
        self._settings = settings
        self._pool = MemoryPool(settings.folder)
        self._kept: deque[Snapshot] = deque()

    def is_due(self, step: int) -> bool:
        """Return whether a snapshot is due after this step."""
        return step % self._settings.every == 0

    def take(
        self, state: Mapping[str, object], step: int, fenced: Mapping[int, torch.Tensor] | None
    ) -> Snapshot:
        """Freeze what this rank has of a state; a full ring drops its oldest one first."""
        kept, limit = self._kept, self._settings.max_bytes
        is_full = len(kept) >= self._settings.keep
        if limit is not None and kept:
            is_full = is_full or self.size_bytes + kept[-1].memory.size_bytes > limit
        if is_full:
            kept.popleft().release()
        snapshot = take_snapshot(state, step, self._pool, fenced, is_local=True)
        self._kept.append(snapshot)
        # How large a snapshot is, is known only now: a state may have grown since the last one.
        if limit is not None and snapshot.memory.size_bytes > limit:
            self.close()
            raise UsageError(
                f"a snapshot takes {snapshot.memory.size_bytes:,} bytes, and max_bytes of the ring "
                f"is {limit:,}",
                hint="give the ring a larger max_bytes, or set ring=None",
            )
        while limit is not None and len(self._kept) > 1 and self.size_bytes > limit:
            self._kept.popleft().release()
            self._pool.trim()
        return snapshot

    @property
    def size_bytes(self) -> int:
        """Memory of the kept snapshots."""
        return sum(snapshot.memory.size_bytes for snapshot in self._kept)

    def find(self, at_most_step: int) -> Snapshot | None:
        """Return the newest sound snapshot of at most that step, or None."""
        for snapshot in reversed(self._kept):
            if snapshot.step <= at_most_step and not snapshot.fence.is_torn:
                return snapshot
        return None

    def forget_after(self, step: int) -> None:
        """Drop the snapshots of later steps, which a rollback abandoned."""
        while self._kept and self._kept[-1].step > step:
            self._kept.pop().release()

    def close(self) -> None:
        """Free the memory."""
        while self._kept:
            self._kept.pop().release()
        self._pool.close()

"""A shelf of chunks in memory that the ranks of one machine share: what one reads, the others take from it.

    places   how many chunks came so far | count of each place | id of each place | length of each place
    chunks   a place is used again after as many chunks as there are places

Who wants a chunk looks on the shelf, then tries to claim it: a lock of the kernel on the byte whose number
the id gives, which ends with its process. Who has the claim reads the chunk from the store, for all; who
has not waits for it, but not for long. Nothing on the shelf is trusted: readers hash what they take.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mvc.training import RunStore
from mvc_hooks.lingering import has_room
from mvc_hooks.writer.place import name_node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc import Repo
    from mvc_hooks.ranks.group import Ranks

_PLACES = 16
_PLACE_BYTES = 4 * 2**20  # as long as chunks are by default; longer ones are not shared
_NAME = "mvc-shelf"
_MARK_BYTES = 32
_HEAD_BYTES = 4096
_ID_BYTES = 32
_NEXT_BYTE = 0  # its lock guards the count of chunks
_PATIENCE_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0002, 0.005
_FLOCK = struct.Struct("@hhqqi4x")


class Shelf:
    """The shelf as one process sees it; usable as ``mvc.training.Nearby``."""

    def __init__(self, descriptor: int, places: int = _PLACES) -> None:
        """Map a shelf, whose descriptor is this one's from now on; another process needs one of its own."""
        self._descriptor, self._places = descriptor, places
        self._map = mmap.mmap(descriptor, _HEAD_BYTES)
        head = np.frombuffer(self._map, np.uint8, _HEAD_BYTES)
        self._came = head[_MARK_BYTES : _MARK_BYTES + 8].view(np.uint64)
        tables = head[_MARK_BYTES + 8 :]
        self._counts = tables[: 8 * places].view(np.uint64)
        self._sizes = tables[8 * places : 16 * places].view(np.uint64)
        ids = tables[16 * places : (16 + _ID_BYTES) * places]
        self._ids = ids.view(np.uint64).reshape(places, _ID_BYTES // 8)

    def fill(self, chunk: bytes, plain: memoryview, *, waits: bool = True) -> bool | None:
        """Fill a buffer with a chunk that is on the shelf, or claim it (see ``mvc.training.Nearby``)."""
        pause_s, end_s = _FIRST_PAUSE_S, time.monotonic() + _PATIENCE_S
        while not self._take(chunk, plain):
            if self._claim(chunk):
                if not self._take(chunk, plain):  # it may have come just before
                    return False
                self._release(chunk)
                return True
            if not waits:
                return None
            if time.monotonic() > end_s:
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return True

    def refuse(self, chunk: bytes, context: str) -> None:
        """Take no note of a chunk that is wrong: its place was just used again."""

    def keep(self, chunk: bytes, plain: memoryview | None) -> None:
        """Put a chunk on the shelf, for those who wait for it."""
        try:
            if plain is not None and 0 < len(plain) <= _PLACE_BYTES:
                self._put(chunk, plain)
        finally:
            self._release(chunk)

    def _take(self, chunk: bytes, plain: memoryview) -> bool:
        places = np.flatnonzero((self._ids == np.frombuffer(chunk, np.uint64)).all(axis=1))
        for place in places.tolist():
            count = self._counts[place]
            if count and self._sizes[place] == len(plain):
                # Read and written, not mapped: a first touch of each page would cost more than the copy.
                size_bytes = os.preadv(self._descriptor, [plain], _find_start(place))
                if size_bytes == len(plain) and self._counts[place] == count:
                    return True
        return False

    def _put(self, chunk: bytes, plain: memoryview) -> None:
        with self._locked(_NEXT_BYTE):
            count = int(self._came[0]) + 1
            self._came[0] = count
        place = count % self._places
        self._counts[place] = 0
        if os.pwrite(self._descriptor, plain, _find_start(place)) != len(plain):
            return
        self._ids[place], self._sizes[place] = np.frombuffer(chunk, np.uint64), len(plain)
        self._counts[place] = count

    # Locks belong to the descriptor: threads of one process do not exclude each other.

    def _claim(self, chunk: bytes) -> bool:
        with contextlib.suppress(BlockingIOError, PermissionError):
            self._lock(fcntl.F_OFD_SETLK, fcntl.F_WRLCK, _number_byte(chunk))
            return True
        return False

    def _release(self, chunk: bytes) -> None:
        self._lock(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, _number_byte(chunk))

    @contextlib.contextmanager
    def _locked(self, byte: int) -> Iterator[None]:
        self._lock(fcntl.F_OFD_SETLKW, fcntl.F_WRLCK, byte)
        try:
            yield
        finally:
            self._lock(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, byte)

    def _lock(self, command: int, kind: int, byte: int) -> None:
        fcntl.fcntl(self._descriptor, command, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))

    def close(self) -> None:
        """Give up all claims; the memory goes with the last process."""
        os.close(self._descriptor)


class _Offer(NamedTuple):
    """Where a rank has a shelf for its machine; ``descriptor`` is -1 if it has none."""

    node: str
    process: int
    descriptor: int
    mark: bytes


@contextlib.contextmanager
def sharing_reads(repo: Repo, ranks: Ranks) -> Iterator[None]:
    """Meanwhile, let the ranks of a machine read each chunk once; all ranks have to call this."""
    if ranks.is_alone:
        yield
        return
    mine = _make_offer()
    try:  # until the end, for another rank may open it late
        # The shelf of the first rank on this machine, if there are others here.
        offers = ranks.exchange(mine)
        here = [offer for offer in offers if offer.node == mine.node]
        descriptor = -1 if len(here) == 1 else _open(here[0])
        shelf = None if descriptor < 0 else Shelf(descriptor)
        if shelf is None:
            yield
            return
        with contextlib.closing(shelf), RunStore(repo).reading_nearby(shelf):
            yield
    finally:
        if mine.descriptor >= 0:
            os.close(mine.descriptor)


def _make_offer() -> _Offer:
    descriptor, mark = -1, secrets.token_bytes(_MARK_BYTES)
    if hasattr(fcntl, "F_OFD_SETLK") and has_room(2 * size_shelf()):
        with contextlib.suppress(OSError):
            descriptor = os.memfd_create(_NAME)
            os.ftruncate(descriptor, size_shelf())  # memory that is not touched costs nothing
            os.pwrite(descriptor, mark, 0)
    return _Offer(name_node(), os.getpid(), descriptor, mark)


def _open(offer: _Offer) -> int:
    """Open the shelf that another process has; -1 if it is not to be seen from here."""
    if offer.descriptor < 0:
        return -1
    path = Path(f"/proc/{offer.process}/fd/{offer.descriptor}")
    with contextlib.suppress(OSError):
        if os.readlink(path).startswith(f"/memfd:{_NAME} "):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            if os.pread(descriptor, _MARK_BYTES, 0) == offer.mark:
                return descriptor
            os.close(descriptor)  # another container's process of that number
    return -1


def size_shelf(places: int = _PLACES) -> int:
    """Return the length of a shelf."""
    return _HEAD_BYTES + places * _PLACE_BYTES


def _find_start(place: int) -> int:
    return _HEAD_BYTES + place * _PLACE_BYTES


def _number_byte(chunk: bytes) -> int:
    return 1 + int.from_bytes(chunk[:7], "big")

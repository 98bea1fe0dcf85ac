"""Chunks that other processes have in memory: asked for before the packs, believed only when hashed.

So memory is a tier like any other. Whoever offers a chunk may die meanwhile, hold other bytes than it
thinks, or lie: then the chunk comes from the store, and the tier hears of it. It also hears what came
from the store, so that processes which want the same can let one of them read it for all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from mvc.chunkstore.chains import Buffers
from mvc.chunkstore.parallel import for_each
from mvc.errors import MvcError
from mvc.ids import ChunkId, hash_chunk

if TYPE_CHECKING:
    from mvc.chunkstore.reader import Sink
    from mvc.chunkstore.values import ReadRequest
    from mvc.progress import ByteProgress

    ReadPacks = Callable[[Sequence[ReadRequest], Sink, ByteProgress], None]

_ROUND_CHUNKS = 8


class Nearby(Protocol):
    """Chunks in the memory of other processes. All methods are called from many threads."""

    def fill(self, chunk: ChunkId, plain: memoryview, *, waits: bool = True) -> bool | None:
        """Fill a buffer, which is as long as the chunk, if the chunk is there; return whether it was.

        None: another process is reading it; only if the caller does not wait. After False, ``keep`` is
        called when the caller has read it.
        """
        ...

    def refuse(self, chunk: ChunkId, context: str) -> None:
        """Hear that ``fill`` gave other bytes than the chunk's; ``context`` names what it is part of."""
        ...

    def keep(self, chunk: ChunkId, plain: memoryview | None) -> None:
        """Hear what a chunk is that was not here; None: it could not be read either."""
        ...


def fill_nearby(
    places: Sequence[Nearby],
    chunk: ChunkId,
    plain: memoryview,
    context: str,
    *,
    waits: bool = True,
) -> bool | None:
    """Fill a buffer with a chunk, verified, from the first place that has it.

    False: another place has to give it, in a block of ``keeping``; None: ask again later.
    """
    asked: list[Nearby] = []
    for place in places:
        try:
            is_filled = place.fill(chunk, plain, waits=waits)
        except (MvcError, OSError, ValueError):  # as good as not there
            is_filled = False
        if is_filled and hash_chunk(plain) != chunk:
            place.refuse(chunk, context)
            is_filled = False
        if is_filled is not False:
            for asked_before in asked:
                asked_before.keep(chunk, plain if is_filled else None)
            return is_filled
        asked.append(place)
    return False


@contextlib.contextmanager
def keeping(places: Sequence[Nearby], chunk: ChunkId, plain: memoryview) -> Iterator[None]:
    """Read a chunk into a buffer meanwhile, for those who asked for it and those who may."""
    try:
        yield
    except BaseException:
        tell(places, chunk, None)
        raise
    tell(places, chunk, plain)


def tell(places: Sequence[Nearby], chunk: ChunkId, plain: memoryview | None) -> None:
    """Tell all places what a chunk is, or that it cannot be read."""
    for place in places:
        with contextlib.suppress(OSError, ValueError):
            place.keep(chunk, plain)


class ReadsOne(Protocol):
    """A store that reads a chunk, from wherever it is."""

    nearby: Sequence[Nearby]
    threads: int

    def read_into(self, chunk_id: ChunkId, plain: memoryview, *, context: str = "") -> None:
        """Fill ``plain`` with a chunk, verified."""
        ...


class NearbyReads:
    """Reads many chunks, in rounds, from nearby as far as they are there.

    In each round a process first claims what no other reads yet, and reads that; only then, with nothing
    left that others could wait for, does it wait for what others read.
    """

    def __init__(
        self, store: ReadsOne, read_packs: ReadPacks, sink: Sink, progress: ByteProgress
    ) -> None:
        self._store, self._places = store, store.nearby
        self._read_packs, self._sink, self._progress = read_packs, sink, progress

    def read(self, requests: Sequence[ReadRequest]) -> None:
        """Hand every request to the sink, with its chunk; each chunk is read once."""
        wanted: dict[tuple[ChunkId, int], list[ReadRequest]] = {}
        for request in requests:
            wanted.setdefault((request.chunk_id, request.plain_size_bytes), []).append(request)
        askers = list(wanted.values())
        for start in range(0, len(askers), _ROUND_CHUNKS):
            self._read_round(askers[start : start + _ROUND_CHUNKS])

    def _read_round(self, wanted: Sequence[list[ReadRequest]]) -> None:
        claimed: list[list[ReadRequest]] = []
        busy: list[list[ReadRequest]] = []

        def look(askers: list[ReadRequest], buffers: Buffers) -> int:
            plain = _take_buffer(askers, buffers)
            first = askers[0]
            is_filled = fill_nearby(self._places, first.chunk_id, plain, first.context, waits=False)
            if is_filled:
                return self._hand_out(askers, plain)
            (busy if is_filled is None else claimed).append(askers)
            return 0

        def wait(askers: list[ReadRequest], buffers: Buffers) -> int:
            plain = _take_buffer(askers, buffers)
            self._store.read_into(askers[0].chunk_id, plain, context=askers[0].context)
            return self._hand_out(askers, plain)

        threads, progress = self._store.threads, self._progress
        for_each(wanted, Buffers, look, threads=threads, progress=progress)
        self._read_claimed(claimed)
        for_each(busy, Buffers, wait, threads=threads, progress=progress)

    def _read_claimed(self, claimed: Sequence[list[ReadRequest]]) -> None:
        """Read chunks from packs that are not nearby, and tell those who may wait for them."""
        untold = {askers[0].chunk_id for askers in claimed}

        def take(request: ReadRequest, plain: memoryview) -> None:
            with contextlib.suppress(KeyError):  # others heard of it already
                untold.remove(request.chunk_id)
                tell(self._places, request.chunk_id, plain)
            self._sink(request, plain)

        try:
            self._read_packs(
                [request for askers in claimed for request in askers], take, self._progress
            )
        finally:
            for chunk in untold:
                tell(self._places, chunk, None)

    def _hand_out(self, askers: Sequence[ReadRequest], plain: memoryview) -> int:
        for request in askers:
            self._sink(request, plain.toreadonly())
        return len(plain) * len(askers)


def _take_buffer(askers: Sequence[ReadRequest], buffers: Buffers) -> memoryview:
    return buffers.buffer("plain", askers[0].plain_size_bytes)

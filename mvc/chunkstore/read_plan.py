"""What to read in which order, before anything is read: pure.

Chunks are sorted by pack and offset. Neighbouring records are fetched by one read, so that 40,000
small tensors cost some dozen reads and not 40,000. A chunk that is wanted at several places is
fetched and decoded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mvc.chunkstore.values import ChunkLocation, ReadRequest
    from mvc.ids import ChunkId, PackId

GROUP_BYTES = 4 * 2**20
"""Records are read together up to this length; a longer one is read alone."""


@dataclass(frozen=True, slots=True)
class PlannedChunk:
    """One chunk to read, where it lies (None: not known), and all requests for it."""

    location: ChunkLocation | None
    requests: tuple[ReadRequest, ...]


@dataclass(frozen=True, slots=True)
class ReadGroup:
    """Chunks whose records are neighbours in a pack, by ascending offset; one read fetches them.

    Attributes:
        pack: where they lie, or None for one chunk that was not found.
        offset: of the first record header.
        size_bytes: up to the end of the last body.
    """

    pack: PackId | None
    offset: int
    size_bytes: int
    chunks: tuple[PlannedChunk, ...]


def plan_reads(
    requests: Sequence[ReadRequest], find: Callable[[ChunkId], ChunkLocation | None]
) -> list[ReadGroup]:
    """Return what to read, by ascending pack and offset; equal chunks are read once."""
    wanted: dict[ChunkId, list[ReadRequest]] = {}
    for request in requests:
        wanted.setdefault(request.chunk_id, []).append(request)
    lost: list[ReadGroup] = []
    chunks: list[tuple[ChunkLocation, PlannedChunk]] = []
    for chunk_id, askers in wanted.items():
        location = find(chunk_id)
        chunk = PlannedChunk(location, tuple(askers))
        if location is None:
            lost.append(ReadGroup(None, 0, 0, (chunk,)))
        else:
            chunks.append((location, chunk))
    chunks.sort(key=lambda pair: (pair[0].pack, pair[0].offset))
    return lost + list(_group(chunks))


def _group(chunks: Sequence[tuple[ChunkLocation, PlannedChunk]]) -> Iterator[ReadGroup]:
    members: list[PlannedChunk] = []
    pack: PackId | None = None
    start = end = 0
    for location, chunk in chunks:
        if members and (
            location.pack != pack or location.offset != end or location.end - start > GROUP_BYTES
        ):
            yield ReadGroup(pack, start, end - start, tuple(members))
            members = []
        if not members:
            pack, start = location.pack, location.offset
        members.append(chunk)
        end = location.end
    if members:
        yield ReadGroup(pack, start, end - start, tuple(members))

"""The chunks of a commit in memory that the writers of its run still hold.

They hold the images that the commit was made of: files as they are, or what each rank kept of the state; a
chunk may need the images of several ranks. The manifests say which chunk is where. Whether it still is
there is checked by its id when it is read: see ``mvc.chunkstore.nearby``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import MvcError
from mvc.formats.manifest import cut_run
from mvc.sources import ByteSource, MemorySource
from mvc.states.assembling import open_files
from mvc.workspace.manifests import find_manifest

if TYPE_CHECKING:
    from mvc.ids import ChunkId
    from mvc.states.share import Peers, Share
    from mvc.workspace.context import Context


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """Where a chunk is: its offset in a file, and (array, number) if it is of a spread one."""

    file: ByteSource
    offset: int
    piece: tuple[int, int] | None


class HeldChunks:
    """The chunks of one commit that are held, as ``RunStore.reading_nearby`` takes them.

    Attributes:
        given_bytes: what was read from here.
        missed: how many chunks were asked for that no writer held.
        lies: for every chunk from here that was wrong, what it was part of, and who had it.
    """

    def __init__(self, places: Mapping[ChunkId, _Place], share: Share | None) -> None:
        self._places, self._share = places, share
        self._lock = threading.Lock()
        self.given_bytes = self.missed = 0
        self.lies: list[str] = []

    def __len__(self) -> int:
        return len(self._places)

    def fill(self, chunk: ChunkId, plain: memoryview, *, waits: bool = True) -> bool:  # noqa: ARG002
        """Fill a buffer with what should be a chunk; return False if no writer holds all of it."""
        place, is_here = self._places.get(chunk), False
        if place is not None:
            # A rank's image may not be held any more, or be cut short.
            with contextlib.suppress(MvcError, OSError, ValueError):
                place.file.read_into(place.offset, plain)
                is_here = True
        with self._lock:
            self.given_bytes += len(plain) if is_here else 0
            self.missed += not is_here
        return is_here

    def refuse(self, chunk: ChunkId, context: str) -> None:
        """Note that a chunk from here was wrong."""
        who = self._name_ranks(self._places[chunk].piece)
        with self._lock:
            self.lies.append(f"{context}{who}")

    def keep(self, chunk: ChunkId, plain: memoryview | None) -> None:
        """Take no note of what the store has."""

    def _name_ranks(self, piece: tuple[int, int] | None) -> str:
        if piece is None or self._share is None:
            return ""
        array, number = piece
        division = self._share.plan.keepers.divisions[array]
        ranks = sorted({division.kept[box].rank for box, _ in division.find_parts(number)})
        names = ", ".join(map(str, ranks))
        return f", held by rank{'s' if len(ranks) > 1 else ''} {names}"


def find_held(
    context: Context,
    files: Mapping[str, memoryview],
    revision: str = "HEAD",
    *,
    share: Share | None = None,
    peers: Peers | None = None,
) -> HeldChunks:
    """Return the chunks of a commit that are still in memory, for ``reading_nearby``.

    Args:
        files: path → content, as it was committed.
        revision: which commit.
        share: what one rank kept of it, whichever.
        peers: the shares of all ranks.

    Raises:
        NotFoundError: no such revision.
    """
    sources: dict[str, ByteSource] = {path: MemorySource(data) for path, data in files.items()}
    arrays: Mapping[str, int] = {}
    if share is not None and peers is not None:
        sources |= open_files(share, peers)
        arrays = share.plan.first_arrays
    tree = context.history.read_tree(context.history.resolve(revision))
    places: dict[ChunkId, _Place] = {}
    for path in sources.keys() & tree.keys():
        manifest, source = find_manifest(context, tree[path].blob), sources[path]
        if manifest is None or manifest.size_bytes != source.size_bytes:
            continue
        first = arrays.get(path)
        for index, stored in enumerate(manifest.segments):
            start, size_bytes = stored.segment.start, stored.segment.size_bytes
            run = cut_run(size_bytes, stored.chunks, manifest.chunk_bytes)
            for number, (offset, chunk, _) in enumerate(run):
                piece = None if first is None else (first + index, number)
                places.setdefault(chunk, _Place(source, start + offset, piece))
    return HeldChunks(places, share)

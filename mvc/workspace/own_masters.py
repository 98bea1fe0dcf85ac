"""Roundings among the tensors of one rank of a sharded run: bf16 weights of fp32 masters.

As ``bases`` does for whole tensors. A rank looks at its own boxes only, and builds only on chunks that it
stores itself: those of others are not durable before the commit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mvc.dtypes import get_dtype
from mvc.formats.casts import find_cast
from mvc.formats.manifest import cut_sizes
from mvc.workspace.bases import (
    MASTER_DTYPE,
    MAX_MASTERS,
    MIN_CAST_ELEMENTS,
    is_castable,
    round_probe,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from mvc.chunkstore.values import ChunkSpan
    from mvc.chunkstore.writer import ChunkWriter
    from mvc.formats.layout import Segment
    from mvc.ids import ChunkId
    from mvc.sources import ByteSource
    from mvc.states.share import Share
    from mvc.workspace.files import ChunkHasher

_PROBES = 16


@dataclass(frozen=True, slots=True)
class _Master:
    """A tensor of which this rank has stored some chunks, by number."""

    path: str
    segment: Segment
    array: int
    chunks: Mapping[int, ChunkId]


class OwnMasters:
    """The fp32 tensors that a rank has stored in a session."""

    def __init__(self, share: Share, files: Mapping[str, ByteSource], chunk_bytes: int) -> None:
        self._share, self._files, self._chunk_bytes = share, files, chunk_bytes
        self._masters: dict[int, list[_Master]] = {}

    def note(self, path: str, segment: Segment, array: int, chunks: Mapping[int, ChunkId]) -> None:
        """Remember the chunks of a tensor that were stored, if others may be its roundings."""
        elements = segment.size_bytes // 4
        if segment.dtype == MASTER_DTYPE and elements >= MIN_CAST_ELEMENTS and chunks:
            master = _Master(path, segment, array, chunks)
            self._masters.setdefault(elements, []).append(master)

    def offer(
        self,
        segment: Segment,
        array: int,
        spans: Iterable[tuple[int, ChunkSpan]],
        writer: ChunkWriter | ChunkHasher,
    ) -> Iterator[ChunkSpan]:
        """Yield numbered spans of a tensor, with the chunks that they may be the rounding of."""
        master = self._find(segment, array) if is_castable(segment) else None
        at_hand = getattr(writer, "at_hand", {})
        kind = find_cast(get_dtype(MASTER_DTYPE), get_dtype(segment.dtype))
        for number, span in spans:
            pairs = () if master is None else tuple(self._pairs(master, number))
            if master is None or not pairs:
                yield span
                continue
            for at, (chunk, _) in enumerate(pairs, 2 * number):
                place = master.segment.start + at * self._chunk_bytes
                at_hand.setdefault(chunk, (self._files[master.path], place))
            yield replace(span, masters=pairs, cast=kind)

    def _pairs(self, master: _Master, number: int) -> list[tuple[ChunkId, int]]:
        """Return (id, length) of the chunks that a chunk may be rounded from, if all are stored."""
        sizes = cut_sizes(master.segment.size_bytes, self._chunk_bytes)
        numbers = range(2 * number, min(2 * number + 2, len(sizes)))
        if not all(at in master.chunks for at in numbers):
            return []
        return [(master.chunks[at], sizes[at]) for at in numbers]

    def _find(self, segment: Segment, array: int) -> _Master | None:
        """Return the tensor that one may be the rounding of: a few elements of each agree."""
        kind = find_cast(get_dtype(MASTER_DTYPE), get_dtype(segment.dtype))
        probe = self._probe(array)
        for master in self._masters.get(segment.size_bytes // 2, ())[:MAX_MASTERS]:
            if (
                kind is None
                or probe is None
                or self._first_box(master.array) != self._first_box(array)
            ):
                continue
            words = self._probe(master.array)
            if words is not None and round_probe(kind, words) == probe:
                return master
        return None

    def _first_box(self, array: int) -> object:
        division = self._share.plan.keepers.divisions[array]
        numbers = division.numbers_of(self._share.rank)
        return division.kept[numbers[0]] if numbers else None

    def _probe(self, array: int) -> bytes | None:
        """Return some elements from the start and the middle of the rank's first box."""
        plan, rank = self._share.plan, self._share.rank
        places = plan.places_of(rank)[array]
        if not places:
            return None
        number, start = next(iter(places.items()))
        item_bytes = plan.arrays[array].item_bytes
        elements = plan.keepers.divisions[array].kept[number].box.elements
        size = min(_PROBES, elements) * item_bytes
        middle = start + elements // 2 * item_bytes
        end = start + elements * item_bytes
        image = self._share.image
        return bytes(image[start : start + size]) + bytes(image[middle : min(middle + size, end)])

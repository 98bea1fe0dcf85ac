"""What has to travel so that one store can give what another has; pure.

A chunk travels with all that its copy needs and the other side lacks. A pack of which everything is
wanted travels as it is, under its own name; of others, the wanted records do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mvc.ids import ChunkId, PackId, split_ids

if TYPE_CHECKING:
    from mvc.chunkstore.copies import Ids, StoredCopies
    from mvc.formats.pack_index import PackIndex


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """What travels from a source to a target."""

    whole: tuple[PackIndex, ...]  # packs that travel as they are
    # packs with only some rows that do, in their order in the pack
    parts: tuple[tuple[PackIndex, tuple[int, ...]], ...]
    missing: tuple[ChunkId, ...]  # wanted chunks that the source cannot give either
    # for each of ``whole``, which of the others its chunks are based on
    needs: tuple[frozenset[PackId], ...]

    @property
    def part_bytes(self) -> int:
        """Bytes of the records that travel alone."""
        return sum(
            index.record(row).end - index.record(row).offset
            for index, rows in self.parts
            for row in rows
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of all that travels, pack indexes left out."""
        return sum(index.pack_size_bytes for index in self.whole) + self.part_bytes


def plan_transfer(source: StoredCopies, target: StoredCopies, wanted: Ids) -> TransferPlan:
    """Return what brings wanted chunks, each once, from one store to another that can decode some of them."""
    lacking = wanted[~target.decodes(wanted)]
    ends = target.decodes(source.ids)
    travels = source.close(source.mask(lacking), ends=ends) & ~ends
    copies = np.sort(source.chosen[np.flatnonzero(travels)])
    whole: list[int] = []
    parts: list[tuple[PackIndex, tuple[int, ...]]] = []
    for number, index in enumerate(source.indexes):
        first, end = np.searchsorted(copies, source.starts[number : number + 2])
        rows = copies[first:end] - source.starts[number]
        if len(rows) == len(index) > 0:
            whole.append(number)
        elif len(rows):
            in_order = rows[np.argsort(index.offsets[rows])]
            parts.append((index, tuple(in_order.tolist())))
    missing = lacking[~source.decodes(lacking)]
    needs: list[frozenset[PackId]] = []  # the packs that the chunks of a whole pack are based on
    for number in whole:
        bases = source.bases[source.starts[number] : source.starts[number + 1]]
        used = np.unique(bases[bases >= 0])
        packs = np.unique(source.packs[source.chosen[used[travels[used]]]]).tolist()
        below = {*packs}.intersection(whole) - {number}
        needs.append(frozenset(source.indexes[pack].pack for pack in below))
    return TransferPlan(
        tuple(source.indexes[number] for number in whole),
        tuple(parts),
        tuple(split_ids(missing.tobytes())),
        tuple(needs),
    )

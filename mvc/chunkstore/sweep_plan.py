"""Which packs go, which are rewritten, and what is encoded again: pure, before anything is done.

Nothing is removed from within a pack: a pack with enough garbage is *rewritten*, its needed
records carried over as they are. Needed is what callers say, and all that it is based on: a chunk
that nothing names any more may be the base of one that is kept. Such a base is *held*, unless it
costs more (with all that only it needs) than storing what builds on it without it; then that is
*encoded again*, against a chunk that is kept, or as whole bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mvc.chunkstore.copies import NONE
from mvc.formats.pack import FOOTER_BYTES, HEADER_BYTES, MAX_DEPTH

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.chunkstore.copies import Mask, StoredCopies
    from mvc.ids import ChunkId, PackId

MIN_WASTE = 0.05
"""A pack is rewritten for its garbage alone if at least this share of it is garbage."""
SMALL_PACK_BYTES = 16 * 2**20
"""Packs shorter than this are gathered into larger ones by repack."""
BATCH_BYTES = 512 * 2**20
"""Packs rewritten before the old ones are removed: so much more room may be taken meanwhile."""
_FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES


@dataclass(frozen=True, slots=True)
class Reencode:
    """A chunk to encode again, as a difference to ``base``, a kept chunk, if that is smaller."""

    chunk_id: ChunkId
    base: ChunkId | None


@dataclass(frozen=True, slots=True)
class SweepBatch:
    """What is written before what is removed.

    ``encode`` are chunks to be encoded again; ``carry`` are rows of each pack's index, by offset,
    whose records are carried over as they are. ``remove`` goes, ``size_bytes`` long, once all that
    is durable.
    """

    encode: tuple[Reencode, ...]
    carry: Mapping[PackId, tuple[int, ...]]
    remove: tuple[PackId, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What to do with the packs: batches, in this order.

    ``removed_packs`` go because nothing in them is needed. ``freed_bytes`` is an estimate if chunks
    are encoded again. ``held_chunks`` stay only as bases.
    """

    batches: tuple[SweepBatch, ...]
    packs: int
    pack_bytes: int
    removed_packs: int
    rewritten_packs: int
    dropped_chunks: int
    freed_bytes: int
    held_chunks: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.batches


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a sweep is to achieve, by chunk number.

    ``base_of`` maps a chunk, now whole, to the one to store it as a difference to. It is encoded
    again if its pack is rewritten, and counts as garbage of that pack. A pack is rewritten if
    ``min_waste`` of it is garbage.
    """

    needed: Mask
    base_of: Mapping[int, int] = field(default_factory=dict)
    gather_small: bool = False
    min_waste: float = MIN_WASTE


def plan_sweep(copies: StoredCopies, wanted: Wanted) -> SweepPlan:
    """Return what brings all sound packs to what is wanted; every needed chunk stays decodable."""
    orphans, growth_bytes = _find_orphans(copies, wanted.needed)
    wishes = {chunk: base for chunk, base in wanted.base_of.items() if chunk not in orphans}
    encoded = np.zeros(len(copies), np.bool_)
    encoded[[*orphans, *wishes]] = True
    stays = wanted.needed.copy()
    stays[[base for base in (*orphans.values(), *wishes.values()) if base != NONE]] = True
    kept = copies.close(stays, ends=encoded)
    live = np.zeros(len(copies.chunks), np.bool_)
    live[copies.chosen[kept & ~encoded]] = True
    sizes = np.array([index.pack_size_bytes for index in copies.indexes], np.int64)
    live_bytes = np.bincount(copies.packs, copies.sizes * live, minlength=len(sizes)).astype(int)
    dead_bytes = sizes - _FRAME_BYTES - live_bytes
    has_wishes = np.zeros(len(sizes), np.bool_)
    has_wishes[copies.packs[copies.chosen[list(wishes)]]] = True
    gone = (live_bytes == 0) & ~has_wishes  # wishes are still to be read from their pack
    rewritten = ~gone & (dead_bytes > 0) & (dead_bytes >= wanted.min_waste * sizes)
    # An orphan's old record would stay as garbage that refers to what is gone.
    rewritten[copies.packs[copies.chosen[list(orphans)]]] = True
    rewritten &= ~gone
    small = ~gone & (sizes < SMALL_PACK_BYTES)
    if wanted.gather_small and (small | rewritten).sum() > 1:
        rewritten |= small
    rewritten |= _find_torn(copies, live, encoded, gone, rewritten)
    # Orphans come first: they are read through bases that later batches remove.
    first = [SweepBatch(_items(copies, orphans), {}, (), 0)] if orphans else []
    batches = [*first, *_batches(copies, live, gone, rewritten, wishes)]
    freed = int(dead_bytes[gone | rewritten].sum() + _FRAME_BYTES * gone.sum())
    again = encoded & kept & (gone | rewritten)[copies.packs[copies.chosen]]
    reencoded_bytes = int(copies.sizes[copies.chosen[again]].sum())
    return SweepPlan(
        batches=tuple(batches),
        packs=len(sizes),
        pack_bytes=int(sizes.sum()),
        removed_packs=int(gone.sum()),
        rewritten_packs=int(rewritten.sum()),
        dropped_chunks=_count_dropped(copies, live | encoded[copies.chunks], gone | rewritten),
        freed_bytes=freed - (reencoded_bytes + growth_bytes),
        held_chunks=int((kept & ~wanted.needed).sum()),
    )


def _find_orphans(copies: StoredCopies, needed: Mask) -> tuple[dict[int, int], int]:
    """Return needed chunks that are better stored without their base, and how much they grow.

    The value of a chunk in the result is the kept chunk to take as its base, or ``NONE``.
    """
    closed = copies.close(needed)
    held = closed & ~needed
    if not held.any():
        return {}, 0
    bases = copies.bases[copies.chosen]
    weights = _weigh(copies, closed, held)
    orphans: dict[int, int] = {}
    growth_bytes = 0
    on_held = np.append(held, False)[np.where(bases >= 0, bases, len(copies))].any(axis=1)
    for chunk in np.flatnonzero(needed & on_held).tolist():
        gain = sum(weights[base] for base in bases[chunk].tolist() if base >= 0 and held[base])
        # Without a base it takes about what the start of its chain takes.
        start = [chunk, *_walk_down(copies, chunk)][-1]
        start_bytes, plain_bytes = copies.plain_size(start), copies.plain_size(chunk)
        whole = int(copies.sizes[copies.chosen[start]]) * plain_bytes // max(1, start_bytes)
        growth = min(whole, plain_bytes) - int(copies.sizes[copies.chosen[chunk]])
        if growth < gain:
            orphans[chunk] = _find_kept_base(copies, chunk, needed)
            growth_bytes += growth
    return orphans, growth_bytes


def _weigh(copies: StoredCopies, closed: Mask, held: Mask) -> NDArray[np.float64]:
    """Return what each held base costs for each chunk built on it, its own bases included."""
    bases = copies.bases[copies.chosen]
    users = np.zeros(len(copies), np.int64)
    used = bases[closed]
    np.add.at(users, used[used >= 0], 1)
    own = np.where(held, copies.sizes[copies.chosen], 0).astype(np.float64)
    weights = own / np.maximum(users, 1)
    padded = np.where(bases >= 0, bases, len(copies))
    for _ in range(MAX_DEPTH):  # weights flow up one link a round
        before, below = weights, np.append(weights, 0.0)[padded].sum(axis=1)
        weights = np.where(held, (own + below) / np.maximum(users, 1), 0.0)
        if (weights == before).all():
            break
    return weights


def _find_kept_base(copies: StoredCopies, chunk: int, needed: Mask) -> int:
    """Return the nearest whole chunk of that length further down the chain that stays anyway."""
    plain_bytes = copies.plain_size(chunk)
    for below in _walk_down(copies, chunk):
        is_whole = (copies.bases[copies.chosen[below]] < 0).all()
        if needed[below] and is_whole and copies.plain_size(below) == plain_bytes:
            return below
    return NONE


def _walk_down(copies: StoredCopies, chunk: int) -> Iterator[int]:
    """Yield the base of a chunk, the base of that, and so on, by chosen copies."""
    base = int(copies.bases[copies.chosen[chunk], 0])
    while base >= 0:
        yield base
        base = int(copies.bases[copies.chosen[base], 0])


def _find_torn(
    copies: StoredCopies, live: Mask, encoded: Mask, gone: Mask, rewritten: Mask
) -> Mask:
    """Return packs that would stay with garbage whose bases go: fsck could not check it."""
    torn = np.zeros_like(gone)
    while True:
        stays = live | ~(gone | rewritten | torn)[copies.packs]
        there = encoded.copy()
        there[copies.chunks[stays]] = True
        is_lost = np.append(~there, [True, False])  # for NONE, and for no base
        places = np.where(copies.bases == NONE, len(copies), copies.bases)
        places = np.where(places < 0, len(copies) + 1, places)
        fresh = torn.copy()
        fresh[copies.packs[stays & ~live & is_lost[places].any(axis=1)]] = True
        if (fresh == torn).all():
            return torn
        torn = fresh


def _items(copies: StoredCopies, base_of: Mapping[int, int]) -> tuple[Reencode, ...]:
    """Return the chunks to encode, in their order in the packs."""
    ordered = sorted(base_of.items(), key=lambda pair: int(copies.chosen[pair[0]]))
    return tuple(
        Reencode(copies.chunk_id(chunk), None if base == NONE else copies.chunk_id(base))
        for chunk, base in ordered
    )


def _batches(
    copies: StoredCopies, live: Mask, gone: Mask, rewritten: Mask, wishes: Mapping[int, int]
) -> Iterator[SweepBatch]:
    by_pack: dict[int, dict[int, int]] = {}
    for chunk, base in wishes.items():
        by_pack.setdefault(int(copies.packs[copies.chosen[chunk]]), {})[chunk] = base
    carry: dict[PackId, tuple[int, ...]] = {}
    encode: dict[int, int] = {}
    remove: list[PackId] = [copies.indexes[number].pack for number in np.flatnonzero(gone)]
    size_bytes = sum(copies.indexes[number].pack_size_bytes for number in np.flatnonzero(gone))
    taken = 0
    for number in np.flatnonzero(rewritten).tolist():
        index = copies.indexes[number]
        if taken and taken + index.pack_size_bytes > BATCH_BYTES:
            yield SweepBatch(_items(copies, encode), carry, tuple(remove), size_bytes)
            carry, encode, remove, size_bytes, taken = {}, {}, [], 0, 0
        first = int(copies.starts[number])
        rows = np.flatnonzero(live[first : int(copies.starts[number + 1])])
        carry[index.pack] = tuple(rows[np.argsort(index.offsets[rows])].tolist())
        encode |= by_pack.pop(number, {})
        remove.append(index.pack)
        size_bytes += index.pack_size_bytes
        taken += index.pack_size_bytes
    if remove or encode:
        yield SweepBatch(_items(copies, encode), carry, tuple(remove), size_bytes)


def _count_dropped(copies: StoredCopies, stays: Mask, leaving: Mask) -> int:
    """Return how many chunks are in no pack afterwards."""
    left = np.zeros(len(copies), np.bool_)
    left[copies.chunks[stays | ~leaving[copies.packs]]] = True
    return int((~left).sum())

"""Which chunk of history could be stored as a difference to which: what repack works from.

History is walked from the oldest commit on. When a chunk first appears, it is paired with the chunk
at the same place of the same tensor in the parent commit; so every pair points from younger to
older, and pairs never form a circle.

A pair is only a possibility. ``plan_chains`` strings pairs together so that no chain gets long, with
those that are stored already, and ``PairSamples`` finds out in which packs it is worth the trouble.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mvc.chunkstore.copies import NONE, StoredCopies
from mvc.chunkstore.relatives import MAX_CHAIN
from mvc.dtypes import DType, get_dtype
from mvc.errors import MvcError
from mvc.formats.deltas import MIN_DELTA_BYTES
from mvc.formats.manifest import Manifest, StoredSegment, cut_sizes
from mvc.workspace.bases import group_name, match_segments, segment_key
from mvc.workspace.manifests import find_manifest

if TYPE_CHECKING:
    from mvc.history.values import CommitInfo, TreeEntry
    from mvc.ids import ChunkId, GitId
    from mvc.workspace.context import Context

    _PairKind = tuple[int, str, bool]

_MAX_USERS = 2
"""Differences to the last chunk of a chain that still may be a base, before a new one is begun:
few, because each is to an older version than the one before."""
_WORTHWHILE = 0.98
_SAMPLES = 2
_PACKS_PER_LOOK = 8


@dataclass(frozen=True, slots=True)
class Pair:
    """What a chunk could be a difference to."""

    base: ChunkId
    dtype: DType
    group: str  # tensors of one group change alike


def find_pairs(
    context: Context,
    commits: Iterable[CommitInfo],
    released: frozenset[tuple[GitId, str]],
    *,
    skip: Collection[GitId] = (),
) -> dict[ChunkId, Pair]:
    """Return chunk → its pair, in the order in which chunks first appear.

    Commits come parents first. Chunks of those to ``skip`` are not paired, but later ones may be
    with them. Versions that were released, (commit, path), are left out.
    """
    pairs: dict[ChunkId, Pair] = {}
    seen: set[ChunkId] = set()
    blobs: set[GitId] = set()
    for info in commits:
        tree = context.history.read_tree(info.tree)
        parent = context.history.read_tree(info.parents[0]) if info.parents else {}
        for path, entry in tree.items():
            if entry.blob in blobs or (info.id, path) in released:
                continue
            blobs.add(entry.blob)
            with contextlib.suppress(MvcError):  # marking has failed if it matters
                manifest = find_manifest(context, entry.blob)
                if manifest is not None:
                    if info.id in skip:
                        seen.update(manifest.chunk_ids())
                        continue
                    for chunk, pair in _pair(context, path, manifest, parent):
                        if chunk not in seen and pair is not None and pair.base in seen:
                            pairs[chunk] = pair
                        seen.add(chunk)
    return pairs


def _pair(
    context: Context, path: str, manifest: Manifest, parent: Mapping[str, TreeEntry]
) -> Iterator[tuple[ChunkId, Pair | None]]:
    """Yield every chunk of the tensors of a file, with its pair if there is one."""
    segments = [stored.segment for stored in manifest.segments]
    matches = match_segments(context, parent, path, segments, manifest.chunk_bytes)
    for stored in manifest.segments:
        older = matches.get(segment_key(stored.segment))
        old = None if older is None else older[1]
        yield from _pair_segment(stored, old, manifest.chunk_bytes)


def _pair_segment(
    stored: StoredSegment, old: StoredSegment | None, chunk_bytes: int
) -> Iterator[tuple[ChunkId, Pair | None]]:
    dtype = get_dtype(stored.segment.dtype)
    group = group_name(stored.segment)
    sizes = cut_sizes(stored.segment.size_bytes, chunk_bytes)
    old_sizes = [] if old is None else cut_sizes(old.segment.size_bytes, chunk_bytes)
    for number, (chunk, size) in enumerate(zip(stored.chunks, sizes, strict=True)):
        fits = number < len(old_sizes) and old_sizes[number] == size >= MIN_DELTA_BYTES
        if old is None or not fits or old.chunks[number] == chunk or dtype.block_elements > 1:
            yield chunk, None
        else:
            yield chunk, Pair(old.chunks[number], dtype, group)


def plan_chains(
    copies: StoredCopies,
    pairs: Mapping[ChunkId, Pair],
    is_promising: Callable[[int, int], bool] = lambda _chunk, _base: True,
) -> dict[int, int]:
    """Return chunk → base by chunk number, for chunks that are stored whole and may be differences.

    Pairs come older chunks first. What is not promising stays whole, and may start a chain.
    """
    if not pairs or not len(copies):
        return {}
    chunks = copies.find(np.frombuffer(b"".join(pairs), "S32")).tolist()
    wanted = copies.find(np.frombuffer(b"".join(pair.base for pair in pairs.values()), "S32"))
    is_whole = (copies.bases[copies.chosen] < 0).all(axis=1) & (copies.chosen != NONE)
    heights, depths = copies.heights(), copies.depths()
    base_of: dict[int, int] = {}
    users: dict[int, int] = {}
    for chunk, base in zip(chunks, wanted.tolist(), strict=True):
        if NONE in (chunk, base) or not is_whole[chunk] or copies.chosen[base] == NONE:
            continue
        room = MAX_CHAIN - 1 - heights[chunk]
        while depths[base] > room or (depths[base] == room and users.get(base, 0) >= _MAX_USERS):
            below = _find_below(copies, base_of, base)
            if below is None:
                break
            base = below  # noqa: PLW2901  the same thing, further down
        if base != chunk and depths[base] <= room and is_promising(chunk, base):
            base_of[chunk] = base
            depths[chunk] = depths[base] + 1
            users[base] = users.get(base, 0) + 1
    return base_of


def _find_below(copies: StoredCopies, base_of: Mapping[int, int], chunk: int) -> int | None:
    """Return what a chunk will be a difference to, if it has the same length."""
    below = base_of.get(chunk, int(copies.bases[copies.chosen[chunk], 0]))
    if below < 0 or copies.plain_size(below) != copies.plain_size(chunk):
        return None
    return below


class PairSamples:
    """Tells from a few pairs of each kind what differences of that kind save.

    Pairs are of one kind if their chunks are in neighbouring packs (by name: a random choice),
    they are of one group, and both are to the parent's version or both to an older one.
    """

    def __init__(
        self, context: Context, copies: StoredCopies, pairs: Mapping[ChunkId, Pair]
    ) -> None:
        self._context = context
        self._copies = copies
        self._pairs = pairs
        self._samples: dict[_PairKind, list[tuple[int, int]]] = {}
        self._shares: dict[_PairKind, float] = {}

    def is_promising(self, chunk: int, base: int) -> bool:
        """Return whether it is worth trying to store a chunk as a difference from a forebear."""
        key = self._key(chunk, base)
        samples = self._samples.setdefault(key, [])
        if len(samples) < _SAMPLES:
            with contextlib.suppress(MvcError):
                pair = self._pairs[self._copies.chunk_id(chunk)]
                samples.append(
                    self._context.here.estimate_delta(
                        self._copies.chunk_id(chunk), self._copies.chunk_id(base), pair.dtype
                    )
                )
            delta, ordinary = (
                (sum(sizes) for sizes in zip(*samples, strict=True)) if samples else (1, 1)
            )
            self._shares[key] = delta / max(1, ordinary)
        return self._shares.get(key, 1.0) <= _WORTHWHILE

    def gain_bytes(self, chunk: int, base: int) -> int:
        """Return roughly what a chunk saves as a difference."""
        size_bytes = int(self._copies.sizes[self._copies.chosen[chunk]])
        return int(size_bytes * (1 - self._shares[self._key(chunk, base)]))

    def _key(self, chunk: int, base: int) -> _PairKind:
        pack = int(self._copies.packs[self._copies.chosen[chunk]])
        pair = self._pairs[self._copies.chunk_id(chunk)]
        is_far = pair.base != self._copies.chunk_id(base)
        return pack // _PACKS_PER_LOOK, pair.group, is_far

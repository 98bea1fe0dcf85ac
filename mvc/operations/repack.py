"""repack: store what is kept in less: differences across history, few large packs.

    plan    mark ──► pair chunks across history (``pairs``) ──► look at samples ──► sweep plan
    run     batch by batch: new packs, durable ──► alone: look again ──► old packs removed

It is gc's machinery with another goal, so garbage that is old enough goes as well, Git objects
before chunks; only reflogs are not shortened. It may be killed at any time: a batch that was begun
leaves some chunks twice, and the next repack clears that up.

Which commits were looked at is noted in ``.mvc/repacked``, so that the next repack only pairs what
is new. The note is a convenience: losing it costs time and nothing else.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from mvc.chunkstore.copies import NONE
from mvc.chunkstore.sweep_plan import SMALL_PACK_BYTES, Wanted, plan_sweep
from mvc.errors import MvcError
from mvc.fs import write_durable
from mvc.ids import GitId, is_hex_id
from mvc.operations.gc import (
    DEFAULT_GRACE_S,
    check_current,
    find_needed,
    find_unnamed,
    remove_objects,
    run_batches,
    upkeep,
)
from mvc.progress import announce
from mvc.upkeep.marks import Marks
from mvc.upkeep.pairs import find_pairs, plan_chains
from mvc.upkeep.versions import walk_all
from mvc.workspace.releases import read_releases
from mvc.workspace.transition import recover

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mvc.chunkstore.copies import Ids, StoredCopies
    from mvc.chunkstore.sweep_plan import SweepPlan
    from mvc.history.values import CommitInfo
    from mvc.ids import ChunkId
    from mvc.upkeep.pairs import Pair
    from mvc.workspace.context import Context

    _Kind = tuple[int, str, bool]
    """(packs, group, whether the base is an older version than the parent's)"""

NOTE_NAME = "repacked"
AUTO_PACKS = 50
"""Small packs from which on ``--auto`` gathers them."""
AUTO_COMMITS = 20
"""Commits nobody looked at for differences from which on ``--auto`` does."""
_ID_DIGITS = 40
_WORTHWHILE = 0.98
_SAMPLES = 2
_PACKS_PER_LOOK = 8
"""Packs next to each other by name of which one look tells; that is a random choice of them."""


@dataclass(frozen=True, slots=True)
class RepackPlan:
    """What a repack would do.

    Attributes:
        sweep: what happens to packs.
        chunks: chunks to be tried as differences.
        gain_bytes: about what the differences save, by samples.
        small_packs: packs that are gathered into larger ones.
        grace_s: garbage younger than this stays; None where all of it stays.
        marks: what is needed.
        unnamed: chunks of young packs that nobody names.
        dtypes: chunk → its pair, which tells what its words are.
        tips: the commits up to which this looks.
    """

    sweep: SweepPlan
    chunks: int
    gain_bytes: int
    small_packs: int
    grace_s: float | None
    marks: Marks = field(repr=False)
    unnamed: Ids = field(repr=False)
    dtypes: Mapping[ChunkId, Pair] = field(repr=False)
    tips: tuple[GitId, ...] = field(repr=False)

    @property
    def freed_bytes(self) -> int:
        """About by how much the packs get shorter."""
        return self.sweep.freed_bytes + self.gain_bytes

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.sweep.is_empty


@dataclass(frozen=True, slots=True)
class RepackResult:
    """What a repack did.

    Attributes:
        freed_bytes: by how much the packs are shorter now.
        removed_packs: packs that are gone.
        new_packs: packs written in their place.
        new_packs_bytes: length of those.
        deltas: chunks that are stored as differences now and were not before.
        kept_packs: packs that were to go and stayed, since something needs them now.
        pack_bytes: length of all packs now.
    """

    freed_bytes: int
    removed_packs: int
    new_packs: int
    new_packs_bytes: int
    deltas: int
    kept_packs: int
    pack_bytes: int


def plan_repack(
    context: Context,
    *,
    everything: bool = False,
    grace_s: float = DEFAULT_GRACE_S,
    only: GitId | None = None,
) -> RepackPlan:
    """Return how to store the repository in less.

    Args:
        context: the repository.
        everything: pair also commits that an earlier repack has looked at.
        grace_s: garbage younger than this stays.
        only: pair nothing but the chunks of this commit, gather no small packs, remove no garbage.

    Raises:
        FormatError: the history is damaged.
        CorruptionError: something that is needed is not there.
    """
    recover(context)
    started_s = time.time()
    marks = Marks(context, grace_s=grace_s, expiry=None)
    commits = walk_all(context)
    pairs = _find_new_pairs(context, commits, everything=everything, only=only)
    if only is None:
        marks.look()
        copies = context.store.copies()
        needed = find_needed(copies, marks)
        unnamed = find_unnamed(context, copies, marks, started_s - grace_s)
    else:
        copies = context.store.copies()
        needed = unnamed = copies.chosen != NONE
    look = _Look(context, copies, pairs)

    def is_promising(chunk: int, base: int) -> bool:
        return bool(needed[chunk] and needed[base]) and look.is_promising(chunk, base)

    base_of = plan_chains(copies, pairs, is_promising)
    sweep = plan_sweep(copies, Wanted(needed | unnamed, base_of, gather_small=only is None))
    tried = {item.chunk_id for batch in sweep.batches for item in batch.encode}
    sizes = np.array([index.pack_size_bytes for index in copies.indexes])
    return RepackPlan(
        sweep=sweep,
        chunks=len(tried),
        gain_bytes=sum(
            look.gain_bytes(chunk, base)
            for chunk, base in base_of.items()
            if copies.chunk_id(chunk) in tried
        ),
        small_packs=int((sizes < SMALL_PACK_BYTES).sum()) if sweep.rewritten_packs else 0,
        grace_s=grace_s if only is None else None,
        marks=marks,
        unnamed=copies.ids[unnamed],
        dtypes=pairs,
        tips=tuple(_tips(commits)) if only is None else (),
    )


def _find_new_pairs(
    context: Context, commits: Sequence[CommitInfo], *, everything: bool, only: GitId | None
) -> dict[ChunkId, Pair]:
    if only is not None:
        parents = {parent for info in commits if info.id == only for parent in info.parents[:1]}
        commits = [info for info in commits if info.id == only or info.id in parents]
        seen = parents
    else:
        seen = set() if everything else _looked_at(context, commits)
    released = frozenset(
        (commit, path)
        for commit, releases in read_releases(context).items()
        for release in releases
        for path in release.paths
    )
    return find_pairs(context, reversed(commits), released, skip=seen)


def _looked_at(context: Context, commits: Sequence[CommitInfo]) -> set[GitId]:
    """Return the commits that an earlier repack has paired."""
    parents = {info.id: info.parents for info in commits}
    pending = [tip for tip in read_note(context) if tip in parents]
    seen: set[GitId] = set()
    while pending:
        commit = pending.pop()
        if commit not in seen:
            seen.add(commit)
            pending.extend(parent for parent in parents[commit] if parent in parents)
    return seen


def read_note(context: Context) -> list[GitId]:
    """Return the tips of what the last repack has looked at."""
    try:
        lines = (context.git_dir / NOTE_NAME).read_text("ascii").split()
    except (OSError, ValueError):
        return []
    return [GitId(line) for line in lines if is_hex_id(line, _ID_DIGITS)]


def _tips(commits: Sequence[CommitInfo]) -> list[GitId]:
    inner = {parent for info in commits for parent in info.parents}
    return [info.id for info in commits if info.id not in inner]


class _Look:
    """Compares a few chunks of some packs and every group with their bases, when asked for them."""

    def __init__(
        self, context: Context, copies: StoredCopies, pairs: Mapping[ChunkId, Pair]
    ) -> None:
        self._context = context
        self._copies = copies
        self._pairs = pairs
        self._samples: dict[_Kind, list[tuple[int, int]]] = {}
        self._shares: dict[_Kind, float] = {}

    def is_promising(self, chunk: int, base: int) -> bool:
        """Tell whether a chunk is worth to be tried as a difference to one of its forebears."""
        key = self._key(chunk, base)
        samples = self._samples.setdefault(key, [])
        if len(samples) < _SAMPLES:
            with contextlib.suppress(MvcError):
                pair = self._pairs[self._copies.chunk_id(chunk)]
                samples.append(
                    self._context.store.estimate_delta(
                        self._copies.chunk_id(chunk), self._copies.chunk_id(base), pair.dtype
                    )
                )
            delta, ordinary = (
                (sum(sizes) for sizes in zip(*samples, strict=True)) if samples else (1, 1)
            )
            self._shares[key] = delta / max(1, ordinary)
        return self._shares.get(key, 1.0) <= _WORTHWHILE

    def gain_bytes(self, chunk: int, base: int) -> int:
        """Return about what a chunk saves as a difference."""
        size_bytes = int(self._copies.sizes[self._copies.chosen[chunk]])
        return int(size_bytes * (1 - self._shares[self._key(chunk, base)]))

    def _key(self, chunk: int, base: int) -> _Kind:
        pack = int(self._copies.packs[self._copies.chosen[chunk]])
        pair = self._pairs[self._copies.chunk_id(chunk)]
        is_far = pair.base != self._copies.chunk_id(base)
        return pack // _PACKS_PER_LOOK, pair.group, is_far


def run_repack(
    context: Context, plan: RepackPlan, progress: Callable[[int], None] | None = None
) -> RepackResult:
    """Carry out a plan; may be killed at any time.

    Args:
        context: the repository.
        plan: from ``plan_repack``.
        progress: called with bytes of old packs that are read.

    Raises:
        ConflictError: another gc or repack is running, or has run since the plan was made.
        CorruptionError: a pack is damaged; nothing of it was removed.
    """
    with upkeep(context):
        check_current(context, plan.sweep)
        announce(progress, sum(batch.size_bytes for batch in plan.sweep.batches if batch.carry))
        before = _count_deltas(context.store.copies())
        dtypes = {chunk: pair.dtype for chunk, pair in plan.dtypes.items()}
        batches = plan.sweep.batches
        if batches and plan.grace_s is not None:
            remove_objects(context, plan.marks, plan.grace_s)
        tally = run_batches(context, batches, plan.marks, plan.unnamed, dtypes, progress)
        if plan.tips:
            write_note(context, plan.tips)
    copies = context.store.copies()
    return RepackResult(
        freed_bytes=tally.freed_bytes - tally.new_bytes,
        removed_packs=tally.removed,
        new_packs=tally.new_packs,
        new_packs_bytes=tally.new_bytes,
        deltas=max(0, _count_deltas(copies) - before),
        kept_packs=tally.kept,
        pack_bytes=sum(index.pack_size_bytes for index in copies.indexes),
    )


def repack_commit(context: Context, commit: GitId) -> None:
    """Store what a commit added as differences to its parent, wherever that is smaller.

    For chunks that an ``add`` stored as they are, before anybody asked for differences.
    """
    plan = plan_repack(context, only=commit)
    if plan.chunks:
        run_repack(context, plan)


def _count_deltas(copies: StoredCopies) -> int:
    return int((copies.bases[:, 0] >= 0).sum())


def write_note(context: Context, tips: Sequence[GitId]) -> None:
    """Note that everything up to these commits was looked at."""
    if set(read_note(context)) == set(tips):
        return
    write_durable(context.git_dir / NOTE_NAME, [b"".join(tip.encode() + b"\n" for tip in tips)])


def is_due(context: Context) -> bool:
    """Tell whether ``--auto`` should do anything: many small packs, or many commits not paired."""
    listing = context.store.pack_sizes()
    if sum(size < SMALL_PACK_BYTES for size in listing) >= AUTO_PACKS:
        return True
    head = context.history.head().commit
    noted = set(read_note(context))
    fresh = 0
    for info in islice(context.history.walk([] if head is None else [head]), 2 * AUTO_COMMITS):
        if info.id in noted:
            break
        fresh += 1
    return fresh >= AUTO_COMMITS

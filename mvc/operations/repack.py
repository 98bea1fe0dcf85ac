"""repack: store what is kept in less space: differences across history, few large packs.

    plan    mark ──► pair chunks across history (``pairs``) ──► look at samples ──► sweep plan
    run     batch by batch: new packs, durable ──► alone: look again ──► old packs removed

It is a sweep with another goal, so garbage that is old enough goes too, Git objects before chunks;
only reflogs are not shortened. It may be killed at any time: an unfinished batch leaves some chunks
twice, and the next repack removes them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mvc.chunkstore.copies import NONE
from mvc.chunkstore.sweep_plan import SMALL_PACK_BYTES, SweepPlan, Wanted, plan_sweep
from mvc.history.object_gather import plan_gathering
from mvc.upkeep.pairs import Pair, PairSamples, find_pairs, plan_chains
from mvc.upkeep.repacked import find_paired, find_tips, is_due, write_note
from mvc.upkeep.sweep import (
    DEFAULT_GRACE_S,
    Sweep,
    find_needed,
    find_unnamed,
    is_current,
    mark,
    upkeep_lock,
)
from mvc.upkeep.versions import released_paths, walk_all
from mvc.workspace.recovery import recover
from mvc.workspace.releases import read_releases

if TYPE_CHECKING:
    from mvc.chunkstore.copies import Ids, StoredCopies
    from mvc.history.values import CommitInfo
    from mvc.ids import ChunkId, GitId
    from mvc.upkeep.sweep import SweepMarks
    from mvc.workspace.context import Context


__all__ = ["RepackPlan", "RepackResult", "is_due", "plan_repack", "repack", "repack_commit"]


@dataclass(frozen=True, slots=True)
class RepackPlan:
    """What a repack would do.

    Attributes:
        sweep: what happens to packs.
        chunks: chunks to be tried as differences.
        gain_bytes: roughly what the differences save, going by samples.
        small_packs: packs that are gathered into larger ones.
        git_files: loose Git objects, and short packs of them, that become one pack.
        grace_s: garbage younger than this stays; None means that all of it stays.
        marks: what was needed when this was planned; None if nothing is to be removed.
        unnamed: chunks of young packs that nothing names.
        everything: commits that an earlier repack has looked at count as well.
        only: the one commit whose chunks this is about, or None.
        dtypes: chunk → its pair, for the type of its words.
        tips: the commits up to which this looks.
    """

    sweep: SweepPlan
    chunks: int
    gain_bytes: int
    small_packs: int
    git_files: int
    grace_s: float | None
    marks: SweepMarks | None = field(repr=False)
    unnamed: Ids = field(repr=False)
    everything: bool = field(repr=False)
    only: GitId | None = field(repr=False)
    dtypes: Mapping[ChunkId, Pair] = field(repr=False)
    tips: tuple[GitId, ...] = field(repr=False)

    @property
    def freed_bytes(self) -> int:
        """Roughly how much shorter the packs get."""
        return self.sweep.freed_bytes + self.gain_bytes

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.sweep.is_empty and not self.git_files


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
    grace_s: float | None = None,
) -> RepackPlan:
    """Return how to store the repository in less space; nothing is changed.

    Args:
        everything: include commits that an earlier repack has already looked at.
        grace_s: garbage younger than this stays; defaults to two weeks.

    Raises:
        FormatError: the history is damaged.
        CorruptionError: something that is needed is missing.
    """
    return make_plan(
        context, DEFAULT_GRACE_S if grace_s is None else grace_s, everything=everything
    )


def make_plan(
    context: Context,
    grace_s: float = DEFAULT_GRACE_S,
    *,
    everything: bool = False,
    only: GitId | None = None,
) -> RepackPlan:
    """Plan a repack; with ``only``, of the chunks that this commit added, and nothing else."""
    started_s = time.time()
    marks = mark(context, grace_s=grace_s, expiry=None) if only is None else None
    git_files = 0
    if marks is not None:
        loose, packs = plan_gathering(context.history, marks.objects, older_than_s=grace_s)
        git_files = len(loose) + len(packs)
    commits = walk_all(context)
    pairs = _find_new_pairs(context, commits, everything=everything, only=only)
    copies = context.here.copies()
    if marks is None:
        needed = unnamed = copies.chosen != NONE
    else:
        needed = find_needed(context, copies, marks)
        unnamed = find_unnamed(context, copies, marks, started_s - grace_s)
    look = PairSamples(context, copies, pairs)

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
        git_files=git_files,
        grace_s=grace_s if only is None else None,
        marks=marks,
        unnamed=copies.ids[unnamed],
        everything=everything,
        only=only,
        dtypes=pairs,
        tips=tuple(find_tips(commits)) if only is None else (),
    )


def _find_new_pairs(
    context: Context, commits: Sequence[CommitInfo], *, everything: bool, only: GitId | None
) -> dict[ChunkId, Pair]:
    if only is not None:
        seen = {parent for info in commits if info.id == only for parent in info.parents[:1]}
        commits = [info for info in commits if info.id == only or info.id in seen]
    else:
        seen = set() if everything else find_paired(context, commits)
    released = frozenset(
        (commit, path)
        for commit, releases in read_releases(context).items()
        for path in released_paths(releases)
    )
    return find_pairs(context, reversed(commits), released, skip=seen)


def repack(context: Context, plan: RepackPlan | None = None) -> RepackResult:
    """Store chunks as differences across history and merge small packs.

    Args:
        plan: from ``plan_repack``, made again if the packs are others by now; by default it is made now.

    Raises:
        ConflictError: another gc, prune or repack is running.
        CorruptionError: the repository is damaged; nothing more is removed.
    """
    plan = plan or plan_repack(context)
    grace_s = DEFAULT_GRACE_S if plan.grace_s is None else plan.grace_s
    with upkeep_lock(context):
        recover(context)
        if not is_current(context, plan.sweep):
            plan = make_plan(context, grace_s, everything=plan.everything, only=plan.only)
        sweep = Sweep(context, plan.sweep, plan.marks, plan.unnamed, grace_s=grace_s, expiry=None)
        before = _count_deltas(context.here.copies())
        if plan.sweep.batches and plan.grace_s is not None:
            sweep.remove_objects()
        tally = sweep.run({chunk: pair.dtype for chunk, pair in plan.dtypes.items()})
        if plan.git_files:
            sweep.gather_objects()
        if plan.tips:
            write_note(context, plan.tips)
    copies = context.here.copies()
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
    """Store what a commit added as differences from its parent, wherever that is smaller.

    For chunks that an ``add`` stored whole before differences were asked for.
    """
    plan = make_plan(context, only=commit)
    if plan.chunks:
        repack(context, plan)


def _count_deltas(copies: StoredCopies) -> int:
    return int((copies.bases[:, 0] >= 0).sum())

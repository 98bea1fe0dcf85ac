"""gc: remove what nothing reaches, and nothing else, beside running commits and readers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mvc.chunkstore.sweep_plan import SweepPlan, Wanted, plan_sweep
from mvc.history.object_sweep import list_garbage
from mvc.history.reachability import DAY_S, ReflogExpiry, expire_reflogs
from mvc.upkeep.kept_entries import find_useless
from mvc.upkeep.sweep import (
    DEFAULT_GRACE_S,
    NO_IDS,
    Sweep,
    SweepMarks,
    find_needed,
    find_unnamed,
    is_current,
    mark,
    upkeep_lock,
)
from mvc.workspace.staging import list_leftovers

if TYPE_CHECKING:
    from mvc.chunkstore.copies import Ids
    from mvc.workspace.context import Context
    from mvc.workspace.releases import Release


@dataclass(frozen=True, slots=True)
class GcPlan:
    """What a gc would do.

    Attributes:
        grace_s: garbage younger than this stays.
        sweep: what happens to packs.
        objects: how many Git objects and leftover temporary files of theirs go.
        object_bytes: what they take.
        leftovers: how many temporary files and scratch folders of killed processes go.
        leftover_bytes: what they take.
        reflog_entries: how many expired entries of reflogs go.
        expiry: how long reflogs remember.
        marks: what was needed when this was planned.
        unnamed: chunks of young packs that nothing names, and others that are to stay.
        statistics: how many kept statistics go.
        releasing: what counts as released.
    """

    grace_s: float
    sweep: SweepPlan
    objects: int
    object_bytes: int
    leftovers: int
    leftover_bytes: int
    reflog_entries: int
    expiry: ReflogExpiry = field(repr=False)
    marks: SweepMarks = field(repr=False)
    unnamed: Ids = field(repr=False)
    statistics: int = 0
    releasing: Sequence[Release] = field(default=(), repr=False)

    @property
    def freed_bytes(self) -> int:
        """Bytes on disk that are free afterwards, but for statistics; an estimate if chunks are encoded again."""
        return self.sweep.freed_bytes + self.object_bytes + self.leftover_bytes

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        others = (self.objects, self.leftovers, self.statistics, self.reflog_entries)
        return self.sweep.is_empty and not any(others)


@dataclass(frozen=True, slots=True)
class GcResult:
    """What a gc did: ``removed_packs``, ``removed_objects`` (Git's) and ``removed_leftovers`` are gone.

    So are ``removed_statistics``, which were kept of tensors and chunks that nothing reaches.

    ``freed_bytes`` of disk are free now, less the ``new_packs_bytes`` written in place of others.
    ``kept_packs`` were to go and stayed, since something needs them now.
    """

    freed_bytes: int
    removed_packs: int
    new_packs_bytes: int
    removed_objects: int
    removed_leftovers: int
    kept_packs: int
    removed_statistics: int = 0


def plan_gc(
    context: Context, *, grace_s: float | None = None, expire_reflogs_s: float | None = None
) -> GcPlan:
    """Return what is unreachable and how many bytes that is; nothing is removed.

    Args:
        grace_s: garbage younger than this stays; defaults to two weeks.
        expire_reflogs_s: drop reflog entries older than this; defaults to 90 days, and 30 for
            entries that their ref no longer reaches. 0 drops everything that no ref reaches.

    Raises:
        FormatError: the history is damaged.
        CorruptionError: something that is needed is missing.
    """
    return plan_sweeping(context, grace_s=grace_s, expiry=reflog_expiry(expire_reflogs_s))


def plan_sweeping(
    context: Context,
    *,
    grace_s: float | None = None,
    expiry: ReflogExpiry | None = None,
    releasing: Sequence[Release] = (),
    keep: Ids = NO_IDS,
) -> GcPlan:
    """Return what nothing reaches; changes nothing.

    Garbage younger than ``grace_s`` stays, but what was released goes at once; ``releasing`` counts
    as released already, but for the chunks to ``keep``.
    """
    expiry = expiry or ReflogExpiry()
    grace_s = DEFAULT_GRACE_S if grace_s is None else grace_s
    started_s = time.time()
    marks = mark(context, grace_s=grace_s, expiry=expiry, releasing=releasing)
    copies = context.here.copies()
    needed = find_needed(context, copies, marks)
    unnamed = find_unnamed(context, copies, marks, started_s - grace_s) | copies.mask(keep)
    sweep = plan_sweep(copies, Wanted(needed | unnamed))
    garbage = list_garbage(context.history, marks.objects, older_than_s=grace_s)
    leftovers = list_leftovers(context)
    return GcPlan(
        grace_s=grace_s,
        sweep=sweep,
        objects=sum(item.count for item in garbage),
        object_bytes=sum(item.size_bytes for item in garbage),
        leftovers=len(leftovers),
        leftover_bytes=sum(item.size_bytes for item in leftovers),
        statistics=len(find_useless(context, marks)),
        reflog_entries=sum(expire_reflogs(context.history, expiry, dry_run=True).values()),
        expiry=expiry,
        marks=marks,
        unnamed=copies.ids[unnamed],
        releasing=releasing,
    )


def reflog_expiry(older_than_s: float | None) -> ReflogExpiry:
    """Return Git's two ages, or one for both; 0 forgets only what no ref leads to."""
    if older_than_s is None:
        return ReflogExpiry()
    if older_than_s <= 0:
        return ReflogExpiry(unreachable_older_than_s=0)
    return ReflogExpiry(int(older_than_s), min(int(older_than_s), 30 * DAY_S))


def gc(context: Context, plan: GcPlan | None = None, *, grace_s: float | None = None) -> GcResult:
    """Remove what is unreachable; safe alongside commits and readers.

    Args:
        plan: from ``plan_gc``, made again if the packs are others by now; by default it is made now.
        grace_s: as for ``plan_gc``, if there is no plan.

    Raises:
        CorruptionError: the repository is damaged; nothing more is removed.
    """
    plan = plan or plan_sweeping(context, grace_s=grace_s)
    with upkeep_lock(context):
        if not is_current(context, plan.sweep):
            plan = plan_sweeping(context, grace_s=plan.grace_s, expiry=plan.expiry)
        return sweep_garbage(context, plan)


def sweep_garbage(context: Context, plan: GcPlan) -> GcResult:
    """Carry out a plan, as ``gc`` does; the caller has ``upkeep_lock``."""
    sweep = Sweep(
        context,
        plan.sweep,
        plan.marks,
        plan.unnamed,
        grace_s=plan.grace_s,
        expiry=plan.expiry,
        releasing=plan.releasing,
    )
    sweep.remove_objects()
    tally = sweep.run({})
    useless = find_useless(context, sweep.marks or plan.marks) if plan.statistics else []
    freed_bytes = context.kept.drop(useless)
    return GcResult(
        freed_bytes=freed_bytes + tally.object_bytes + tally.freed_bytes - tally.new_bytes,
        removed_packs=tally.removed,
        new_packs_bytes=tally.new_bytes,
        removed_objects=tally.objects,
        removed_leftovers=tally.leftovers,
        removed_statistics=len(useless),
        kept_packs=tally.kept,
    )

"""gc: remove what nothing reaches, and nothing else, beside running commits and readers.

    plan    mark (no lock) ──► which objects and packs go, which packs are written anew
    run     new packs, durable ──► alone: look at all roots again ──► objects, then old packs

Planning takes no lock, so it may be out of date when it is done. Therefore nothing is removed
before the sweeper is alone and has looked again: objects are listed anew, and packs go only if
every chunk that is needed by then can be decoded without them. Where that is not so, because a
commit took up old content meanwhile, those packs stay, and the next gc sees to it.

Readers take no lock. One that finds a pack gone looks where its chunks are now, and starts over.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mvc.chunkstore.copies import NONE
from mvc.chunkstore.sweep_plan import Wanted, plan_sweep
from mvc.errors import ConflictError, CorruptionError
from mvc.fs import exclusive_lock
from mvc.history.reflog_expiry import DAY_S, ReflogExpiry
from mvc.ids import ID_BYTES
from mvc.progress import announce
from mvc.upkeep.marks import Marks
from mvc.workspace.transition import recover

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from mvc.chunkstore.copies import Ids, Mask, StoredCopies
    from mvc.chunkstore.sweep_plan import SweepBatch, SweepPlan
    from mvc.dtypes import DType
    from mvc.ids import ChunkId, PackId
    from mvc.workspace.context import Context
    from mvc.workspace.releases import Release

DEFAULT_GRACE_S = 14 * DAY_S
LOCK_NAME = "upkeep.lock"
_FSCK_HINT = 'run "mvc fsck --data"; nothing is removed from a damaged repository'


@dataclass(frozen=True, slots=True)
class GcPlan:
    """What a gc would do.

    Attributes:
        grace_s: garbage younger than this stays.
        sweep: what happens to packs.
        objects: Git objects and left temporary files that go.
        object_bytes: what they take.
        reflog_entries: entries of reflogs that expired.
        expiry: how long reflogs remember.
        marks: what is needed.
        unnamed: chunks of young packs that nobody names.
    """

    grace_s: float
    sweep: SweepPlan
    objects: int
    object_bytes: int
    reflog_entries: int
    expiry: ReflogExpiry = field(repr=False)
    marks: Marks = field(repr=False)
    unnamed: Ids = field(repr=False)

    @property
    def freed_bytes(self) -> int:
        """Bytes on disk that are free afterwards; an estimate where chunks are encoded again."""
        return self.sweep.freed_bytes + self.object_bytes

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.sweep.is_empty and not self.objects and not self.reflog_entries


@dataclass(frozen=True, slots=True)
class GcResult:
    """What a gc did.

    Attributes:
        freed_bytes: bytes on disk that are free now, those of new packs counted against it.
        removed_packs: packs that are gone.
        new_packs_bytes: length of the packs written in place of others.
        removed_objects: Git objects that are gone.
        kept_packs: packs that were to go and stayed, since something needs them now.
    """

    freed_bytes: int
    removed_packs: int
    new_packs_bytes: int
    removed_objects: int
    kept_packs: int


def plan_gc(
    context: Context,
    *,
    grace_s: float = DEFAULT_GRACE_S,
    expiry: ReflogExpiry | None = None,
    releasing: Sequence[Release] = (),
) -> GcPlan:
    """Return what nothing reaches; nothing is changed but that an interrupted checkout is finished.

    Args:
        context: the repository.
        grace_s: garbage younger than this stays; content that was released goes at once.
        expiry: how long reflogs remember; Git's 90 and 30 days where None.
        releasing: acts of releasing to be taken as done.

    Raises:
        FormatError: the history is damaged.
        CorruptionError: something that is needed is not there.
    """
    recover(context)
    expiry = ReflogExpiry() if expiry is None else expiry
    started_s = time.time()
    marks = Marks(context, grace_s=grace_s, expiry=expiry, releasing=releasing)
    marks.look()
    copies = context.store.copies()
    needed = find_needed(copies, marks)
    unnamed = find_unnamed(context, copies, marks, started_s - grace_s)
    sweep = plan_sweep(copies, Wanted(needed | unnamed))
    garbage = context.history.list_garbage(marks.objects, older_than_s=grace_s)
    return GcPlan(
        grace_s=grace_s,
        sweep=sweep,
        objects=len(garbage),
        object_bytes=sum(item.size_bytes for item in garbage),
        reflog_entries=sum(context.history.expire_reflogs(expiry, dry_run=True).values()),
        expiry=expiry,
        marks=marks,
        unnamed=copies.ids[unnamed],
    )


def reflog_expiry(older_than_s: float | None) -> ReflogExpiry:
    """Return Git's two ages, or one for both; 0 forgets only what no ref leads to."""
    if older_than_s is None:
        return ReflogExpiry()
    if older_than_s <= 0:
        return ReflogExpiry(unreachable_older_than_s=0)
    return ReflogExpiry(int(older_than_s), min(int(older_than_s), 30 * DAY_S))


def find_needed(copies: StoredCopies, marks: Marks) -> Mask:
    """Return which stored chunks must stay because somebody names them.

    Raises:
        CorruptionError: one that a commit promises is not there, or cannot be decoded.
    """
    numbers = copies.find(marks.needed)
    is_there = np.append(copies.chosen, NONE)[numbers] != NONE
    lost = marks.needed[~is_there]
    names = lost.tobytes()
    ids = [names[start : start + ID_BYTES] for start in range(0, len(names), ID_BYTES)]
    damage = marks.find_damage(ids) if ids else None
    if damage is not None:
        raise CorruptionError(
            f"chunk {damage.hex()[:12]}, which commits need, is missing or damaged",
            hint=_FSCK_HINT,
        )
    found: Mask = np.zeros(len(copies), np.bool_)
    found[numbers[is_there]] = True
    return found


def find_unnamed(context: Context, copies: StoredCopies, marks: Marks, after_s: float) -> Mask:
    """Return the chunks of young packs that nobody names: an ``add`` may just have stored them."""
    young = context.store.find_young_packs(after_s)
    mask = np.zeros(len(copies), np.bool_)
    for number, index in enumerate(copies.indexes):
        if index.pack in young:
            mask[copies.chunks[copies.starts[number] : copies.starts[number + 1]]] = True
    unnamed: Mask = mask & ~copies.mask(marks.released) & (copies.chosen != NONE)
    return unnamed


def run_gc(
    context: Context, plan: GcPlan, progress: Callable[[int], None] | None = None
) -> GcResult:
    """Carry out a plan; may be killed at any time.

    Args:
        context: the repository.
        plan: from ``plan_gc``.
        progress: called with bytes of packs that are read.

    Raises:
        ConflictError: another gc or repack is running, or has run since the plan was made.
        CorruptionError: a pack is damaged; nothing of it was removed.
    """
    with upkeep(context):
        return sweep(context, plan, progress)


def sweep(
    context: Context, plan: GcPlan, progress: Callable[[int], None] | None = None
) -> GcResult:
    """Carry out a plan; the caller has ``upkeep``.

    Raises:
        ConflictError: another gc or repack has run since the plan was made.
        CorruptionError: a pack is damaged; nothing of it was removed.
    """
    check_current(context, plan.sweep)
    announce(progress, sum(batch.size_bytes for batch in plan.sweep.batches if batch.carry))
    removed, object_bytes = remove_objects(context, plan.marks, plan.grace_s, plan.expiry)
    tally = run_batches(context, plan.sweep.batches, plan.marks, plan.unnamed, {}, progress)
    return GcResult(
        freed_bytes=object_bytes + tally.freed_bytes - tally.new_bytes,
        removed_packs=tally.removed,
        new_packs_bytes=tally.new_bytes,
        removed_objects=removed,
        kept_packs=tally.kept,
    )


def check_current(context: Context, plan: SweepPlan) -> None:
    """Check that all packs that a plan is about are there.

    Raises:
        ConflictError: another gc or repack has removed some of them.
    """
    there = context.store.packs()
    if not all(pack in there for batch in plan.batches for pack in batch.remove):
        raise ConflictError(
            "another gc, prune or repack has changed the packs since this was planned",
            hint="plan it again",
        )


def remove_objects(
    context: Context, marks: Marks, grace_s: float, expiry: ReflogExpiry | None = None
) -> tuple[int, int]:
    """Remove old reflog entries and objects; return how many objects, and the bytes that frees."""
    history = context.history
    with history.sweep_alone():
        recover(context)  # what a journal names is in use
        if expiry is not None:
            history.expire_reflogs(expiry)
        marks.look()
        garbage = history.list_garbage(marks.objects, older_than_s=grace_s)
        freed_bytes = history.remove_objects(garbage)
        freed_bytes += context.store.sweep_temporaries()
    return len(garbage), freed_bytes


@dataclass(slots=True)
class Tally:
    """What batches did so far."""

    freed_bytes: int = 0
    new_bytes: int = 0
    new_packs: int = 0
    removed: int = 0
    kept: int = 0


def run_batches(
    context: Context,
    batches: Sequence[SweepBatch],
    marks: Marks,
    unnamed: Ids,
    dtypes: Mapping[ChunkId, DType | None],
    progress: Callable[[int], None] | None = None,
) -> Tally:
    """Carry out the batches of a sweep plan, each durable before anything of it is removed."""
    tally = Tally()
    for batch in batches:
        if batch.encode or batch.carry:
            with context.history.no_sweep():
                context.store.refresh()
                counts = context.store.write_batch(batch, dtypes, progress)
            tally.new_bytes += counts.stored_bytes
            tally.new_packs += counts.packs
        if batch.remove:
            _remove_packs(context, batch.remove, marks, unnamed, tally)
    with context.history.no_sweep():
        context.store.mend_indexes()  # of packs that another meant to remove, and that stay
    return tally


def _remove_packs(
    context: Context, packs: Collection[PackId], marks: Marks, unnamed: Ids, tally: Tally
) -> None:
    with context.history.sweep_alone():
        recover(context)
        marks.look()
        needed = np.concatenate([marks.needed, unnamed])
        if context.store.find_unsafe(packs, needed):
            tally.kept += len(packs)
            return
        tally.freed_bytes += context.store.remove_packs(packs)
        tally.removed += len(packs)


@contextlib.contextmanager
def upkeep(context: Context) -> Iterator[None]:
    """Be the only one who rewrites packs.

    Raises:
        ConflictError: somebody else is at it.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(exclusive_lock(context.git_dir / LOCK_NAME, wait=False))
        except ConflictError as error:
            raise ConflictError(
                "another gc, prune or repack is running", hint="let it end, then try again"
            ) from error
        yield

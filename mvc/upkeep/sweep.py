"""The second half of mark and sweep: what gc, prune and repack do alike.

    plan    mark (no lock) ──► which objects and packs go, which packs are rewritten
    run     new packs, durable ──► alone: look at all roots again ──► objects, then old packs

Planning takes no lock, so a plan may be out of date when it is carried out. Therefore nothing is
removed before the sweeper is alone and has looked again: objects are listed again, and packs go only
if every chunk that is needed by then can be decoded without them. If a commit took up old content
meanwhile, those packs stay for the next sweep.

Readers take no lock. One that finds a pack gone looks for its chunks again and starts over.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mvc.chunkstore.copies import NONE
from mvc.errors import ConflictError, CorruptionError
from mvc.fs import exclusive_lock
from mvc.history.object_sweep import list_garbage, remove_objects
from mvc.history.reachability import DAY_S, expire_reflogs
from mvc.ids import ID_BYTES
from mvc.progress import announce
from mvc.upkeep.marks import Marks, find_promised, mark
from mvc.workspace.recovery import recover

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mvc.chunkstore.copies import Ids, Mask, StoredCopies
    from mvc.chunkstore.sweep_plan import SweepBatch, SweepPlan
    from mvc.dtypes import DType
    from mvc.history.reachability import ReflogExpiry
    from mvc.ids import ChunkId
    from mvc.workspace.context import Context

DEFAULT_GRACE_S = 14 * DAY_S
LOCK_NAME = "upkeep.lock"
_FSCK_HINT = 'run "mvc fsck --data"; nothing is removed from a damaged repository'


@contextlib.contextmanager
def upkeep_lock(context: Context) -> Iterator[None]:
    """Be the only one who rewrites packs, or raise ``ConflictError``."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(exclusive_lock(context.git_dir / LOCK_NAME, wait=False))
        except ConflictError as error:
            raise ConflictError(
                "another gc, prune or repack is running", hint="let it end, then try again"
            ) from error
        yield


def find_needed(context: Context, copies: StoredCopies, marks: Marks) -> Mask:
    """Return which stored chunks must stay because something names them.

    Fails if one that a commit needs is not there, or cannot be decoded.
    """
    numbers = copies.find(marks.needed)
    is_there = np.append(copies.chosen, NONE)[numbers] != NONE
    names = marks.needed[~is_there].tobytes()
    lost = [names[start : start + ID_BYTES] for start in range(0, len(names), ID_BYTES)]
    damage = find_promised(context, marks, lost)
    if damage is not None:
        raise CorruptionError(
            f"chunk {damage.hex()[:12]}, which commits need, is missing or damaged",
            hint=_FSCK_HINT,
        )
    found: Mask = np.zeros(len(copies), np.bool_)
    found[numbers[is_there]] = True
    return found


def find_unnamed(context: Context, copies: StoredCopies, marks: Marks, after_s: float) -> Mask:
    """Return the chunks of young packs that nothing names: an ``add`` may just have stored them."""
    made_s = context.store.list_packs().made_s
    mask = np.zeros(len(copies), np.bool_)
    for number, index in enumerate(copies.indexes):
        if made_s.get(index.pack, 0.0) > after_s:
            mask[copies.chunks[copies.starts[number] : copies.starts[number + 1]]] = True
    unnamed: Mask = mask & ~copies.mask(marks.released) & (copies.chosen != NONE)
    return unnamed


@dataclass(slots=True)
class Tally:
    """What a sweep did so far."""

    freed_bytes: int = 0
    new_bytes: int = 0
    new_packs: int = 0
    removed: int = 0
    kept: int = 0
    objects: int = 0
    object_bytes: int = 0


class Sweep:
    """A sweep that is being carried out under ``upkeep_lock``; may be killed at any time.

    ``marks`` are what was needed when it was planned, ``unnamed`` the chunks of young packs that
    nothing names.

    Raises:
        ConflictError: another sweep has run since the plan was made.
    """

    def __init__(
        self,
        context: Context,
        plan: SweepPlan,
        marks: Marks | None,
        unnamed: Ids,
        *,
        grace_s: float,
        expiry: ReflogExpiry | None,
    ) -> None:
        self._context = context
        self._plan = plan
        self._marks = marks
        self._unnamed = unnamed
        self._grace_s = grace_s
        self._expiry = expiry
        self._tally = Tally()
        there = context.store.packs()
        if not all(pack in there for batch in plan.batches for pack in batch.remove):
            raise ConflictError(
                "another gc, prune or repack has changed the packs since this was planned",
                hint="plan it again",
            )

    def remove_objects(self) -> None:
        """Remove old reflog entries, and Git objects that are garbage."""
        history = self._context.history
        with history.sweep_alone():
            recover(self._context)  # what a journal names is in use
            if self._expiry is not None:
                expire_reflogs(history, self._expiry)
            garbage = list_garbage(history, self._look().objects, older_than_s=self._grace_s)
            self._tally.objects = len(garbage)
            self._tally.object_bytes = remove_objects(history, garbage)
            self._tally.object_bytes += self._context.store.sweep_temporaries()

    def _look(self) -> Marks:
        self._marks = mark(
            self._context, grace_s=self._grace_s, expiry=self._expiry, before=self._marks
        )
        return self._marks

    def run(
        self,
        dtypes: Mapping[ChunkId, DType | None],
        progress: Callable[[int], None] | None = None,
    ) -> Tally:
        """Carry out the plan batch by batch, each durable before anything of it is removed.

        ``dtypes`` says what the words of chunks are that will be encoded again.

        Raises:
            CorruptionError: a pack is damaged; nothing of it was removed.
        """
        context, tally = self._context, self._tally
        announce(progress, sum(batch.size_bytes for batch in self._plan.batches if batch.carry))
        for batch in self._plan.batches:
            if batch.encode or batch.carry:
                with context.history.no_sweep():
                    context.store.refresh()
                    counts = context.store.write_batch(batch, dtypes, progress)
                tally.new_bytes += counts.stored_bytes
                tally.new_packs += counts.packs
            if batch.remove:
                self._remove_packs(batch)
        with context.history.no_sweep():
            context.store.mend_indexes()  # of packs that another meant to remove, and that stay
        return tally

    def _remove_packs(self, batch: SweepBatch) -> None:
        store = self._context.store
        with self._context.history.sweep_alone():
            recover(self._context)
            needed = np.concatenate([self._look().needed, self._unnamed])
            if store.find_unsafe(batch.remove, needed):
                self._tally.kept += len(batch.remove)
                return
            self._tally.freed_bytes += store.remove_packs(batch.remove)
            self._tally.removed += len(batch.remove)

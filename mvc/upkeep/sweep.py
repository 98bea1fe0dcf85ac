"""Mark and sweep: what gc, prune and repack do alike.

*Needed* is every chunk of a file version that can still be reached and was not released: from
HEAD, refs, reflogs, the index, and objects that are garbage but too young to go. *Released* is what
only released versions name. What neither names is garbage: of writers that died, or of history that
is gone.

Garbage may have lost a part already, and a reset to a released commit puts entries without content
into the index: what they name stays as far as it is there. Only what a commit names must be there.

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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mvc.chunkstore.copies import NONE
from mvc.errors import ConflictError, CorruptionError, FormatError
from mvc.fs import exclusive_lock
from mvc.history.object_gather import gather_objects, plan_gathering
from mvc.history.object_sweep import find_recent, list_garbage, remove_objects
from mvc.history.reachability import DAY_S, ReflogExpiry, expire_reflogs, reachable_objects
from mvc.ids import ChunkId, GitId, split_ids
from mvc.progress import announce
from mvc.upkeep.versions import Versions, find_live
from mvc.workspace.manifests import find_manifest
from mvc.workspace.recovery import recover
from mvc.workspace.released import released_blobs
from mvc.workspace.releases import Release, read_releases
from mvc.workspace.staging import remove_leftovers

if TYPE_CHECKING:
    from mvc.chunkstore.copies import Ids, Mask, StoredCopies
    from mvc.chunkstore.sweep_plan import SweepBatch, SweepPlan
    from mvc.dtypes import DType
    from mvc.workspace.context import Context

DEFAULT_GRACE_S = 14 * DAY_S
LOCK_NAME = "upkeep.lock"
_MERGE_BYTES = 64 * 2**20
NO_IDS = np.empty(0, "S32")
_FSCK_HINT = 'run "mvc fsck --data"; nothing is removed from a damaged repository'


class IdSet:
    """A growing set of chunk ids, held as arrays: a hundred million take 3 GB, not 15."""

    def __init__(self, ids: Ids = NO_IDS) -> None:
        self._fresh = bytearray()
        self._ids = ids

    def add(self, ids: Iterable[bytes]) -> None:
        """Add some ids."""
        self._fresh += b"".join(ids)
        if len(self._fresh) > max(_MERGE_BYTES, self._ids.nbytes):
            self.sorted()

    def sorted(self) -> Ids:
        """Return the ids, ascending, each once."""
        if self._fresh:
            fresh = np.frombuffer(bytes(self._fresh), "S32")
            self._ids = np.unique(np.concatenate([self._ids, fresh]))
            self._fresh = bytearray()
        return self._ids


@dataclass(frozen=True, slots=True)
class SweepMarks:
    """What one look at the repository found; chunks are in ascending order."""

    versions: Versions  # remembers which files commits have, for the next look
    objects: Collection[GitId] = frozenset()
    needed: Ids = field(default_factory=lambda: NO_IDS)
    released: Ids = field(default_factory=lambda: NO_IDS)  # some may be needed nevertheless
    promised: frozenset[GitId] = frozenset()  # a commit names them: all their chunks must be there
    live: frozenset[GitId] = frozenset()  # what ``needed`` was read from
    let_go: frozenset[GitId] = frozenset()  # what ``released`` was read from


def mark(
    context: Context,
    *,
    grace_s: float,
    expiry: ReflogExpiry | None,
    releasing: Sequence[Release] = (),
    before: SweepMarks | None = None,
) -> SweepMarks:
    """Return what is needed now, and what was needed ``before``: only what is new since is read.

    Garbage younger than ``grace_s`` keeps its content; ``releasing`` counts as done. A damaged
    history is a FormatError: nothing may be removed.
    """
    history, known = context.history, before or SweepMarks(Versions(context))
    objects = reachable_objects(history, expiry=expiry)
    releases = {commit: list(many) for commit, many in read_releases(context).items()}
    for release in releasing:
        releases.setdefault(release.commit, []).append(release)
    named = find_live(context, releases, known.versions, expiry=expiry)
    recent = find_recent(history, objects, older_than_s=grace_s)
    acts = (release for many in releases.values() for release in many)
    let_go = frozenset(blob for release in acts for blob in released_blobs(context, release))
    promised = known.promised.union(
        blob for blob, (commit, _) in named.items() if commit or blob not in let_go
    )
    live = named.keys() | (recent - let_go)
    if releases:  # else every young object is live anyway
        live |= _find_unreleased(context, recent, releases, known.versions)
    return SweepMarks(
        known.versions,
        objects,
        _with_chunks(context, known.needed, live - known.live, promised),
        _with_chunks(context, known.released, let_go - known.let_go, promised),
        promised,
        known.live | live,
        known.let_go | let_go,
    )


def _find_unreleased(
    context: Context,
    recent: Iterable[GitId],
    releases: Mapping[GitId, Sequence[Release]],
    versions: Versions,
) -> set[GitId]:
    """Return the manifests of young unreachable commits whose content was not released.

    So a branch that was deleted by mistake can be restored whole, whatever it shares.
    """
    blobs: set[GitId] = set()
    for commit in recent:
        with contextlib.suppress(FormatError):  # not a commit, or garbage that lost a part
            info = context.history.read_commit(commit)
            blobs.update(versions.left(info, releases).values())
    return blobs


def _with_chunks(
    context: Context, ids: Ids, blobs: Iterable[GitId], promised: Collection[GitId]
) -> Ids:
    """Return some chunk ids and those that manifests name."""
    grown = IdSet(ids)
    for blob in blobs:
        if context.history.find_blob_size(blob) is None:
            continue  # a recent commit or tree
        with contextlib.suppress(*(() if blob in promised else (FormatError,))):
            manifest = find_manifest(context, blob)
            if manifest is not None:
                grown.add(manifest.chunk_ids())
    return grown.sorted()


def find_promised(context: Context, marks: SweepMarks, lost: Iterable[bytes]) -> bytes | None:
    """Return one of some chunks that are gone although a commit needs it, or None."""
    missing = set(lost)
    for blob in marks.promised if missing else ():
        manifest = find_manifest(context, blob)
        for chunk in () if manifest is None else manifest.chunk_ids():
            if chunk in missing:
                return chunk
    return None


@contextlib.contextmanager
def upkeep_lock(context: Context) -> Iterator[None]:
    """Be the only one who rewrites packs, or raise ``ConflictError``."""
    with contextlib.ExitStack() as stack:
        try:
            with context.history.no_sweep():  # a gathering, which is short, is waited for
                stack.enter_context(exclusive_lock(context.git_dir / LOCK_NAME, wait=False))
        except ConflictError as error:
            raise ConflictError(
                "another gc, prune or repack is running", hint="let it end, then try again"
            ) from error
        yield


def is_current(context: Context, plan: SweepPlan) -> bool:
    """Tell whether all packs that a plan removes are there: others may have swept or joined them.

    Under ``upkeep_lock`` that cannot change.
    """
    return context.here.packs().issuperset(pack for batch in plan.batches for pack in batch.remove)


def find_needed(context: Context, copies: StoredCopies, marks: SweepMarks) -> Mask:
    """Return which stored chunks must stay because something names them.

    Fails if one that a commit needs is not there, or cannot be decoded, and no remote promises it.
    """
    lost = find_lost(context, marks.needed[~copies.decodes(marks.needed)])
    damage = find_promised(context, marks, split_ids(lost.tobytes()))
    if damage is not None:
        raise CorruptionError(
            f"chunk {damage.hex()[:12]}, which commits need, is missing or damaged",
            hint=_FSCK_HINT,
        )
    mask: Mask = copies.mask(marks.needed) & (copies.chosen != NONE)
    return mask


def find_lost(context: Context, missing: Ids) -> Ids:
    """Return those of some chunks that are not here and that no remote promises to give."""
    if not len(missing) or context.store is context.here:
        return missing
    lost: Ids = missing[~context.store.copies().decodes(missing)]
    return lost


def find_unnamed(context: Context, copies: StoredCopies, marks: SweepMarks, after_s: float) -> Mask:
    """Return the chunks of young packs that nothing names: an ``add`` may just have stored them."""
    made_s = context.here.list_packs().made_s
    mask = np.zeros(len(copies), np.bool_)
    for number, index in enumerate(copies.indexes):
        if made_s.get(index.pack, 0.0) > after_s:
            mask[copies.chunks[copies.starts[number] : copies.starts[number + 1]]] = True
    unnamed: Mask = mask & ~copies.mask(marks.released) & (copies.chosen != NONE)
    return unnamed


@dataclass(slots=True)
class SweepTally:
    """What a sweep did so far."""

    freed_bytes: int = 0
    new_bytes: int = 0
    new_packs: int = 0
    removed: int = 0
    kept: int = 0
    objects: int = 0
    object_bytes: int = 0  # of leftovers too
    leftovers: int = 0


@dataclass(slots=True, eq=False)
class Sweep:
    """A sweep that is being carried out under ``upkeep_lock``; may be killed at any time.

    ``marks`` are what was needed when it was planned, ``unnamed`` the chunks of young packs that
    nothing names, and others that are to stay; what ``releasing`` names may go. The plan fits the packs that are there (``is_current``).
    """

    context: Context
    plan: SweepPlan
    marks: SweepMarks | None
    unnamed: Ids
    grace_s: float
    expiry: ReflogExpiry | None
    releasing: Sequence[Release] = ()
    tally: SweepTally = field(default_factory=SweepTally)

    def remove_objects(self) -> None:
        """Remove old reflog entries, Git objects that are garbage, and leftovers."""
        history = self.context.history
        with history.sweep_alone():
            recover(self.context)  # what a journal names is in use
            if self.expiry is not None:
                expire_reflogs(history, self.expiry)
            garbage = list_garbage(history, self._look().objects, older_than_s=self.grace_s)
            self.tally.objects = sum(item.count for item in garbage)
            self.tally.object_bytes = remove_objects(history, garbage)
            leftovers = remove_leftovers(self.context)
            self.tally.leftovers = len(leftovers)
            self.tally.object_bytes += sum(item.size_bytes for item in leftovers)

    def gather_objects(self) -> None:
        """Move Git objects that are needed from loose files and short packs into one pack."""
        history = self.context.history
        with history.sweep_alone():
            needed = self._look().objects
            loose, packs = plan_gathering(history, needed, older_than_s=self.grace_s)
            gather_objects(history, loose, packs, needed)

    def _look(self) -> SweepMarks:
        self.marks = mark(
            self.context,
            grace_s=self.grace_s,
            expiry=self.expiry,
            releasing=self.releasing,
            before=self.marks,
        )
        return self.marks

    def run(self, dtypes: Mapping[ChunkId, DType | None]) -> SweepTally:
        """Carry out the plan batch by batch, each durable before anything of it is removed.

        ``dtypes`` says what the words of chunks are that will be encoded again. A damaged pack is a
        CorruptionError; nothing of it was removed.
        """
        context, tally = self.context, self.tally
        announce(sum(batch.size_bytes for batch in self.plan.batches if batch.carry))
        for batch in self.plan.batches:
            if batch.encode or batch.carry:
                with context.history.no_sweep():
                    context.here.refresh()
                    counts = context.here.write_batch(batch, dtypes)
                tally.new_bytes += counts.stored_bytes
                tally.new_packs += counts.packs
            if batch.remove:
                self._remove_packs(batch)
        with context.history.no_sweep():
            context.here.mend_indexes()  # of packs that another meant to remove, and that stay
        return tally

    def _remove_packs(self, batch: SweepBatch) -> None:
        store = self.context.here
        with self.context.history.sweep_alone():
            recover(self.context)
            needed = np.concatenate([self._look().needed, self.unnamed])
            if store.find_unsafe(batch.remove, needed):
                self.tally.kept += len(batch.remove)
                return
            self.tally.freed_bytes += store.remove_packs(batch.remove)
            self.tally.removed += len(batch.remove)

"""gc of a remote: packs that hold what its refs do not reach leave its root, and later its store.

What a root names is read into a mirror, so nothing depends on what the repository here knows or lacks.
Packs that are mostly garbage, and short ones if there are many, are joined first. All that a newer root
reaches is looked at again in the put that takes packs out: a push may have built upon them. Writers whose
put comes later find that packs are gone, and plan again (``remotes/sweeping``).
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mvc import fs
from mvc.chunkstore.chains import ReadSlot
from mvc.chunkstore.listing import PACKS, pack_key
from mvc.chunkstore.parallel import for_each
from mvc.chunkstore.rewriter import carry_rows, check_pack, find_unsafe
from mvc.chunkstore.store import ChunkStore
from mvc.chunkstore.sweep_plan import SMALL_PACK_BYTES, SweepBatch, SweepPlan, Wanted, plan_sweep
from mvc.errors import CorruptionError, UnsupportedError, UsageError
from mvc.history.transfer import list_packed, write_objects
from mvc.ids import GitId, PackId, split_ids
from mvc.progress import announce, report
from mvc.remotes.checked import require_safe_refs
from mvc.remotes.history import CROWD_PACKS, bring_history, choose_crowd, fetch_packs, list_chunks
from mvc.remotes.mirror import find_misfits, list_sizes, make_mirror
from mvc.remotes.released import find_lost
from mvc.remotes.remote import Remote, open_remote
from mvc.remotes.root import Listing, Root, history_key, object_name, with_packs
from mvc.remotes.root_store import RootStore
from mvc.remotes.sweeping import (
    MovedError,
    check_base,
    delete_unnamed,
    list_unnamed,
    note_unnamed,
    plan_until_it_holds,
    without_packs,
)
from mvc.storage.local import LocalStorage
from mvc.upkeep.sweep import DEFAULT_GRACE_S
from mvc.workspace.staging import scratch_folder

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.chunkstore.copies import Ids
    from mvc.formats.pack_index import PackIndex
    from mvc.remotes.sweeping import Unnamed
    from mvc.workspace.context import Context

MIN_WASTE = 0.5
"""A pack is written again if this share of it is garbage: more than travels for it."""
_FETCH_PACKS = 2
_FSCK_HINT = '"mvc fsck --remote" tells what is wrong; nothing is removed from a damaged remote'


@dataclass(frozen=True, slots=True)
class RemoteGcPlan:
    """What a gc of a remote would do.

    Attributes:
        url: of the remote.
        grace_s: what left the root, or came and was never named, stays for so long.
        sweep: what happens to packs that the root names.
        history_packs: how many Git packs leave the root, being joined into one.
        delete_objects: how many objects go, since no root has named them for the grace period.
        delete_bytes: what they take.
        waiting_objects: how many no root names, and stay for now.
        waiting_bytes: what they take.
    """

    url: str
    grace_s: float
    sweep: SweepPlan
    history_packs: int
    delete_objects: int
    delete_bytes: int
    waiting_objects: int
    waiting_bytes: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.sweep.is_empty and not (self.history_packs or self.delete_objects)


@dataclass(frozen=True, slots=True)
class RemoteGcResult:
    """What a gc of a remote did.

    Attributes:
        plan: what was planned.
        left_packs: how many packs the root does not name any more.
        new_packs_bytes: what was written in their place.
        deleted_objects: how many objects are gone.
        freed_bytes: what they took.
        waiting_objects: how many objects no root names, and stay for the grace period.
        waiting_bytes: what they take.
    """

    plan: RemoteGcPlan
    left_packs: int
    new_packs_bytes: int
    deleted_objects: int
    freed_bytes: int
    waiting_objects: int
    waiting_bytes: int


def plan_gc_remote(
    context: Context, remote: str | None = None, *, grace_s: float | None = None
) -> RemoteGcPlan:
    """Return what ``gc_remote`` would do; nothing changes there.

    Raises:
        MvcError: as of ``gc_remote``.
    """
    there, grace_s = _open(context, remote, grace_s)
    with scratch_folder(context) as folder:
        return _Look(there, folder, there.read_root()).plan(grace_s)


def gc_remote(
    context: Context, remote: str | None = None, *, grace_s: float | None = None
) -> RemoteGcResult:
    """Remove from a remote what its refs and channels do not reach.

    That leaves the root of the remote at once, and the store after a grace period. Packs that are
    mostly garbage are written again, many short ones are joined. Others may push and fetch
    meanwhile, and it may be killed at any time.

    Args:
        remote: name or URL; as for ``push`` by default.
        grace_s: what is not named any more, or was sent and never named, stays for so long; two
            weeks by default.

    Raises:
        NotFoundError: there is no such remote, or nothing was pushed to it.
        CorruptionError: it lacks what its refs need, or is damaged; nothing was removed.
        UnsupportedError: its history is on a Git host.
        ConflictError: it changed again and again.
        StorageError: it cannot be reached.
    """
    there, grace_s = _open(context, remote, grace_s)
    require_safe_refs(context, there.settings, has_root=True)

    def sweep() -> tuple[RemoteGcPlan, int, int]:
        with scratch_folder(context) as folder:
            look = _Look(there, folder, there.read_root())
            plan = look.plan(grace_s)
            new_bytes = look.join_history()
            for batch in plan.sweep.batches:
                new_bytes += look.replace_packs(batch)
            return plan, look.left_packs, new_bytes

    trouble = f"{there.settings.url} changes again and again"
    return _delete(there, *plan_until_it_holds(sweep, trouble))


def _open(context: Context, name: str | None, grace_s: float | None) -> tuple[Remote, float]:
    grace_s = DEFAULT_GRACE_S if grace_s is None else grace_s
    if grace_s < 0:
        raise UsageError("a grace period is not negative")
    there = open_remote(context, name)
    _roots_of(there)  # a Git host is refused before anything is asked
    return there, grace_s


def _roots_of(there: Remote) -> RootStore:
    if isinstance(there.roots, RootStore):
        return there.roots
    raise UnsupportedError(
        f"the history of {there.settings.url} is on a Git host: what its content is needed for is not known here"
    )


def _delete(there: Remote, plan: RemoteGcPlan, left_packs: int, new_bytes: int) -> RemoteGcResult:
    """Delete what is due; what has just left the root is noted there."""
    before_s = _find_limit(plan.grace_s)
    root = there.read_root()
    note_unnamed(_roots_of(there), _list_unnamed(there, root), int(time.time()))
    unnamed = _list_unnamed(there, there.read_root())
    due, waiting = _split(unnamed, before_s)
    gone = list(delete_unnamed(_roots_of(there), due, before_s=before_s))
    for item in gone:
        if item.name.startswith(PACKS):
            there.packs.forget(PackId(item.name.removeprefix(PACKS)))
    return RemoteGcResult(
        plan,
        left_packs,
        new_bytes,
        sum(len(item.keys) for item in gone),
        sum(item.size_bytes for item in gone),
        sum(len(item.keys) for item in waiting),
        sum(item.size_bytes for item in waiting),
    )


def _list_unnamed(there: Remote, root: Root) -> list[Unnamed]:
    return list_unnamed(there.storage, root, _roots_of(there).read_listing(root))


def _find_limit(grace_s: float) -> float:
    """Return since when something has to be unnamed to go; without grace, clocks do not matter."""
    return time.time() - grace_s if grace_s else math.inf


def _split(unnamed: Iterable[Unnamed], before_s: float) -> tuple[list[Unnamed], list[Unnamed]]:
    """Return what may go, and what stays for now."""
    due: list[Unnamed] = []
    waiting: list[Unnamed] = []
    for item in unnamed:
        since_s = math.inf if item.since_s is None else item.since_s
        (due if since_s <= before_s else waiting).append(item)
    return due, waiting


class _Look:
    """What a root of a remote names and reaches, in a scratch folder; grows with newer roots."""

    def __init__(self, there: Remote, folder: Path, root: Root) -> None:
        self.left_packs = 0
        self._there, self._folder, self._base = there, folder, root
        self._roots = _roots_of(there)
        self._mirror = make_mirror(folder, there, root)
        self._source = Remote(self._mirror, there.settings)
        self._listing = self._roots.read_listing(root)
        folder = self._source.folder / "history"
        fs.make_dirs(folder)
        # The objects of the Git packs, with their sizes; the mirror takes them from there.
        self._packed = list_packed(fetch_packs(there, self._listing.history, folder))
        self._known: set[GitId] = set()
        self._objects: set[GitId] = set()
        self._later: set[GitId] = set()
        self._needed: Ids = np.empty(0, "S32")
        self._reach(root)
        self._later.clear()

    def _reach(self, root: Root) -> None:
        """Take in what a root reaches and those before did not."""
        tips = set(root.tips()) - self._known
        if not tips:
            return
        history = self._roots.read_listing(root).history
        entries = bring_history(self._mirror, self._source, history, tips, self._known)
        wanted = list_chunks(self._mirror, entries)
        self._check_whole(root, wanted, entries)
        self._known |= tips
        self._needed = np.union1d(self._needed, wanted)
        fresh = {one for one, _ in entries}
        self._objects |= fresh
        self._later |= fresh

    def _check_whole(self, root: Root, wanted: Ids, entries: Sequence[tuple[GitId, str]]) -> None:
        copies = self._there.packs.copies(self._roots.read_listing(root).packs)
        missing = split_ids(wanted[~copies.decodes(wanted)].tobytes())
        if find_lost(self._mirror, entries, missing):
            raise CorruptionError(
                f"{self._there.settings.url} lacks content that its refs need",
                hint=_FSCK_HINT,
            )

    def plan(self, grace_s: float) -> RemoteGcPlan:
        """Return what there is to do."""
        copies = self._there.packs.copies(self._listing.packs)
        needed = copies.close(copies.mask(self._needed))
        small = sum(size < SMALL_PACK_BYTES for size in self._listing.packs.values())
        # What others are based on stays as it is: to encode it again, more would have to travel.
        wanted = Wanted(needed, gather_small=small >= CROWD_PACKS, min_waste=MIN_WASTE)
        lost = next(find_misfits(self._listing, list_sizes(self._there.storage)), None)
        if lost is not None:
            raise CorruptionError(lost[2], hint=_FSCK_HINT)
        found = _list_unnamed(self._there, self._base)
        due, waiting = _split(found, _find_limit(grace_s))
        return RemoteGcPlan(
            url=str(self._there.settings.url),
            grace_s=grace_s,
            sweep=plan_sweep(copies, wanted),
            history_packs=len(self._choose_history()),
            delete_objects=sum(len(one.keys) for one in due),
            delete_bytes=sum(one.size_bytes for one in due),
            waiting_objects=sum(len(one.keys) for one in waiting),
            waiting_bytes=sum(one.size_bytes for one in waiting),
        )

    def _choose_history(self) -> set[str]:
        """Return the Git packs to join: short ones if there are many, and those mostly of garbage."""
        chosen = set(choose_crowd(self._listing.history))
        for name, sizes in self._packed.items():
            live_bytes = sum(
                size for object_id, size in sizes.items() if object_id in self._objects
            )
            if live_bytes <= (1 - MIN_WASTE) * sum(sizes.values()):
                chosen.add(name)
        return chosen

    def join_history(self) -> int:
        """Replace Git packs by one with what is reached of them; return its length in bytes."""
        leaving = self._choose_history()
        if not leaving:
            return 0
        others = {
            object_id for name in self._packed.keys() - leaving for object_id in self._packed[name]
        }
        inside = {object_id for name in leaving for object_id in self._packed[name]}
        kept = sorted((inside & self._objects) - others)
        history: dict[str, int] = {}
        if kept:
            objects = self._mirror.history.objects
            entries = [(object_id, objects.read(object_id)[0]) for object_id in kept]
            path = write_objects(objects, entries, self._folder)
            history = {path.stem.removeprefix("pack-"): path.stat().st_size}
            for name in history:
                self._there.storage.upload(history_key(name), path)
        dropped = inside - others - set(kept)

        def check(_: Root) -> None:
            if not dropped.isdisjoint(self._later):
                raise MovedError

        self._swap([history_key(name) for name in leaving], Listing({}, history), check)
        return sum(history.values())

    def replace_packs(self, batch: SweepBatch) -> int:
        """Write what a batch keeps into new packs; then let the root name those in their place."""
        new: list[PackIndex] = []
        if batch.carry:
            announce(batch.size_bytes)
            new = self._carry(batch.carry)
        packs = {index.pack: index.pack_size_bytes for index in new}
        leaving = set(batch.remove) - packs.keys()

        def check(old: Root) -> None:
            named = self._roots.read_listing(old).packs
            indexes = [*self._there.packs.indexes(named), *new]
            if find_unsafe(indexes, leaving, self._needed):
                raise MovedError

        self._swap([pack_key(pack) for pack in leaving], Listing(packs, {}), check)
        return sum(packs.values())

    def _carry(self, carry: Mapping[PackId, tuple[int, ...]]) -> list[PackIndex]:
        """Bring packs, write what is kept of them into new ones, and send those."""
        landing, out = LocalStorage(self._folder / "old"), self._folder / "new"
        packs = {pack: size for pack, size in self._listing.packs.items() if pack in carry}
        indexes = self._there.packs.indexes(packs)

        def fetch(index: PackIndex, _: None) -> int:
            self._there.packs.fetch(index, landing)
            return index.pack_size_bytes

        fs.make_dirs(out)
        for_each(indexes, lambda: None, fetch, threads=_FETCH_PACKS, progress=report)
        made = ChunkStore(LocalStorage(out), threads=1)
        with made.rewriter() as writer:
            for index in indexes:
                _check_pack(landing, index)
                carry_rows(writer, landing, index, carry[index.pack])
        new = list(made.copies().indexes)
        self._there.packs.send([(index, out / pack_key(index.pack)) for index in new])
        for folder in (landing.root, out):
            shutil.rmtree(folder)
        return new

    def _swap(self, keys: Iterable[str], new: Listing, check: Callable[[Root], None]) -> None:
        """Let the root name some packs in the place of others, unless something needs those."""
        names = sorted(map(object_name, keys))
        roots = self._roots

        def change(old: Root) -> Root:
            check_base(roots, self._base, old, new, built_upon=names)
            self._reach(old)
            check(old)
            rest = without_packs(roots, old, names, int(time.time()))
            return with_packs(rest, new.packs, new.history)

        roots.update(change)
        self.left_packs += len(names)


def _check_pack(landing: LocalStorage, index: PackIndex) -> None:
    try:
        check_pack(landing, index, ReadSlot(), None)
    except CorruptionError:
        raise CorruptionError(
            f"the remote sent damaged content: pack {index.pack[:12]} does not match its name",
            hint=_FSCK_HINT,
        ) from None

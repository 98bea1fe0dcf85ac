"""fsck: is the repository sound? Objects, refs, packs, indexes, and all that commits need."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mvc.errors import MvcError, UnsupportedError
from mvc.history.check import check
from mvc.history.reachability import reachable_blobs
from mvc.ids import ChunkId, GitId, PackId
from mvc.progress import reporting
from mvc.upkeep.chunk_health import DAMAGED, LOST_BASE, LOST_INDEX, MISSING, ChunkHealth, LostChunk
from mvc.upkeep.places import clear_way, find_intruders, find_stale_locks
from mvc.upkeep.sweep import upkeep_lock
from mvc.upkeep.versions import find_live, released_paths, walk_all
from mvc.workspace.content import name_run
from mvc.workspace.context import JOURNAL_NAME, Context
from mvc.workspace.journal import read_journal
from mvc.workspace.manifests import find_manifest
from mvc.workspace.released import releases_by_blob
from mvc.workspace.releases import Release, find_clone_fault, read_releases, release_notes

if TYPE_CHECKING:
    from mvc.chunkstore.values import StoreProblem
    from mvc.formats.layout import Segment

    _Live = Mapping[GitId, tuple[GitId | None, str]]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        kind: short stable name (``missing-chunk``, ``bad-manifest``, ``bad-pack``, ...).
        detail: the fact in one line.
        commit: the newest commit that needs what is damaged, or None.
        path: its file, or None.
        tensor: its tensor, or None.
        pack: the damaged pack, or None.
        offset: where in the pack, or None.
        chunk: hex id of the damaged chunk, or None.
        hint: what to do, or None.
        commits: all commits that hold the damaged version of a file, newest first.
    """

    kind: str
    detail: str
    commit: str | None = None
    path: str | None = None
    tensor: str | None = None
    pack: str | None = None
    offset: int | None = None
    chunk: str | None = None
    hint: str | None = None
    commits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FsckReport:
    """What fsck found.

    Attributes:
        problems: everything that is wrong; empty if the repository is sound.
        commits: how many are reachable.
        files: how many file versions were looked at.
        chunks: how many distinct chunks they need.
        data: whether every byte was read and hashed.
        notices: harmless leftovers, as a crash leaves them; gc removes them.
        repaired: packs whose index was rebuilt.
        released: file versions whose content was released and is gone, as it should be.
        promised: how many of the chunks are not here, but on a remote that promises to give them.
        promised_bytes: what those are, as plain bytes.
    """

    problems: tuple[Problem, ...]
    commits: int
    files: int
    chunks: int
    data: bool
    notices: tuple[str, ...] = ()
    repaired: tuple[str, ...] = ()
    released: int = 0
    promised: int = 0
    promised_bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


_COPY_PACK = "copy the pack from another copy of the repository"
_ADD_BASE = (
    "add again the file version that the lost chunk comes from: that restores all that is "
    f"based on it; or add this version, or {_COPY_PACK}"
)
_REPAIR = 'run "mvc fsck --data --repair", then '
_HINTS = {
    MISSING: f"add the same file again, or {_COPY_PACK}",
    DAMAGED: f"{_REPAIR}add the same file again; or {_COPY_PACK}",
    LOST_BASE: _ADD_BASE,
}
_CLEAR_HINT = '"mvc fsck --repair" removes it, or sets it aside if it holds anything'
_LOCK_HINT = '"mvc fsck --repair" removes it, if no git is running here'
_RECORD_HINT = "nothing is released because of it; prune again to record it"
_DAMAGED_PACK = frozenset({"bad-pack", "bad-chunk", "bad-pack-hash", "missing-pack"})


def fsck(context: Context, *, data: bool = False, repair: bool = False) -> FsckReport:
    """Check the repository; nothing is changed unless ``repair``.

    A crash between two writes leaves a pack without an index. If no commit needs that pack, it is
    harmless; if one does, its index was lost.
    """
    cleared: list[str] = []
    repaired: tuple[str, ...] = ()
    salvaged: tuple[str, ...] = ()
    if repair:
        cleared = clear_way(context)  # without a lock: one of them may be in place of it
        with upkeep_lock(context), context.history.no_sweep():  # a sweep may have planned with them
            repaired, salvaged = _repair(context, data=data)
    problems = list(_check_beside(context))
    faults = list(context.here.check(data=data))
    walk = Reachable(context, faults)
    lost = list(walk.check())
    if any(problem.kind == MISSING for problem in lost):
        with contextlib.suppress(MvcError):  # a damaged ref or config was reported
            if (fault := find_clone_fault(context)) is not None:
                problems.append(Problem("incomplete-clone", fault[0], hint=fault[1]))
    faults = _without_settled(context, faults)
    leftovers = _find_leftovers(faults, walk)
    problems.extend(
        store_problem(item) for item in faults if item not in leftovers and item.kind != LOST_BASE
    )
    return FsckReport(
        problems=(*problems, *lost),
        commits=walk.commits,
        files=walk.files,
        chunks=len(walk.chunks),
        data=data,
        notices=(*cleared, *salvaged, *_describe_leftovers(leftovers)),
        repaired=repaired,
        released=walk.released,
        promised=len(walk.promised),
        promised_bytes=sum(walk.promised.values()),
    )


def _check_beside(context: Context) -> Iterator[Problem]:
    """Yield what is wrong beside the chunks: what is in the way of writing, the history, notes."""
    for intruder in find_intruders(context):
        yield Problem("misplaced", intruder.fact, hint=_CLEAR_HINT)
    for path in find_stale_locks(context):
        fact = f"{path} is more than an hour old: {path.stem} cannot change"
        yield Problem("stale-lock", fact, hint=_LOCK_HINT)
    for problem in check(context.history):
        yield Problem(problem.kind, f"{problem.what}: {problem.detail}")
    yield from _check_notes(context)


def _find_leftovers(problems: Sequence[StoreProblem], walk: Reachable) -> dict[StoreProblem, None]:
    """Return what is harmless: stray files, and what no file version needs."""
    return dict.fromkeys(
        item
        for item in problems
        if item.kind == "stray-file"
        or (item.kind == "missing-index" and item.pack not in walk.health.packs)
        or (item.kind == LOST_BASE and item.chunk not in walk.health.lost)
    )


def _describe_leftovers(leftovers: Collection[StoreProblem]) -> Iterator[str]:
    for item in leftovers:
        if item.kind != LOST_BASE:
            yield f"{item.pack}: {item.detail}"
    lost = Counter(item.pack for item in leftovers if item.kind == LOST_BASE)
    for pack, count in sorted(lost.items()):
        yield f"{pack}: {count:,} chunks that nothing needs cannot be decoded: a base is gone"


def _without_settled(context: Context, problems: list[StoreProblem]) -> list[StoreProblem]:
    """Leave out indexes that were only late: a pack is published before its index."""
    if not any(item.kind == "missing-index" for item in problems):
        return problems
    with reporting(None):  # these bytes were counted
        faults = list(context.here.check(data=False))
    again = {item.pack for item in faults if item.kind == "missing-index"}
    return [item for item in problems if item.kind != "missing-index" or item.pack in again]


def _check_notes(context: Context) -> Iterator[Problem]:
    """Yield what is wrong with the journal and the records of releases."""
    try:
        read_journal(context.git_dir / JOURNAL_NAME)
    except MvcError as error:
        yield Problem("bad-journal", error.message, hint=error.hint)
    try:
        for commit, detail in release_notes(context).check():
            yield Problem("bad-release-record", detail, commit=commit, hint=_RECORD_HINT)
    except MvcError as error:
        yield Problem("bad-release-record", error.message, hint=error.hint)


def store_problem(problem: StoreProblem) -> Problem:
    """Return what is wrong with a pack as a problem of the repository."""
    hint = None
    if problem.kind in LOST_INDEX:
        hint = 'nothing is lost: "mvc fsck --repair" rebuilds the index'
    chunk = None if problem.chunk is None else problem.chunk.hex()
    return Problem(
        problem.kind,
        problem.detail,
        pack=problem.pack,
        offset=problem.offset,
        chunk=chunk,
        hint=hint,
    )


def _repair(context: Context, *, data: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the packs whose index was rebuilt, and a line on every pack set aside."""
    problems = list(context.here.check(data=data))
    damaged, salvaged = set_damaged_aside(context, problems)
    repaired = dict.fromkeys(
        item.pack for item in problems if item.kind in LOST_INDEX and item.pack not in damaged
    )
    for pack in repaired:
        context.here.rebuild_index(PackId(pack))
    context.here.refresh()
    return tuple(repaired), salvaged


def set_damaged_aside(
    context: Context, problems: Iterable[StoreProblem]
) -> tuple[frozenset[str], tuple[str, ...]]:
    """Set the packs aside that a check found to be damaged; return them, and a line on each."""
    damaged = dict.fromkeys(item.pack for item in problems if item.kind in _DAMAGED_PACK)
    messages: list[str] = []
    for pack in damaged:
        with contextlib.suppress(UnsupportedError):  # a newer mvc can tell what is in it
            done = context.here.salvage(PackId(pack))
            messages.append(
                f"{pack}: damaged, now in chunks/damaged; of its chunks {done.kept:,} were saved "
                f"and {done.lost:,} are lost"
            )
    return frozenset(damaged), tuple(messages)


class Reachable:
    """Walks every file version that a ref, a reflog or the index reaches, each blob once."""

    def __init__(self, context: Context, found: Sequence[StoreProblem]) -> None:
        self._context = context
        self.health = ChunkHealth(context.here, found)
        self.commits = 0
        self.files = 0
        self.chunks: dict[ChunkId, int] = {}  # chunk → its plain bytes; 0 if it is missing
        self.promised: dict[ChunkId, int] = {}
        self.released = 0
        self._releases: Mapping[GitId, Sequence[Release]] | None = None
        self._live: _Live = {}

    def check(self) -> Iterator[Problem]:
        """Yield what reachable files need and the store cannot give."""
        found = list(self._check_all())
        holders = self._find_holders({blob for _, blob in found if blob is not None})
        for problem, blob in found:
            commits = tuple(holders[blob]) if blob in holders else ()
            yield replace(problem, commit=commits[0], commits=commits) if commits else problem

    def _find_holders(self, blobs: set[GitId]) -> dict[GitId | None, list[GitId]]:
        """Return blob → all commits that hold it and did not release it, newest first."""
        found: dict[GitId | None, list[GitId]] = {}
        try:
            releases = read_releases(self._context) if blobs else {}
            for info in walk_all(self._context) if blobs else ():
                with contextlib.suppress(MvcError):  # a damaged tree was reported
                    gone = released_paths(releases.get(info.id, ()))
                    tree = self._context.history.read_tree(info.tree)
                    held = {entry.blob for path, entry in tree.items() if path not in gone}
                    for blob in blobs & held:
                        found.setdefault(blob, []).append(info.id)
        except MvcError:
            return {}  # a damaged history was reported; one commit is known of each
        return found

    def _check_all(self) -> Iterator[tuple[Problem, GitId | None]]:
        """Yield each problem with the blob that it is about."""
        seen_commits: set[GitId] = set()
        seen_blobs: set[str] = set()
        try:
            for commit, path, blob in reachable_blobs(self._context.history, commits=seen_commits):
                seen_blobs.add(blob)
                self.files += 1
                yield from self._check_file(commit, path, blob)
        except MvcError as error:
            yield Problem("unreadable-history", error.message, hint=error.hint), None
        self.commits = len(seen_commits)
        staged: list[tuple[str, GitId]] = []
        with contextlib.suppress(MvcError):  # the history check has reported it
            staged = list(self._context.history.read_index().blobs())
        for path, blob in staged:
            if blob not in seen_blobs:
                yield from self._check_file(None, path, blob)

    def _check_file(
        self, commit: str | None, path: str, blob: GitId
    ) -> Iterator[tuple[Problem, GitId]]:
        try:
            manifest = find_manifest(self._context, blob)
        except MvcError as error:
            yield (
                Problem("bad-manifest", f"{path}: {error.message}", commit=commit, path=path),
                blob,
            )
            return
        if manifest is None:
            return
        # Without an index of every pack, what was released may be on its way out, pack by pack.
        if self.health.lacks_indexes or any(map(self._is_lost, manifest.chunk_ids())):
            if self._was_released(blob):
                self.released += 1
                return
            commit, path = self._live.get(blob, (commit, path))  # who needs it still
        for segment, _, chunk, size_bytes in manifest.sized_chunks():
            self.chunks[chunk] = self.health.look_at(chunk)
            loss = self.health.lost.get(chunk)
            if loss is not None and self._is_promised(loss, chunk):
                self.chunks[chunk] = self.promised[chunk] = size_bytes
                continue
            loss = loss or self._find_misfit(chunk, size_bytes)
            if loss is not None:
                yield _describe(commit, path, segment, chunk, loss), blob

    def _is_promised(self, loss: LostChunk, chunk: ChunkId) -> bool:
        """Return whether what is missing is on a remote, whence reads take it."""
        if loss.is_damage or self._context.store is self._context.here:
            return False
        return chunk in self.promised or self._context.store.contains_all([chunk])

    def _is_lost(self, chunk: ChunkId) -> bool:
        """Return whether a chunk cannot be read, so that it may have been released."""
        self.health.look_at(chunk)
        return chunk in self.health.lost

    def _was_released(self, blob: GitId) -> bool:
        """Return whether all versions that have a manifest were released."""
        if self._releases is None:
            try:
                releases = read_releases(self._context)
                self._live = _find_live(self._context, releases) if releases else {}
                self._releases = releases
            except MvcError:
                self._releases = {}  # in doubt everything is needed; the damage itself is reported
        return bool(self._releases) and blob not in self._live

    def _find_misfit(self, chunk: ChunkId, size_bytes: int) -> LostChunk | None:
        """Return what is wrong if a manifest gives a chunk another length than it has."""
        found = self.chunks[chunk]
        if found == size_bytes:
            return None
        fact = f"has {found:,} bytes, not {size_bytes:,}"
        return LostChunk("wrong-size", fact, self._context.here.find(chunk))


def _find_live(
    context: Context, releases: Mapping[GitId, Sequence[Release]]
) -> dict[GitId, tuple[GitId | None, str]]:
    live = find_live(context, releases, trust_index=False)  # the history check looks at the index
    gone = releases_by_blob(context) if any(commit is None for commit, _ in live.values()) else {}
    # A reset to a released commit stages what is not there.
    return {blob: place for blob, place in live.items() if place[0] or blob not in gone}


def _describe(
    commit: str | None, path: str, segment: Segment | None, chunk: ChunkId, loss: LostChunk
) -> Problem:
    location = loss.location
    return Problem(
        loss.kind,
        f"chunk {chunk.hex()[:12]} of {name_run(segment, path)} {loss.fact}",
        commit=commit,
        path=path,
        tensor=None if segment is None else segment.tensors[0].name,
        pack=None if location is None else location.pack,
        offset=None if location is None else location.offset,
        chunk=chunk.hex(),
        hint=f"{_REPAIR}{_ADD_BASE}"
        if loss.kind == LOST_BASE and loss.is_damage
        else _HINTS.get(loss.kind, _HINTS[MISSING]),
    )

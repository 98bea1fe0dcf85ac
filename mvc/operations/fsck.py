"""fsck: is the repository sound? Objects, refs, packs, indexes, and all that commits need."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import MvcError, UnsupportedError
from mvc.formats.manifest import cut_sizes
from mvc.ids import PackId
from mvc.operations.files import find_manifest
from mvc.operations.journal import JOURNAL_NAME, read_journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mvc.chunkstore.store import ChunkLocation, StoreProblem
    from mvc.formats.manifest import Manifest
    from mvc.ids import ChunkId, GitId
    from mvc.operations.context import Context

    _Loss = tuple[str, str, ChunkLocation | None]
    """(kind, the fact, where the chunk lies)"""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        kind: short stable name (``missing-chunk``, ``bad-manifest``, ``bad-pack``, ...).
        detail: the fact in one line.
        commit: a commit that needs what is damaged, or None.
        path: its file, or None.
        tensor: its tensor, or None.
        pack: the damaged pack, or None.
        offset: where in the pack, or None.
        chunk: hex id of the damaged chunk, or None.
        hint: what to do, or None.
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


@dataclass(frozen=True, slots=True)
class FsckReport:
    """What fsck found.

    Attributes:
        problems: everything wrong, nothing where the repository is sound.
        commits: commits that are reachable.
        files: file versions that were looked at.
        chunks: distinct chunks that they need.
        data: whether every byte was read and hashed.
        notices: harmless leftovers, as a crash leaves them; gc removes them.
        repaired: packs whose index was written anew.
    """

    problems: tuple[Problem, ...]
    commits: int
    files: int
    chunks: int
    data: bool
    notices: tuple[str, ...] = ()
    repaired: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


_LEFTOVERS = frozenset({"stray-file", "missing-index"})
_LOST_INDEX = frozenset({"missing-index", "bad-index"})
_MISSING_HINT = "add the same file again, or copy the pack from another copy of the repository"
_DAMAGED_HINT = (
    'run "mvc fsck --data --repair", then add the same file again; '
    "or copy the pack from another copy of the repository"
)
_DAMAGED_PACK = frozenset({"bad-pack", "bad-chunk", "bad-pack-hash", "missing-pack"})


def fsck(
    context: Context,
    *,
    data: bool = False,
    repair: bool = False,
    progress: Callable[[int], None] | None = None,
) -> FsckReport:
    """Check the repository; nothing is changed unless ``repair``.

    A pack without an index that no commit needs is what a crash leaves between two writes, and
    no problem; one that a commit needs has lost its index.

    Args:
        context: the repository.
        data: also read, decode and hash every byte of the chunk store.
        repair: first write missing or damaged pack indexes anew from their packs, and move what
            is sound of damaged packs into new ones; with ``data`` every damage is found.
        progress: called with bytes read.
    """
    repaired, salvaged = _repair(context, data=data) if repair else ((), ())
    problems = [
        Problem(problem.kind, f"{problem.what}: {problem.detail}")
        for problem in context.history.check()
    ]
    problems.extend(_check_journal(context))
    found = list(context.store.check(data=data, progress=progress))
    walk = _Reachable(context, found)
    lost = list(walk.check())
    found = _without_settled(context, found)
    harmless = [
        item
        for item in found
        if item.kind in _LEFTOVERS and (item.kind == "stray-file" or item.pack not in walk.packs)
    ]
    problems.extend(_store_problem(item) for item in found if item not in harmless)
    notices = (*salvaged, *(f"{item.pack}: {item.detail}" for item in harmless))
    return FsckReport(
        (*problems, *lost), walk.commits, walk.files, len(walk.chunks), data, notices, repaired
    )


def _without_settled(context: Context, found: list[StoreProblem]) -> list[StoreProblem]:
    """Leave out indexes that were only late: another process publishes a pack, then its index."""
    if not any(item.kind == "missing-index" for item in found):
        return found
    again = {item.pack for item in context.store.check(data=False) if item.kind == "missing-index"}
    return [item for item in found if item.kind != "missing-index" or item.pack in again]


def _check_journal(context: Context) -> Iterator[Problem]:
    try:
        read_journal(context.git_dir / JOURNAL_NAME)
    except MvcError as error:
        yield Problem("bad-journal", error.message, hint=error.hint)


def _store_problem(found: StoreProblem) -> Problem:
    hint = None
    if found.kind in _LOST_INDEX:
        hint = 'nothing is lost: "mvc fsck --repair" writes the index anew'
    chunk = None if found.chunk is None else found.chunk.hex()
    return Problem(
        found.kind, found.detail, pack=found.pack, offset=found.offset, chunk=chunk, hint=hint
    )


def _repair(context: Context, *, data: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the packs whose index was written anew, and a line on every pack set aside."""
    found = list(context.store.check(data=data))
    damaged = dict.fromkeys(item.pack for item in found if item.kind in _DAMAGED_PACK)
    salvaged: list[str] = []
    for pack in damaged:
        with contextlib.suppress(UnsupportedError):  # a newer mvc can tell what is in it
            done = context.store.salvage(PackId(pack))
            salvaged.append(
                f"{pack}: damaged, now in chunks/damaged; of its chunks {done.kept:,} were saved "
                f"and {done.lost:,} are lost"
            )
    repaired = dict.fromkeys(
        item.pack for item in found if item.kind in _LOST_INDEX and item.pack not in damaged
    )
    for pack in repaired:
        context.store.rebuild_index(PackId(pack))
    context.store.refresh()
    return tuple(repaired), tuple(salvaged)


class _Reachable:
    """Walks every file version that a ref, a reflog or the index reaches, each blob once."""

    def __init__(self, context: Context, found: Sequence[StoreProblem]) -> None:
        self._context = context
        self._bad_chunks = {item.chunk for item in found if item.chunk is not None}
        self._bad_packs = {item.pack for item in found if item.kind not in _LOST_INDEX}
        self.commits = 0
        self.files = 0
        self.chunks: dict[ChunkId, int] = {}  # chunk → its plain bytes; 0 where it is missing
        self._lost: dict[ChunkId, _Loss] = {}
        self.packs: set[str] = set()

    def check(self) -> Iterator[Problem]:
        """Yield what reachable files need and the store cannot give."""
        seen_commits: set[str] = set()
        seen_blobs: set[str] = set()
        try:
            for commit, path, blob in self._context.history.reachable_blobs():
                seen_commits.add(commit)
                seen_blobs.add(blob)
                self.files += 1
                yield from self._check_file(commit, path, blob)
        except MvcError as error:
            yield Problem("unreadable-history", str(error), hint=error.hint)
        self.commits = len(seen_commits)
        for path, blob in self._index_blobs():
            if blob not in seen_blobs:
                yield from self._check_file(None, path, blob)

    def _index_blobs(self) -> list[tuple[str, GitId]]:
        try:
            index = self._context.history.read_index()
        except MvcError:
            return []  # the history check has reported it
        return [(path, entry.blob) for path, entry in index.entries.items()]

    def _check_file(self, commit: str | None, path: str, blob: GitId) -> Iterator[Problem]:
        try:
            manifest = find_manifest(self._context, blob)
        except MvcError as error:
            yield Problem("bad-manifest", f"{path}: {error}", commit=commit, path=path)
            return
        if manifest is None:
            return
        for name, chunk, size_bytes in _named_chunks(manifest):
            if chunk not in self.chunks:
                self.chunks[chunk] = self._look_at(chunk)
            loss = self._lost.get(chunk) or self._find_misfit(chunk, size_bytes)
            if loss is not None:
                yield _describe(commit, path, name, chunk, loss)

    def _look_at(self, chunk: ChunkId) -> int:
        """Find out whether a chunk can be had; it is read only where there is reason to doubt."""
        store = self._context.store
        location = store.find(chunk)
        if location is None and store.refresh():  # of a commit younger than the first look
            location = store.find(chunk)
        if location is None:
            self._lost[chunk] = ("missing-chunk", "is missing", None)
            return 0
        self.packs.add(location.pack)
        if chunk in self._bad_chunks or location.pack in self._bad_packs:
            try:  # another pack may hold a sound copy
                store.read_into(chunk, memoryview(bytearray(location.plain_size_bytes)))
            except MvcError as error:
                self._lost[chunk] = ("damaged-chunk", f"is lost: {error.message}", location)
        return location.plain_size_bytes

    def _find_misfit(self, chunk: ChunkId, size_bytes: int) -> _Loss | None:
        """Return what is wrong where a manifest takes a chunk for one of another length."""
        found = self.chunks[chunk]
        if found == size_bytes:
            return None
        fact = f"has {found:,} bytes, not {size_bytes:,}"
        return ("wrong-size", fact, self._context.store.find(chunk))


def _describe(
    commit: str | None, path: str, name: str | None, chunk: ChunkId, loss: _Loss
) -> Problem:
    kind, fact, location = loss
    what = f"tensor {name!r} of {path}" if name else f"{path} (bytes between tensors)"
    return Problem(
        kind,
        f"chunk {chunk.hex()[:12]} of {what} {fact}",
        commit=commit,
        path=path,
        tensor=name,
        pack=None if location is None else location.pack,
        offset=None if location is None else location.offset,
        chunk=chunk.hex(),
        hint=_DAMAGED_HINT if kind == "damaged-chunk" else _MISSING_HINT,
    )


def _named_chunks(manifest: Manifest) -> Iterator[tuple[str | None, ChunkId, int]]:
    for chunk, size in zip(
        manifest.gaps, cut_sizes(manifest.gap_bytes, manifest.chunk_bytes), strict=True
    ):
        yield None, chunk, size
    for stored in manifest.segments:
        sizes = cut_sizes(stored.segment.size_bytes, manifest.chunk_bytes)
        for chunk, size in zip(stored.chunks, sizes, strict=True):
            yield stored.segment.tensors[0].name, chunk, size

"""fsck: is the repository sound? Objects, refs, packs, indexes, and all that commits need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import MvcError
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
_LOST_HINT = "add the same file again, or copy the pack from another clone of the repository"


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
        repair: write missing or damaged pack indexes anew from their packs first.
        progress: called with bytes read.
    """
    repaired = _repair_indexes(context) if repair else ()
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
    notices = tuple(f"{item.pack}: {item.detail}" for item in harmless)
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


def _repair_indexes(context: Context) -> tuple[str, ...]:
    repaired: list[str] = []
    for found in context.store.check(data=False):
        if found.kind in _LOST_INDEX:
            context.store.rebuild_index(PackId(found.pack))
            repaired.append(found.pack)
    context.store.refresh()
    return tuple(repaired)


class _Reachable:
    """Walks every file version that a ref, a reflog or the index reaches, each blob once."""

    def __init__(self, context: Context, found: Sequence[StoreProblem]) -> None:
        self._context = context
        self._bad_chunks = {item.chunk for item in found if item.chunk is not None}
        self._bad_packs = {item.pack for item in found if item.kind not in _LOST_INDEX}
        self.commits = 0
        self.files = 0
        self.chunks: set[ChunkId] = set()
        self._lost: dict[ChunkId, tuple[str, str, ChunkLocation | None]] = {}
        self.packs: set[str] = set()

    def check(self) -> Iterator[Problem]:
        """Yield what reachable files need and the store cannot give."""
        seen_commits: set[str] = set()
        try:
            for commit, path, blob in self._context.history.reachable_blobs():
                seen_commits.add(commit)
                self.files += 1
                yield from self._check_file(commit, path, blob)
        except MvcError as error:
            yield Problem("unreadable-history", str(error), hint=error.hint)
        self.commits = len(seen_commits)
        index_blobs = self._index_blobs()
        for path, blob in index_blobs:
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
                self.chunks.add(chunk)
                self._look_at(chunk, size_bytes)
            if chunk in self._lost:
                yield self._describe(commit, path, name, chunk)

    def _look_at(self, chunk: ChunkId, size_bytes: int) -> None:
        """Find out whether a chunk can be had; it is read only where there is reason to doubt."""
        store = self._context.store
        location = store.find(chunk)
        if location is None and store.refresh():  # of a commit younger than the first look
            location = store.find(chunk)
        if location is None:
            self._lost[chunk] = ("missing-chunk", "is missing", None)
            return
        self.packs.add(location.pack)
        if location.plain_size_bytes != size_bytes:
            fact = f"has {location.plain_size_bytes} bytes, not {size_bytes}"
            self._lost[chunk] = ("wrong-size", fact, location)
        elif chunk in self._bad_chunks or location.pack in self._bad_packs:
            try:  # another pack may hold a sound copy
                store.read_into(chunk, memoryview(bytearray(size_bytes)))
            except MvcError as error:
                self._lost[chunk] = ("damaged-chunk", f"is lost: {error.message}", location)

    def _describe(self, commit: str | None, path: str, name: str | None, chunk: ChunkId) -> Problem:
        kind, fact, location = self._lost[chunk]
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
            hint=_LOST_HINT,
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

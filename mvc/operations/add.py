"""add: the worktree's files into the store and the index.

Files are stored outside any lock (it may take minutes). The repository's lock is only taken to put
the entries into the index as it stands then, so two adds at once both keep what they staged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

from mvc.checkpoints.names import METADATA_NAME
from mvc.checkpoints.safetensors import MAX_INDEX_BYTES, find_shards
from mvc.chunkstore.values import WriteCounts
from mvc.errors import FormatError, NotFoundError, UsageError
from mvc.fs import FileStat, RealFolders
from mvc.history.ignore import IgnoreRules
from mvc.history.names import find_path_fault
from mvc.progress import announce
from mvc.sources import FileSource, read_bytes
from mvc.workspace.context import Context, holds_sweep_lock
from mvc.workspace.files import Cutter, StoredFile, check_reached, find_layout, store_file
from mvc.workspace.pathspec import PathTable, is_wildcard, select_paths
from mvc.workspace.recorded import head_tree, make_entry, merge_entries, update_index
from mvc.workspace.recovery import recover
from mvc.workspace.worktree import (
    find_file_stat,
    find_inner_repository,
    find_obstacle,
    relative_paths,
    scan_files,
)

if TYPE_CHECKING:
    from mvc.chunkstore.writer import ChunkWriter
    from mvc.history.values import Index, IndexEntry
    from mvc.workspace.measuring import SessionHealth
    from mvc.workspace.worktree import Paths

_HUB_INDEX_SUFFIX = ".index.json"


@dataclass(frozen=True, slots=True)
class AddPlan:
    """What an ``add`` would do.

    Attributes:
        read: paths to read, store and stage.
        drop: tracked paths that no longer exist and leave the index.
        unchanged: paths whose stat data prove them unchanged.
        size_bytes: how much there is to read.
    """

    read: tuple[str, ...]
    drop: tuple[str, ...]
    unchanged: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class AddResult:
    """What ``add`` did.

    Attributes:
        added: files read and staged, with how they are stored.
        removed: tracked paths that no longer exist and left the index.
        unchanged: paths whose stat data proved them unchanged; not read.
        counts: chunks and bytes, new and already known.
        gaps: (path, what is missing) of folders of which only some files are there.
    """

    added: tuple[StoredFile, ...]
    removed: tuple[str, ...]
    unchanged: tuple[str, ...]
    counts: WriteCounts
    gaps: tuple[tuple[str, str], ...] = ()

    @property
    def warnings(self) -> tuple[tuple[str, str], ...]:
        """(path, what is wrong) of files stored as opaque though they look like checkpoints, and of gaps."""
        opaque = ((file.path, file.warning) for file in self.added if file.warning)
        return (*opaque, *self.gaps)

    def entries(self) -> dict[str, IndexEntry]:
        """Return the index entries of the files that were stored."""
        return {
            file.path: make_entry(file.path, file.mode, file.blob, file.stat) for file in self.added
        }

    def merge_into(self, index: Index) -> dict[str, IndexEntry]:
        """Return the entries of an index after this add."""
        return merge_entries(index, self.entries(), self.removed)

    def stage(self, context: Context) -> None:
        """Put what was stored into the index."""
        if self.added or self.removed:
            update_index(context, self.entries(), self.removed)


@holds_sweep_lock
def add(
    context: Context,
    paths: Paths,
    *,
    force: bool = False,
    tracked_only: bool = False,
    delta: bool | None = None,
) -> AddResult:
    """Store files, folders or wildcards and stage them for the next commit.

    Args:
        paths: what to add; ``"."`` is everything.
        force: also add files that ``.mvcignore`` names.
        tracked_only: leave files alone that are not tracked yet.
        delta: store tensors as differences from those of the last commit: always, never, or
            (None) as ``mvc.delta`` of the config says, by default if that saves a quarter.

    Raises:
        UsageError: only ignored files, another repository, or a path no commit may hold.
        ConflictError: a file changed while it was read; nothing is staged.
    """
    patterns = relative_paths(context, paths)
    recover(context)
    plan = plan_add(context, patterns, force=force, tracked_only=tracked_only)
    try:
        result = store_planned(context, plan, delta=delta)
    except KeyboardInterrupt as error:
        error.add_note("nothing was staged")
        raise
    result.stage(context)
    return result


def plan_add(
    context: Context, paths: Paths, *, force: bool = False, tracked_only: bool = False
) -> AddPlan:
    """Return what ``add`` of these paths would read, drop and skip.

    Raises:
        UsageError: only ignored files, another repository, or a path no commit may hold.
    """
    patterns = relative_paths(context, paths)
    index = context.history.read_index()
    look = _Selection(context, index, force=force)
    known = [*index.entries, *index.unmerged]
    chosen = select_paths(patterns, known) if tracked_only else look.select(patterns)
    read: list[str] = []
    drop: list[str] = []
    unchanged: list[str] = []
    size_bytes = 0
    for path in sorted(chosen):
        stat, entry = look.find_stat(path), index.entries.get(path)
        if stat is None or stat.is_directory:
            gone = path in index.unmerged and path not in index.asleep
            if gone or (entry is not None and not entry.skip_worktree):
                drop.append(path)
        elif entry is not None and entry.matches(stat) and not index.is_racy(entry):
            unchanged.append(path)
        else:
            fault = find_path_fault(path)
            if fault is not None:
                hint = "rename it, or name it in .mvcignore"
                raise UsageError(f"path {path[:200]!r} {fault}", hint=hint)
            read.append(path)
            size_bytes += stat.size_bytes
    return AddPlan(tuple(read), tuple(drop), tuple(unchanged), size_bytes)


class _Selection:
    """Finds what patterns name in worktree and index, with one look at each however many ask."""

    def __init__(self, context: Context, index: Index, *, force: bool) -> None:
        self._worktree = context.worktree
        self._ignore = None if force else IgnoreRules(context.worktree)
        self._tracked = PathTable([*index.entries, *index.unmerged])
        self._stats: dict[str, FileStat | None] = {}
        self._folders = RealFolders(context.worktree)

    def select(self, patterns: Sequence[str]) -> set[str]:
        """Return the files that patterns name, those that are only tracked included."""
        chosen: set[str] = set()
        for pattern in dict.fromkeys([*patterns, *self._find_shards(patterns)]):
            chosen.update(self._find(pattern))
        return chosen | self._find_metadata(chosen)

    def find_stat(self, path: str) -> FileStat | None:
        """Return the stat data of a path as first seen."""
        if path not in self._stats:
            self._stats[path] = find_file_stat(self._worktree, path, self._folders)
        return self._stats[path]

    @cached_property
    def _files(self) -> PathTable:
        """All files of the worktree that are not ignored, as wildcards need them."""
        return PathTable(scan_files(self._worktree, self._ignore))

    def _find(self, pattern: str) -> list[str]:
        known = self._tracked.find_named(pattern)
        if pattern and self.find_stat(pattern) is None:
            paths = known
            if not known and is_wildcard(pattern):  # only then a look at the whole worktree
                paths = self._tracked.find_fitting(pattern) + self._files.find_fitting(pattern)
        else:
            paths = [*known, *self._find_below(pattern)]
        if not paths and pattern:
            raise self._nothing(pattern)
        return paths

    def _find_below(self, name: str) -> list[str]:
        """Return the files in a folder, or that file; other repositories keep theirs."""
        if not name:
            return list(scan_files(self._worktree, self._ignore))
        stat = self.find_stat(name)
        if stat is None or find_inner_repository(self._worktree, name) is not None:
            return []
        if stat.is_directory:
            return list(scan_files(self._worktree, self._ignore, name))
        ignored = self._ignore is not None and self._ignore.is_ignored(name, is_dir=False)
        return [] if ignored else [name]

    def _nothing(self, pattern: str) -> NotFoundError | UsageError:
        obstacle = find_obstacle(self._worktree, pattern)
        if obstacle is not None:
            return UsageError(f"path {pattern!r} is beyond {obstacle!r}, which is a link or a file")
        if self.find_stat(pattern) is None:
            return NotFoundError(f"path {pattern!r} does not exist")
        inner = find_inner_repository(self._worktree, pattern)
        if inner is not None:
            return UsageError(f"path {pattern!r} belongs to the repository in {inner!r}")
        rules, self._ignore = self._ignore, None
        below = self._find_below(pattern)
        if below and rules is not None:
            rule = rules.find_rule(below[0], is_dir=False)
            place = "mvc itself"
            if rule is not None and rule.line:
                place = f"{rule.source}, line {rule.line}: {rule.pattern[:80]}"
            return UsageError(f"{pattern!r} is ignored by {place}", hint="`force` adds it anyway")
        return UsageError(f"{pattern!r} contains no files")

    def _find_shards(self, patterns: Sequence[str]) -> list[str]:
        """Return the shards of sharded checkpoints whose index files the patterns name."""
        shards: list[str] = []
        for pattern in patterns:
            stat = self.find_stat(pattern) if pattern.endswith(_HUB_INDEX_SUFFIX) else None
            if stat is None or not stat.is_regular or stat.size_bytes > MAX_INDEX_BYTES:
                continue
            try:
                with FileSource.open(self._worktree / pattern) as source:
                    names = find_shards(read_bytes(source, 0, source.size_bytes))
            except FormatError:
                continue  # not an index of shards, just a file that is called like one
            folder = pattern.rpartition("/")[0]
            paths = [f"{folder}/{name}" if folder else name for name in names]
            missing = [path for path in paths if self.find_stat(path) is None]
            if missing:
                raise NotFoundError(f"{pattern!r} lists {missing[0]!r}, which does not exist")
            shards.extend(paths)
        return shards

    def _find_metadata(self, chosen: Collection[str]) -> set[str]:
        """Return what names the tensors of DCP files, which ``folder/*`` of a shell leaves out."""
        folders = {path.rpartition("/")[0] for path in chosen if path.endswith(".distcp")}
        beside = {f"{folder}/{METADATA_NAME}".lstrip("/") for folder in folders} - set(chosen)
        return {path for path in beside if self.find_stat(path) for path in self._find_below(path)}


def store_planned(context: Context, plan: AddPlan, *, delta: bool | None = None) -> AddResult:
    """Store what a plan reads; nothing is staged yet."""
    sessions: list[tuple[ChunkWriter, SessionHealth]] = []
    with ExitStack() as stack:

        @cache
        def open_cutter() -> Cutter:
            from mvc.workspace.bases import Relatives  # noqa: PLC0415  brings NumPy
            from mvc.workspace.measuring import SessionHealth  # noqa: PLC0415  as above

            mode = context.delta_mode(insist=delta)
            writer = stack.enter_context(context.here.writer(mode, measure=True))
            relatives = Relatives(context, writer, head_tree(context))
            sessions.append((writer, SessionHealth(context, writer)))
            return Cutter(writer, context.chunk_bytes, relatives, sessions[0][1])

        stored = _store_files(context, plan, open_cutter)
    stored.sort(key=lambda file: file.path)
    for _, health in sessions:
        health.keep()
    counts = sessions[0][0].counts if sessions else WriteCounts()
    return AddResult(tuple(stored), plan.drop, plan.unchanged, counts, _find_gaps(context, plan))


def _find_gaps(context: Context, plan: AddPlan) -> tuple[tuple[str, str], ...]:
    """Return what folders of distributed checkpoints lack."""
    shards = [path for path in plan.read if path.endswith(".distcp")]
    if not shards:
        return ()
    from mvc.workspace.dcp_folders import find_gaps  # noqa: PLC0415  costs start-up

    return tuple(find_gaps(context.worktree, shards))


def _store_files(
    context: Context, plan: AddPlan, open_cutter: Callable[[], Cutter]
) -> list[StoredFile]:
    order: Sequence[str] = plan.read
    if order:
        announce(plan.size_bytes)
    folders = RealFolders(context.worktree)
    # A file alone has no masters among the others, and is opened once less.
    several = order if len(order) > 1 else ()
    looks = {path: find_layout(context, path, folders) for path in several}
    layouts = {path: look[0] for path, look in looks.items() if look is not None}
    if layouts:
        from mvc.workspace.bases import masters_first  # noqa: PLC0415  brings NumPy

        order = masters_first(order, layouts)
    stored = [store_file(context, path, open_cutter, looks.get(path), folders) for path in order]
    check_reached(context, stored)
    return stored

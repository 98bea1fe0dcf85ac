"""add: the worktree's files into the index.

``add`` reads outside any lock (it may take minutes) and takes the repository's lock only to put
its entries into the index as it stands then, so two adds at once both keep what they staged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.checkpoints.hub import MAX_INDEX_BYTES, find_shards
from mvc.chunkstore.store import DeltaMode, WriteCounts
from mvc.errors import FormatError, NotFoundError, UsageError
from mvc.history.paths import find_path_fault
from mvc.history.values import Index, IndexEntry
from mvc.progress import announce
from mvc.sources import FileSource, read_bytes
from mvc.workspace.context import unswept
from mvc.workspace.files import StoredFile, find_layout, store_file
from mvc.workspace.recorded import drop_clashing, head_tree
from mvc.workspace.transition import make_entry, recover
from mvc.workspace.worktree import (
    find_file_stat,
    find_inner_repository,
    find_obstacle,
    ignore_rules,
    is_at_or_below,
    match_paths,
    scan_files,
    select_paths,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mvc.workspace.context import Context

HUB_INDEX_SUFFIX = ".index.json"


@dataclass(frozen=True, slots=True)
class AddResult:
    """What ``add`` did.

    Attributes:
        added: files read and staged, with how they are stored.
        removed: tracked paths that no longer exist and were taken out of the index.
        unchanged: paths whose stat data proved them unchanged; not read.
        counts: chunks and bytes, new and seen before.
        warnings: (path, what is wrong) of checkpoints stored as opaque bytes.
    """

    added: tuple[StoredFile, ...]
    removed: tuple[str, ...]
    unchanged: tuple[str, ...]
    counts: WriteCounts

    @property
    def warnings(self) -> tuple[tuple[str, str], ...]:
        """(path, what is wrong) of files that look like checkpoints but are stored as opaque."""
        return tuple((file.path, file.warning) for file in self.added if file.warning)


@dataclass(frozen=True, slots=True)
class AddPlan:
    """What an ``add`` would do.

    Attributes:
        read: paths it reads, stores and stages.
        drop: tracked paths that no longer exist and go out of the index.
        unchanged: paths whose stat data prove them unchanged.
        size_bytes: how much it reads.
    """

    read: tuple[str, ...]
    drop: tuple[str, ...]
    unchanged: tuple[str, ...]
    size_bytes: int


def plan_add(
    context: Context, patterns: Sequence[str], *, tracked_only: bool = False, force: bool = False
) -> AddPlan:
    """Return what ``add`` of these patterns would read.

    Args:
        context: the repository.
        patterns: repository paths, folders, wildcards; ``""`` is the worktree.
        tracked_only: only files that the index knows (``commit -a``).
        force: also files that ``.mvcignore`` names.

    Raises:
        NotFoundError: a pattern names nothing, here or in the index.
        UsageError: a pattern names only ignored files, another repository, or a path that no
            commit may hold.
    """
    index = context.history.read_index()
    chosen = _choose(context, index, patterns, tracked_only=tracked_only, force=force)
    read: list[str] = []
    drop: list[str] = []
    unchanged: list[str] = []
    size_bytes = 0
    for path in sorted(chosen):
        stat, entry = find_file_stat(context.worktree, path), index.entries.get(path)
        if stat is None or stat.is_directory:
            if entry is not None and not entry.skip_worktree:
                drop.append(path)
        elif entry is not None and entry.matches(stat) and not index.is_racy(entry):
            unchanged.append(path)
        else:
            _check_name(path)
            read.append(path)
            size_bytes += stat.size_bytes
    return AddPlan(tuple(read), tuple(drop), tuple(unchanged), size_bytes)


def _check_name(path: str) -> None:
    fault = find_path_fault(path)
    if fault is not None:
        raise UsageError(f"path {path[:200]!r} {fault}", hint="rename it, or name it in .mvcignore")


def _choose(
    context: Context,
    index: Index,
    patterns: Sequence[str],
    *,
    tracked_only: bool,
    force: bool,
) -> set[str]:
    tracked = set(index.entries)
    if tracked_only:
        return set(select_paths(patterns, sorted(tracked)))
    chosen: set[str] = set()
    for pattern in [*patterns, *_shards_of(context, patterns)]:
        known = [path for path in tracked if is_at_or_below(pattern, path)]
        is_there = not pattern or find_file_stat(context.worktree, pattern) is not None
        # What is the name of something is no wildcard, whatever signs it holds.
        files = _files_of(context, pattern, force=force) if is_there or not known else []
        if not is_there and not known:
            known = match_paths([pattern], tracked)[pattern]
        if not files and not known and pattern:
            raise _nothing(context, pattern)
        chosen.update(known, files)
    return chosen


def _files_of(context: Context, pattern: str, *, force: bool) -> list[str]:
    """Return the files of the worktree that a pattern names; none of other repositories in it."""
    ignore = None if force else ignore_rules(context.worktree)
    stat = find_file_stat(context.worktree, pattern) if pattern else None
    if stat is not None and find_inner_repository(context.worktree, pattern) is not None:
        return []
    if stat is not None and not stat.is_directory:
        ignored = ignore is not None and ignore.is_ignored(pattern, is_dir=False)
        return [] if ignored else [pattern]
    if stat is not None or not pattern:
        return list(scan_files(context.worktree, ignore, pattern))
    return match_paths([pattern], scan_files(context.worktree, ignore))[pattern]


def _nothing(context: Context, pattern: str) -> NotFoundError | UsageError:
    obstacle = find_obstacle(context.worktree, pattern)
    if obstacle is not None:
        return UsageError(f"path {pattern!r} lies beyond {obstacle!r}, which is a link or a file")
    if find_file_stat(context.worktree, pattern) is None:
        return NotFoundError(f"path {pattern!r} does not exist")
    inner = find_inner_repository(context.worktree, pattern)
    if inner is not None:
        return UsageError(f"path {pattern!r} belongs to the repository in {inner!r}")
    if _files_of(context, pattern, force=True):
        return UsageError(
            f"{pattern!r} is ignored by .mvcignore", hint='"mvc add -f" adds it anyway'
        )
    return UsageError(f"{pattern!r} holds no file")


def _shards_of(context: Context, patterns: Sequence[str]) -> list[str]:
    """Return the shard files that named index files of sharded checkpoints list."""
    shards: list[str] = []
    for pattern in patterns:
        stat = find_file_stat(context.worktree, pattern)
        if not pattern.endswith(HUB_INDEX_SUFFIX) or stat is None or not stat.is_regular:
            continue
        if stat.size_bytes > MAX_INDEX_BYTES:
            continue
        folder = pattern.rpartition("/")[0]
        try:
            with FileSource.open(context.worktree / pattern) as source:
                names = find_shards(read_bytes(source, 0, source.size_bytes))
        except FormatError:
            continue  # not an index of shards, just a file that is called like one
        paths = [f"{folder}/{name}" if folder else name for name in names]
        missing = [path for path in paths if find_file_stat(context.worktree, path) is None]
        if missing:
            raise NotFoundError(f"{pattern!r} lists {missing[0]!r}, which does not exist")
        shards.extend(paths)
    return shards


@unswept
def add(
    context: Context,
    patterns: Sequence[str],
    *,
    tracked_only: bool = False,
    force: bool = False,
    delta: bool | None = None,
    progress: Callable[[int], None] | None = None,
) -> AddResult:
    """Store files and stage them; the index changes only once everything is durable.

    Args:
        context: the repository.
        patterns: repository paths, folders, wildcards; ``""`` is the worktree.
        tracked_only: only files that the index knows (``commit -a``).
        force: also files that ``.mvcignore`` names.
        delta: whether chunks are stored as differences to the parent commit's; by default where
            that gains much, or as ``mvc.delta`` of the config says.
        progress: called with bytes read.

    Raises:
        NotFoundError: a pattern names nothing.
        ConflictError: a file changed or vanished while it was read; nothing is staged.
    """
    recover(context)
    plan = plan_add(context, patterns, tracked_only=tracked_only, force=force)
    return run_add(context, plan, progress, delta=delta)


@unswept
def run_add(
    context: Context,
    plan: AddPlan,
    progress: Callable[[int], None] | None = None,
    *,
    delta: bool | None = None,
) -> AddResult:
    """Carry out a plan of ``plan_add``."""
    result = store_planned(context, plan, progress, delta=delta)
    if result.added or result.removed:
        update_index(context, entries_of(result), result.removed)
    return result


def store_planned(
    context: Context,
    plan: AddPlan,
    progress: Callable[[int], None] | None = None,
    *,
    delta: bool | None = None,
) -> AddResult:
    """Store what a plan reads; nothing is staged yet."""
    counts = WriteCounts(0, 0, 0, 0, 0)
    stored: list[StoredFile] = []
    if plan.read:
        from mvc.workspace.bases import Relatives, masters_first  # noqa: PLC0415  brings NumPy

        announce(progress, plan.size_bytes)
        with context.store.writer(delta_mode(context, insist=delta)) as writer:
            relatives = Relatives(context, writer, head_tree(context))
            looks = {path: find_layout(context, path) for path in plan.read if len(plan.read) > 1}
            layouts = {path: look[0] for path, look in looks.items() if look is not None}
            stored = [
                store_file(context, writer, path, progress, relatives, looks.get(path))
                for path in masters_first(plan.read, layouts)
            ]
        counts = writer.counts
    stored.sort(key=lambda file: file.path)
    return AddResult(tuple(stored), plan.drop, plan.unchanged, counts)


def delta_mode(context: Context, *, insist: bool | None) -> DeltaMode:
    """Return when chunks are stored as differences: what the call says, else the config.

    Raises:
        FormatError: ``mvc.delta`` of the config is none of never, auto, always.
    """
    if insist is not None:
        return DeltaMode.ALWAYS if insist else DeltaMode.NEVER
    text = context.history.get_config("mvc.delta") or DeltaMode.AUTO.value
    try:
        return DeltaMode(text)
    except ValueError as error:
        raise FormatError(
            f"mvc.delta is {text[:80]!r}, none of never, auto, always",
            hint='set it with "mvc config mvc.delta auto"',
        ) from error


def entries_of(result: AddResult) -> dict[str, IndexEntry]:
    """Return the index entries of what was stored."""
    return {
        file.path: make_entry(file.path, file.mode, file.blob, file.stat) for file in result.added
    }


def update_index(
    context: Context, entries: Mapping[str, IndexEntry], drop: Iterable[str] = ()
) -> None:
    """Put entries into the index as it stands now, under the repository's lock."""
    context.history.sync_objects()
    with context.history.lock():
        current = context.history.read_index()
        context.history.write_index(Index(merge_entries(current, entries, drop)))


def merge_entries(
    index: Index, entries: Mapping[str, IndexEntry], drop: Iterable[str] = ()
) -> dict[str, IndexEntry]:
    """Return the entries of an index with others put in and some dropped."""
    merged = dict(index.entries)
    for path in drop:
        merged.pop(path, None)
    merged.update(entries)
    drop_clashing(merged, entries)
    return merged

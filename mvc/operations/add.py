"""add, rm and mv: the worktree's files into the index.

``add`` reads outside any lock (it may take minutes) and takes the repository's lock only to put
its entries into the index as it stands then, so two adds at once both keep what they staged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mvc.checkpoints.hub import MAX_INDEX_BYTES, find_shards
from mvc.checkpoints.source import FileSource, read_bytes
from mvc.chunkstore.store import WriteCounts
from mvc.errors import ConflictError, FormatError, NotFoundError, UsageError
from mvc.fs import remove_empty_dirs, remove_file, rename
from mvc.history.values import Index, IndexEntry
from mvc.operations.files import StoredFile, store_file
from mvc.operations.recorded import head_tree, is_clean
from mvc.operations.transition import make_entry, recover
from mvc.operations.worktree import (
    find_file_stat,
    find_obstacle,
    ignore_rules,
    make_parents,
    match_paths,
    matches_path,
    scan_files,
    select_paths,
)
from mvc.progress import announce

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mvc.operations.context import Context

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
    """Which paths an ``add`` reads, drops and passes over; ``size_bytes`` is what it will read."""

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
        UsageError: a pattern names only ignored files.
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
            read.append(path)
            size_bytes += stat.size_bytes
    return AddPlan(tuple(read), tuple(drop), tuple(unchanged), size_bytes)


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
        files = _files_of(context, pattern, force=force)
        known = {path for path in tracked if matches_path(pattern, path)}
        if not files and not known and pattern:
            raise _nothing(context, pattern)
        chosen |= known.union(files)
    return chosen


def _files_of(context: Context, pattern: str, *, force: bool) -> list[str]:
    """Return the files of the worktree that a pattern names."""
    ignore = None if force else ignore_rules(context.worktree)
    stat = find_file_stat(context.worktree, pattern) if pattern else None
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


def add(
    context: Context,
    patterns: Sequence[str],
    *,
    tracked_only: bool = False,
    force: bool = False,
    progress: Callable[[int], None] | None = None,
) -> AddResult:
    """Store files and stage them; the index changes only once everything is durable.

    Raises:
        NotFoundError: a pattern names nothing.
        ConflictError: a file changed or vanished while it was read; nothing is staged.
    """
    recover(context)
    plan = plan_add(context, patterns, tracked_only=tracked_only, force=force)
    return run_add(context, plan, progress)


def run_add(
    context: Context, plan: AddPlan, progress: Callable[[int], None] | None = None
) -> AddResult:
    """Carry out a plan of ``plan_add``."""
    counts = WriteCounts(0, 0, 0, 0, 0)
    stored: list[StoredFile] = []
    if plan.read:
        announce(progress, plan.size_bytes)
        with context.store.writer() as writer:
            stored = [store_file(context, writer, path, progress) for path in plan.read]
        counts = writer.counts
    entries = {file.path: make_entry(file.path, file.mode, file.blob, file.stat) for file in stored}
    if entries or plan.drop:
        update_index(context, entries, plan.drop)
    return AddResult(tuple(stored), plan.drop, plan.unchanged, counts)


def update_index(
    context: Context, entries: Mapping[str, IndexEntry], drop: Iterable[str] = ()
) -> None:
    """Put entries into the index as it stands now, under the repository's lock."""
    context.history.sync_objects()
    with context.history.lock():
        current = dict(context.history.read_index().entries)
        for path in drop:
            current.pop(path, None)
        for path in entries:
            _drop_clashing(current, path)
        current.update(entries)
        context.history.write_index(Index(current))


def _drop_clashing(entries: dict[str, IndexEntry], path: str) -> None:
    """A file where a folder was, or a folder where a file was: the old entries go."""
    parents = path.split("/")[:-1]
    for depth in range(1, len(parents) + 1):
        entries.pop("/".join(parents[:depth]), None)
    for other in [other for other in entries if other.startswith(path + "/")]:
        del entries[other]


def remove(
    context: Context,
    patterns: Sequence[str],
    *,
    cached: bool = False,
    force: bool = False,
    recursive: bool = False,
) -> tuple[str, ...]:
    """Take tracked paths out of the index and, unless ``cached``, out of the worktree.

    Raises:
        ConflictError: a file has changes that no commit holds, and not ``force``.
        UsageError: a folder is named and not ``recursive``.
    """
    recover(context)
    index = context.history.read_index()
    chosen = select_paths(patterns, list(index.entries))
    if not recursive and any(
        pattern not in index.entries and not any(sign in pattern for sign in "*?[")
        for pattern in patterns
    ):
        raise UsageError("will not remove a folder without -r", hint='run "mvc rm -r"')
    if not force:
        _check_committed(context, index, chosen, cached=cached)
    update_index(context, {}, chosen)
    if not cached:
        for path in chosen:
            target = context.worktree / path
            stat = find_file_stat(context.worktree, path)
            if stat is not None and not stat.is_directory:
                remove_file(target)
                remove_empty_dirs(target.parent, context.worktree)
    return tuple(chosen)


def _check_committed(context: Context, index: Index, paths: Sequence[str], *, cached: bool) -> None:
    committed = head_tree(context)
    for path in paths:
        entry, kept = index.entries[path], committed.get(path)
        stat = find_file_stat(context.worktree, path)
        staged = kept is None or (kept.mode, kept.blob) != (entry.mode, entry.blob)
        changed = stat is not None and not is_clean(context, index, entry, stat)
        if (staged and changed) or (not cached and (staged or changed)):
            raise ConflictError(
                f"{path!r} has changes that no commit holds",
                hint='commit it, keep it with "--cached", or lose it with "-f"',
            )


def move(
    context: Context, sources: Sequence[str], target: str, *, force: bool = False
) -> tuple[tuple[str, str], ...]:
    """Rename tracked files or folders, in the worktree and in the index.

    Returns:
        (old, new) of every tracked path that moved.

    Raises:
        NotFoundError: a source is not tracked.
        ConflictError: the target exists, and not ``force``.
    """
    recover(context)
    index = context.history.read_index()
    into = find_file_stat(context.worktree, target) if target else None
    is_folder = not target or (into is not None and into.is_directory)
    if len(sources) > 1 and not is_folder:
        raise UsageError(f"{target!r} is not a folder")
    moved: list[tuple[str, str]] = []
    for source in sources:
        name = source.rpartition("/")[2]
        place = (f"{target}/{name}" if target else name) if is_folder else target
        moved.extend(_move_one(context, index, source, place, force=force))
    renamed = {new: replace(index.entries[old], path=new) for old, new in moved}
    update_index(context, renamed, [old for old, _ in moved])
    return tuple(moved)


def _move_one(
    context: Context, index: Index, source: str, place: str, *, force: bool
) -> list[tuple[str, str]]:
    tracked = [path for path in index.entries if path == source or path.startswith(source + "/")]
    if not tracked:
        raise NotFoundError(f"path {source!r} is not tracked", hint='"mvc add" it first')
    if place == source or place.startswith(source + "/"):
        raise UsageError(f"cannot move {source!r} into itself")
    if force:
        stat = find_file_stat(context.worktree, place)
        if stat is not None and not stat.is_directory:
            remove_file(context.worktree / place)
    elif place in index.entries:
        raise ConflictError(f"{place!r} exists already", hint='"-f" replaces it')
    make_parents(context.worktree, place)
    if find_file_stat(context.worktree, source) is not None:
        rename(context.worktree / source, context.worktree / place)
        remove_empty_dirs((context.worktree / source).parent, context.worktree)
    return [(path, place + path.removeprefix(source)) for path in tracked]

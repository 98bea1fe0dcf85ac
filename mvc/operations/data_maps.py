"""data ls, diff, verify and rm: the maps of a repository, what differs between them, and from their shards."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import FormatError, MvcError, NotFoundError, UsageError
from mvc.fs import write_durable
from mvc.operations.add import add
from mvc.operations.data_places import change_rules, check_known, make_rule, open_root, stage_rules
from mvc.operations.remove import remove
from mvc.progress import announce
from mvc.shards.checking import Level, MapReport, ShardFault
from mvc.shards.shard_map import MapChanges, Shard, ShardMap, compare_maps
from mvc.shards.stored import has_map_file, read_map_file, read_stored_map, select_maps
from mvc.workspace.context import Context, threads_of
from mvc.workspace.recorded import head_tree
from mvc.workspace.recovery import recover
from mvc.workspace.worktree import relative_path

if TYPE_CHECKING:
    from mvc.history.values import TreeEntry


@dataclass(frozen=True, slots=True)
class MapInfo:
    """One map of a revision or the worktree.

    Attributes:
        path: of its file.
        shard_map: the map, or None if the file is not a map.
        fault: why it is not.
    """

    path: str
    shard_map: ShardMap | None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class MapDiff:
    """One map that differs.

    Attributes:
        path: of its file.
        old: the map before, or None if there was none.
        new: the map after, or None if it is gone.
        changes: which shards differ.
        fault: why one side is not a map; what changed is then unknown.
    """

    path: str
    old: ShardMap | None
    new: ShardMap | None
    changes: MapChanges
    fault: str | None = None


def name_maps(context: Context, revision: str | None = None, name: str | None = None) -> list[str]:
    """Return the paths of the maps of a revision, or of one; by default those of the worktree.

    Raises:
        NotFoundError: no such revision or map.
        UsageError: several maps have this name.
    """
    return _select(context, _paths(context, _tree(context, revision)), name)


def list_maps(
    context: Context, revision: str | None = None, name: str | None = None
) -> list[MapInfo]:
    """Return the maps of a revision, or the one of a name; by default those of the worktree.

    Raises:
        NotFoundError: no such revision or map.
        UsageError: several maps have this name.
        FormatError: the file of that name is not a map.
    """
    return list(_read_maps(context, _tree(context, revision), name))


def diff_maps(
    context: Context, old: str | None = None, new: str | None = None, *, name: str | None = None
) -> list[MapDiff]:
    """Compare the maps of two revisions, or of one (HEAD) with the worktree; no shard is read.

    Raises:
        NotFoundError: no such revision or map.
        FormatError: the file of that name is not a map.
    """
    before, after = _tree(context, old), _tree(context, new)
    if before is None:
        before = head_tree(context)
    there = set(_paths(context, after))
    diffs: list[MapDiff] = []
    for path in _select(context, {*before, *there}, name):
        one, other = before.get(path), None if after is None else after.get(path)
        if one is not None and other is not None and one.blob == other.blob:
            continue
        try:
            left = _read(context, before, path) if path in before else None
            right = _read(context, after, path) if path in there else None
        except FormatError as error:
            if name is not None:
                raise
            nothing = compare_maps(None, None)
            diffs.append(MapDiff(path, None, None, nothing, _describe(error, path)))
            continue
        changes = compare_maps(left, right)
        if changes or (left is None) != (right is None):
            diffs.append(MapDiff(path, left, right, changes))
    return diffs


def verify_maps(
    context: Context, name: str | None = None, *, level: Level = "normal"
) -> list[tuple[str, MapReport]]:
    """Compare maps of the worktree with their shards; return the path and a report of each.

    Args:
        name: one map; all by default.
        level: ``quick`` reads no content, ``normal`` what stat data and tags do not prove unchanged,
            ``full`` every byte.

    Raises:
        NotFoundError: no such map.
        FormatError: the file of that name is not a map.
        StorageError: a store does not answer.
    """
    recover(context)
    reports: list[tuple[str, MapReport]] = []
    for info in _read_maps(context, None, name):
        path, shard_map = info.path, info.shard_map
        if shard_map is None:
            fault = ShardFault("unreadable", "", info.fault or "")
            reports.append((path, MapReport(os.path.basename(path), (fault,))))
            continue
        place = open_root(context, shard_map.root, path)
        if level == "full":
            announce(shard_map.size_bytes)
        report = check_known(context, shard_map, place, level=level, threads=threads_of(context))
        reports.append((path, report))
    return reports


def remove_data(context: Context, name: str, shards: Sequence[str] = ()) -> tuple[str, MapChanges]:
    """Remove a map, or some shards from it, and stage that; content is left where it is.

    Returns:
        The map's path, and what it lost.

    Raises:
        NotFoundError: no such map, or it has no such shard.
    """
    recover(context)
    (path,) = _select(context, _worktree_maps(context), name)
    old = read_map_file(context, path)
    if shards:
        gone = {_find_shard(old, path, shard).path for shard in shards}
        kept = [shard for shard in old.shards if shard.path not in gone]
        new = ShardMap.build(old.root, kept, old.pattern)
        write_durable(context.worktree / path, [new.encode()])
        add(context, [path])
        return path, compare_maps(old, new)
    rule = _find_rule(old, path)
    if path in context.history.read_index().entries:
        remove(context, [path], force=True)
    else:
        os.unlink(context.worktree / path)
    if rule is not None and change_rules(context, remove=rule):
        stage_rules(context)
    return path, compare_maps(old, None)


def _select(context: Context, paths: Iterable[str], name: str | None) -> list[str]:
    """Return the maps of a name: one with a slash is a path, any other may be just its last part."""
    if name is not None and "/" in name:
        name = relative_path(context.worktree, context.worktree, name)
    return select_maps(paths, name)


def _find_shard(shard_map: ShardMap, map_path: str, name: str) -> Shard:
    """Return a shard by its path in the map, or as the worktree has it."""
    root = os.path.normpath(os.path.join(os.path.dirname(map_path), shard_map.root))
    shard = shard_map.find(name) or shard_map.find(name.removeprefix(f"{root}/"))
    if shard is None:
        hint = f'"mvc data ls {map_path}" lists what is in it'
        raise NotFoundError(f"{map_path} has no shard {name!r}", hint=hint)
    return shard


def _find_rule(shard_map: ShardMap, path: str) -> bytes | None:
    """Return the rule that ``data add`` made for a map, or None if its root is elsewhere."""
    if "://" in shard_map.root:
        return None
    folder = os.path.normpath(os.path.join(os.path.dirname(path), shard_map.root))
    if folder.startswith(".."):
        return None
    try:
        return make_rule("" if folder == "." else folder, shard_map.pattern)
    except UsageError:
        return None


def _tree(context: Context, revision: str | None) -> Mapping[str, TreeEntry] | None:
    """Return the files of a revision; None: those of the worktree are meant."""
    if revision is None:
        return None
    return context.history.read_tree(context.history.resolve(revision))


def _paths(context: Context, tree: Mapping[str, TreeEntry] | None) -> list[str]:
    return _worktree_maps(context) if tree is None else list(tree)


def _worktree_maps(context: Context) -> list[str]:
    """Return the maps that are tracked and there."""
    entries = context.history.read_index().entries
    return [path for path in select_maps(entries) if has_map_file(context, path)]


def _read(context: Context, tree: Mapping[str, TreeEntry] | None, path: str) -> ShardMap:
    if tree is None:
        return read_map_file(context, path)
    return read_stored_map(context, tree[path].blob, path)


def _read_maps(
    context: Context, tree: Mapping[str, TreeEntry] | None, name: str | None
) -> Iterator[MapInfo]:
    """Yield each map, or why its file is not one; if it was named, that is an error."""
    for path in _select(context, _paths(context, tree), name):
        try:
            yield MapInfo(path, _read(context, tree, path))
        except (FormatError, NotFoundError) as error:
            if name is not None:
                raise
            yield MapInfo(path, None, _describe(error, path))


def _describe(error: MvcError, path: str) -> str:
    """Return a message without the path, which is shown beside it."""
    return error.message.removeprefix(f"{path}: ")

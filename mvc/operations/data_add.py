"""data add: the shards of a folder, pattern or store as a map, staged; their content stays where it is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mvc.errors import (
    ConflictError,
    FormatError,
    NotFoundError,
    UsageError,
    translate_os_errors,
)
from mvc.fs import make_dirs, write_durable
from mvc.operations.add import add
from mvc.operations.data_places import change_rules, make_rule, open_cache, open_root, stage_rules
from mvc.operations.data_targets import find_target
from mvc.progress import announce
from mvc.shards.hashing import hash_shards
from mvc.shards.records.plain import BIN_SUFFIX, count_numbers, parse_number_dtype
from mvc.shards.shard_map import MapChanges, Shard, ShardMap, compare_maps
from mvc.shards.stored import has_map_file, read_map_file
from mvc.workspace.context import threads_of
from mvc.workspace.recovery import recover
from mvc.workspace.worktree import check_parents, find_file_stat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.chunkstore.values import WriteCounts
    from mvc.operations.data_targets import Target
    from mvc.progress import ByteProgress
    from mvc.shards.hashing import HashedShard
    from mvc.shards.places import FoundShard, ShardPlace
    from mvc.workspace.context import Context
    from mvc.workspace.worktree import StrPath


@dataclass(frozen=True, slots=True)
class DataAddResult:
    """What ``data add`` did.

    Attributes:
        path: repository path of the map.
        shard_map: the map as it is now.
        changes: what differs from the map that was there before.
        read: how many shards were read; stat data or tags spoke for the others.
        read_bytes: how many bytes that were.
        warnings: (path, why) of shards whose number of records is not known though it should be.
        stored: with ``store``, what came into the repository.
    """

    path: str
    shard_map: ShardMap
    changes: MapChanges
    read: int = 0
    read_bytes: int = 0
    warnings: tuple[tuple[str, str], ...] = ()
    stored: WriteCounts | None = field(default=None, compare=False)


def add_data(
    context: Context,
    source: str,
    *,
    name: str | None = None,
    store: bool = False,
    dtype: str | None = None,
    folder: StrPath | None = None,
    progress: ByteProgress = None,
) -> DataAddResult:
    """Make or renew the map of some shards, and stage it. Only what changed is read.

    Args:
        source: a folder, a file, a pattern such as ``data/*.parquet`` or ``data/**/*.tar``, or the
            URL of one: ``s3://bucket/train``.
        name: path of the map, without ``.shards``; by default that of the folder.
        store: also add the shards themselves, as ``add`` does; else they stay where they are,
            and a rule in ``.mvcignore`` leaves them out of ``add`` and ``status``.
        dtype: NumPy's name for the type of the numbers in ``.bin`` files, such as ``uint16``, to count
            them; by default as in the map that is renewed.
        folder: what relative paths start from; the worktree by default.
        progress: called with bytes read since the last call.

    Raises:
        NotFoundError: there is no such folder, or no shard in it.
        ConflictError: a shard changed while it was read, or the map's file is that of other shards.
        UnsupportedError: a shard is a link.
        UsageError: no such dtype, or no file that it is for.
    """
    cwd = context.worktree if folder is None else Path(folder)
    recover(context)
    item_bytes = None if dtype is None else parse_number_dtype(dtype).itemsize
    target = find_target(context, source, cwd, name)
    if store and target.folder is None:
        raise UsageError(f"{source!r} is not in the worktree", hint="`store` takes what is there")
    rule = None if target.folder is None else make_rule(target.folder, target.pattern)
    old = _find_old(context, target)
    place = open_root(context, target.root, target.path)
    found = _list(place, target, source)
    if item_bytes is None:
        item_bytes = _find_item_bytes(old)
    elif not any(one.path.lower().endswith(BIN_SUFFIX) for one in found):
        raise UsageError(f"{source!r} holds no {BIN_SUFFIX} files", hint="`dtype` is for these")
    shards, hashed = _hash(context, place, found, old, progress)
    warnings = [(one.shard.path, one.warning) for one in hashed if one.warning]
    if item_bytes is not None:
        shards = [_count_numbers(one, item_bytes, warnings) for one in shards]
    made = ShardMap.build(target.root, shards, target.pattern)
    _write_map(context, target.path, made)
    if rule is not None and change_rules(
        context, add=None if store else rule, remove=rule if store else None
    ):
        stage_rules(context)
    inside = [f"{target.folder}/{one.path}".lstrip("/") for one in found] if store else []
    done = add(context, [target.path, *inside], progress=progress)
    if store:
        _check_unchanged(place, found)
    read_bytes = sum(one.shard.size_bytes for one in hashed)
    changes = compare_maps(old, made)
    counts = done.counts if store else None
    return DataAddResult(
        target.path, made, changes, len(hashed), read_bytes, tuple(warnings), counts
    )


def _find_old(context: Context, target: Target) -> ShardMap | None:
    """Return the map that is to be renewed; one of other shards is not replaced."""
    check_parents(context.worktree, target.path)
    if find_file_stat(context.worktree, target.path) is None:
        return None
    if not has_map_file(context, target.path):
        raise ConflictError(f"{target.path!r} is in the way: it is not a map")
    old = read_map_file(context, target.path)
    if (old.root, old.pattern) != (target.root, target.pattern):
        what = old.root if old.pattern is None else f"{old.root}/{old.pattern}"
        raise ConflictError(
            f"{target.path!r} is the map of {what!r}",
            hint='give this one another `name`, or remove that one with "mvc data rm"',
        )
    return old


def _list(place: ShardPlace, target: Target, source: str) -> list[FoundShard]:
    try:
        found = place.list(target.pattern)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"there is no folder {source!r}") from error
    if not found:
        raise NotFoundError(
            f"{source!r} holds no shards", hint="hidden files and maps do not count"
        )
    return found


def _hash(
    context: Context,
    place: ShardPlace,
    found: Sequence[FoundShard],
    old: ShardMap | None,
    progress: ByteProgress,
) -> tuple[list[Shard], list[HashedShard]]:
    """Return all shards, and those of them that had to be read."""
    cache = open_cache(context, place)
    known = _known_by_tag(found, old) if cache is None else cache.find(found)
    unknown = [one for one in found if one.path not in known]
    announce(progress, sum(one.size_bytes for one in unknown))
    try:
        hashed = hash_shards(place, unknown, threads=threads_of(context), progress=progress)
    except FileNotFoundError as error:
        raise ConflictError(
            f"{place.name} lists a shard that cannot be opened: {error}", hint="try again later"
        ) from error
    if cache is not None:
        cache.keep(unknown, hashed)
    return [*known.values(), *(one.shard for one in hashed)], hashed


def _find_item_bytes(old: ShardMap | None) -> int | None:
    """Return how long the numbers of .bin files are, as the map to renew counted them."""
    for one in old.shards if old is not None else ():
        if one.path.lower().endswith(BIN_SUFFIX) and one.records:
            return one.size_bytes // one.records
    return None


def _count_numbers(shard: Shard, item_bytes: int, warnings: list[tuple[str, str]]) -> Shard:
    if not shard.path.lower().endswith(BIN_SUFFIX):
        return shard
    try:
        return replace(shard, records=count_numbers(shard.size_bytes, item_bytes))
    except FormatError as error:
        warnings.append((shard.path, error.message))
        return replace(shard, records=None)


def _known_by_tag(found: Sequence[FoundShard], old: ShardMap | None) -> dict[str, Shard]:
    known: dict[str, Shard] = {}
    for one in found:
        shard = old.find(one.path) if old is not None and one.tag is not None else None
        if shard is not None and (shard.size_bytes, shard.tag) == (one.size_bytes, one.tag):
            known[one.path] = shard
    return known


def _write_map(context: Context, path: str, made: ShardMap) -> None:
    target, data = context.worktree / path, made.encode()
    with translate_os_errors(f"write {path}"):
        if find_file_stat(context.worktree, path) is None or target.read_bytes() != data:
            make_dirs(target.parent)
            write_durable(target, [data])


def _check_unchanged(place: ShardPlace, found: Sequence[FoundShard]) -> None:
    """Check that what was stored is what the map says."""
    for one in found:
        if place.find(one.path) != one:
            raise ConflictError(
                f"{one.path!r} changed while it was stored",
                hint="add it again once nothing writes to it",
            )

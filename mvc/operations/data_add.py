"""data add: the shards of a folder, pattern or store as a map, staged; their content stays where it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
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
from mvc.history.names import find_path_fault
from mvc.operations.add import add
from mvc.operations.data_places import change_rules, make_rule, open_cache, open_root, stage_rules
from mvc.progress import announce
from mvc.shards.hashing import HashedShard, hash_shards
from mvc.shards.places import FoundShard, ShardPlace, escape, file_url
from mvc.shards.records.plain import BIN_SUFFIX, count_numbers, parse_number_dtype
from mvc.shards.shard_map import MAP_SUFFIX, MapChanges, Shard, ShardMap, compare_maps
from mvc.shards.stored import has_map_file, read_map_file
from mvc.storage.urls import parse_store_url
from mvc.workspace.context import Context, threads_of
from mvc.workspace.pathspec import is_wildcard
from mvc.workspace.recovery import recover
from mvc.workspace.worktree import check_parents, find_file_stat, relative_path

if TYPE_CHECKING:
    from mvc.chunkstore.values import WriteCounts
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


@dataclass(frozen=True, slots=True)
class _Target:
    """Where shards are and where their map goes; ``folder`` is theirs if it is in the worktree."""

    path: str
    root: str
    pattern: str | None
    folder: str | None


def add_data(
    context: Context,
    source: str,
    *,
    name: str | None = None,
    store: bool = False,
    dtype: str | None = None,
    folder: StrPath | None = None,
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

    Raises:
        NotFoundError: there is no such folder, or no shard in it.
        ConflictError: a shard changed while it was read, or the map's file is that of other shards.
        UnsupportedError: a shard is a link.
        UsageError: no such dtype, or no file that it is for.
    """
    cwd = context.worktree if folder is None else Path(folder)
    recover(context)
    item_bytes = None if dtype is None else parse_number_dtype(dtype).itemsize
    target = _find_target(context, source, cwd, name)
    if store and target.folder is None:
        raise UsageError(f"{source!r} is not in the worktree", hint="`store` takes what is there")
    rule = None if target.folder is None else make_rule(target.folder, target.pattern)
    old = _find_old(context, target)
    place = open_root(context, target.root, target.path)
    listed = _list(place, target, source)
    if item_bytes is None:
        item_bytes = _find_item_bytes(old)
    elif not any(shard.path.lower().endswith(BIN_SUFFIX) for shard in listed):
        raise UsageError(f"{source!r} holds no {BIN_SUFFIX} files", hint="`dtype` is for these")
    shards, hashed = _hash(context, place, listed, old)
    warnings = [(entry.shard.path, entry.warning) for entry in hashed if entry.warning]
    if item_bytes is not None:
        shards = [_count_numbers(shard, item_bytes, warnings) for shard in shards]
    made = ShardMap.build(target.root, shards, target.pattern)
    _write_map(context, target.path, made)
    if rule is not None and change_rules(
        context, add=None if store else rule, remove=rule if store else None
    ):
        stage_rules(context)
    inside = [f"{target.folder}/{shard.path}".lstrip("/") for shard in listed] if store else []
    done = add(context, [target.path, *inside])
    if store:
        _check_unchanged(place, listed)
    read_bytes = sum(entry.shard.size_bytes for entry in hashed)
    changes = compare_maps(old, made)
    counts = done.counts if store else None
    return DataAddResult(
        target.path, made, changes, len(hashed), read_bytes, tuple(warnings), counts
    )


def _find_target(context: Context, source: str, cwd: Path, name: str | None) -> _Target:
    """Return what a folder, file, pattern or URL names."""
    if not source:
        raise UsageError("the source is empty", hint="name a folder, a pattern or a URL")
    if "://" in source:
        return _find_in_store(context, source, cwd, name)
    absolute = os.path.normpath(os.path.join(cwd, os.path.expanduser(source)))
    folder, pattern = absolute, None
    if os.path.isfile(absolute):
        folder, last = os.path.split(absolute)
        pattern = escape(last)
        if last.endswith(MAP_SUFFIX):
            raise UsageError(f"{source!r} is a shard map, not data")
    elif not os.path.isdir(absolute) and is_wildcard(absolute):
        folder, pattern = _split_pattern(absolute)
    if not os.path.isdir(folder):
        raise NotFoundError(f"there is no folder {source!r}", hint="name one, a pattern or a URL")
    real, worktree = os.path.realpath(folder), os.path.realpath(context.worktree)
    if real != worktree and not real.startswith(f"{worktree}/"):  # outside, be it by a link
        path = _map_path(context, os.path.basename(folder) if name is None else name, cwd)
        return _Target(path, file_url(real), pattern, None)
    inside = relative_path(context.worktree, context.worktree, real)
    if not inside and pattern is None:
        hint = "name a folder in it, or a pattern such as '*.parquet'"
        raise UsageError("the whole worktree cannot be one data set", hint=hint)
    default = (inside or "data") + MAP_SUFFIX
    path = default if name is None else _map_path(context, name, cwd)
    root = os.path.relpath(f"/{inside}", f"/{path.rpartition('/')[0]}")
    return _Target(path, root, pattern, inside)


def _split_pattern(path: str) -> tuple[str, str]:
    """Return the folder above the first wildcard, and the pattern below it."""
    parts = path.split("/")
    first = next(place for place, part in enumerate(parts) if is_wildcard(part))
    return "/".join(parts[:first]) or "/", "/".join(parts[first:])


def _find_in_store(context: Context, source: str, cwd: Path, name: str | None) -> _Target:
    root, pattern = source.rstrip("/"), None
    if is_wildcard(source):
        head, _, rest = root.partition("://")
        root, pattern = _split_pattern(rest)
        root = f"{head}://{root}"
    url = parse_store_url(root)
    if url.scheme == "file":
        return _find_target(context, os.path.join(url.prefix, pattern or ""), cwd, name)
    default = (url.prefix or url.bucket).rpartition("/")[2]
    return _Target(
        _map_path(context, default if name is None else name, cwd), str(url), pattern, None
    )


def _map_path(context: Context, name: str, cwd: Path) -> str:
    if not name or name.endswith("/"):
        raise UsageError(f"{name!r} cannot name a map")
    path = relative_path(context.worktree, cwd, name.removesuffix(MAP_SUFFIX) + MAP_SUFFIX)
    fault = find_path_fault(path)
    if fault is not None:
        raise UsageError(f"path {path[:200]!r} {fault}", hint="`name` gives the map another one")
    return path


def _find_old(context: Context, target: _Target) -> ShardMap | None:
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


def _list(place: ShardPlace, target: _Target, source: str) -> list[FoundShard]:
    try:
        listed = place.list(target.pattern)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"there is no folder {source!r}") from error
    if not listed:
        raise NotFoundError(
            f"{source!r} holds no shards", hint="hidden files and maps do not count"
        )
    return listed


def _hash(
    context: Context, place: ShardPlace, listed: Sequence[FoundShard], old: ShardMap | None
) -> tuple[list[Shard], list[HashedShard]]:
    """Return all shards, and those of them that had to be read."""
    cache = open_cache(context, place)
    known = _known_by_tag(listed, old) if cache is None else cache.find(listed)
    unknown = [shard for shard in listed if shard.path not in known]
    announce(sum(shard.size_bytes for shard in unknown))
    try:
        hashed = hash_shards(place, unknown, threads=threads_of(context))
    except FileNotFoundError as error:
        raise ConflictError(
            f"{place.name} lists a shard that cannot be opened: {error}", hint="try again later"
        ) from error
    if cache is not None:
        cache.keep(unknown, hashed)
    return [*known.values(), *(entry.shard for entry in hashed)], hashed


def _find_item_bytes(old: ShardMap | None) -> int | None:
    """Return how long the numbers of .bin files are, as the map to renew counted them."""
    for shard in old.shards if old is not None else ():
        if shard.path.lower().endswith(BIN_SUFFIX) and shard.records:
            return shard.size_bytes // shard.records
    return None


def _count_numbers(shard: Shard, item_bytes: int, warnings: list[tuple[str, str]]) -> Shard:
    if not shard.path.lower().endswith(BIN_SUFFIX):
        return shard
    try:
        return replace(shard, records=count_numbers(shard.size_bytes, item_bytes))
    except FormatError as error:
        warnings.append((shard.path, error.message))
        return replace(shard, records=None)


def _known_by_tag(listed: Sequence[FoundShard], old: ShardMap | None) -> dict[str, Shard]:
    known: dict[str, Shard] = {}
    if old is None:
        return known
    for shard in listed:
        before = None if shard.tag is None else old.find(shard.path)
        if before is not None and (before.size_bytes, before.tag) == (shard.size_bytes, shard.tag):
            known[shard.path] = before
    return known


def _write_map(context: Context, path: str, made: ShardMap) -> None:
    target, data = context.worktree / path, made.encode()
    with translate_os_errors(f"write {path}"):
        if find_file_stat(context.worktree, path) is None or target.read_bytes() != data:
            make_dirs(target.parent)
            write_durable(target, [data])


def _check_unchanged(place: ShardPlace, listed: Sequence[FoundShard]) -> None:
    """Check that what was stored is what the map says."""
    for shard in listed:
        if place.find(shard.path) != shard:
            raise ConflictError(
                f"{shard.path!r} changed while it was stored",
                hint="add it again once nothing writes to it",
            )

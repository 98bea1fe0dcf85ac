"""The maps of a repository: in a tree, in the index, in the worktree."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mvc.errors import FormatError, NotFoundError, UsageError
from mvc.shards.shard_map import MAP_SUFFIX, MAX_MAP_BYTES, ShardMap, name_of_map
from mvc.workspace.content import write_content
from mvc.workspace.manifests import find_manifest
from mvc.workspace.worktree import find_file_stat

if TYPE_CHECKING:
    from mvc.ids import GitId
    from mvc.workspace.context import Context


def select_maps(paths: Iterable[str], name: str | None = None) -> list[str]:
    """Return the maps among some paths, or the one of that name, with or without ``.shards``.

    Raises:
        NotFoundError: there is no such map.
        UsageError: several have this name.
    """
    known = sorted(path for path in paths if path.endswith(MAP_SUFFIX))
    if name is None:
        return known
    for path in (name, name + MAP_SUFFIX):
        if path in known:
            return [path]
    matches = [path for path in known if name_of_map(path) == name]
    if len(matches) > 1:
        raise UsageError(f"{name!r} names several maps", hint=f"write one of {', '.join(matches)}")
    if not matches:
        raise NotFoundError(f"there is no map {name!r}", hint='"mvc data ls" lists the maps')
    return matches


def read_stored_map(context: Context, blob: GitId, path: str) -> ShardMap:
    """Return a map from the history; FormatError if it is not a map."""
    manifest = find_manifest(context, blob)
    if manifest is None:
        data = context.history.read_blob(blob)
    elif manifest.size_bytes > MAX_MAP_BYTES:
        raise FormatError(f"{path} is too long for a shard map")
    else:
        buffer = bytearray(manifest.size_bytes)

        def write_at(part: memoryview, offset: int) -> None:
            buffer[offset : offset + len(part)] = part

        write_content(context, manifest, path, write_at)
        data = bytes(buffer)
    try:
        return ShardMap.parse(data)
    except FormatError as error:
        raise FormatError(f"{path}: {error.message}") from error


def has_map_file(context: Context, path: str) -> bool:
    """Return whether the worktree has a file that may be a map, and no link."""
    stat = find_file_stat(context.worktree, path)
    return stat is not None and stat.is_regular


def read_map_file(context: Context, path: str) -> ShardMap:
    """Return a map of the worktree.

    Raises:
        NotFoundError: it is not there.
        FormatError: it is not a map.
    """
    if not has_map_file(context, path):
        hint = f'"mvc restore {path}" brings it back'
        raise NotFoundError(f"the worktree has no map {path!r}", hint=hint)
    try:
        return ShardMap.read(context.worktree / path)
    except FormatError as error:
        start = f"{context.worktree}/"
        raise FormatError(error.message.removeprefix(start)) from error

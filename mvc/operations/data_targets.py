"""What the user names as a data set: its root, its pattern, and the path of its map."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import NotFoundError, UsageError
from mvc.history.paths import find_path_fault
from mvc.shards.places import escape, file_url
from mvc.shards.shard_map import MAP_SUFFIX
from mvc.storage.urls import parse_store_url
from mvc.workspace.pathspec import is_wildcard
from mvc.workspace.worktree import relative_path

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.workspace.context import Context


@dataclass(frozen=True, slots=True)
class Target:
    """Where shards are and where their map goes; ``folder`` is theirs if it is in the worktree."""

    path: str
    root: str
    pattern: str | None
    folder: str | None


def find_target(context: Context, source: str, cwd: Path, name: str | None) -> Target:
    """Return what a folder, file, pattern or URL names.

    Raises:
        NotFoundError: there is no such folder.
        UsageError: it cannot be a data set, or the map cannot have that name.
    """
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
    inside = _find_inside(context, folder)
    if inside is None:
        path = _map_path(context, os.path.basename(folder) if name is None else name, cwd)
        return Target(path, file_url(os.path.realpath(folder)), pattern, None)
    if not inside and pattern is None:
        hint = "name a folder in it, or a pattern such as '*.parquet'"
        raise UsageError("the whole worktree cannot be one data set", hint=hint)
    default = (inside or "data") + MAP_SUFFIX
    path = default if name is None else _map_path(context, name, cwd)
    root = os.path.relpath(f"/{inside}", f"/{path.rpartition('/')[0]}")
    return Target(path, root, pattern, inside)


def _split_pattern(path: str) -> tuple[str, str]:
    """Return the folder above the first wildcard, and the pattern below it."""
    parts = path.split("/")
    first = next(place for place, part in enumerate(parts) if is_wildcard(part))
    return "/".join(parts[:first]) or "/", "/".join(parts[first:])


def _find_inside(context: Context, folder: str) -> str | None:
    """Return the repository path of a folder, or None if it is outside, be it by a link."""
    real, worktree = os.path.realpath(folder), os.path.realpath(context.worktree)
    if real != worktree and not real.startswith(f"{worktree}/"):
        return None
    return relative_path(context.worktree, context.worktree, real)


def _find_in_store(context: Context, source: str, cwd: Path, name: str | None) -> Target:
    root, pattern = source.rstrip("/"), None
    if is_wildcard(source):
        head, _, rest = root.partition("://")
        root, pattern = _split_pattern(rest)
        root = f"{head}://{root}"
    url = parse_store_url(root)
    if url.scheme == "file":
        return find_target(context, os.path.join(url.prefix, pattern or ""), cwd, name)
    default = (url.prefix or url.bucket).rpartition("/")[2]
    return Target(
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

"""Where the shards of a map are, as the repository knows it, and the rules that hide them."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from mvc.errors import FormatError, NotFoundError, UsageError
from mvc.fs import remove_file, write_durable
from mvc.history.ignore import IGNORE_NAME
from mvc.history.names import encode_path
from mvc.operations.add import add
from mvc.shards.checking import Level, MapReport, check_shards
from mvc.shards.hashing import STAT_CACHE_NAME, StatCache
from mvc.shards.places import Folder, ShardPlace, escape, open_place
from mvc.shards.stored import read_map_file
from mvc.storage.urls import StoreOptions, has_store_scheme, parse_store_url
from mvc.workspace.worktree import check_parents, find_file_stat

if TYPE_CHECKING:
    from mvc.shards.shard_map import ShardMap
    from mvc.workspace.context import Context


def open_root(context: Context, root: str, map_path: str) -> ShardPlace:
    """Return the place of a map's root; a store is reached as the remote in the same bucket is."""
    folder = (context.worktree / map_path).parent
    return open_place(root, folder, _find_options(context, root))


def _find_options(context: Context, root: str) -> StoreOptions | None:
    if not has_store_scheme(root) or root.startswith("file:"):
        return None
    from mvc.remotes.settings import list_remotes  # noqa: PLC0415  few maps are of stores

    url = parse_store_url(root)
    for remote in list_remotes(context).values():
        store = remote.store
        if store is not None and (store.scheme, store.bucket) == (url.scheme, url.bucket):
            return remote.options
    return None


def open_cache(context: Context, place: ShardPlace) -> StatCache | None:
    """Return what is known of the files of a folder; None of a store, whose tags the map has."""
    if not isinstance(place, Folder):
        return None
    from mvc.workspace.kept import Kept  # noqa: PLC0415  brings BLAKE3

    return StatCache(Kept(context.git_dir / STAT_CACHE_NAME), place)


def check_known(
    context: Context,
    shard_map: ShardMap,
    place: ShardPlace,
    *,
    level: Level = "normal",
    threads: int = 1,
    share: tuple[int, int] = (0, 1),
) -> MapReport:
    """As ``mvc.shards.check_shards``, with what this repository knows of files that were hashed before.

    Raises:
        StorageError: the place cannot be listed.
    """
    cache = open_cache(context, place)
    return check_shards(shard_map, place, level=level, cache=cache, threads=threads, share=share)


def check_root(context: Context, old: str, new: str, renamed: tuple[str, str]) -> None:
    """Check that a map finds its shards from another path, too; UsageError if its root does not move along.

    ``renamed`` is the file or folder that is renamed for that, and its new name.
    """
    try:
        root = read_map_file(context, old).root
    except (FormatError, NotFoundError):  # it is a file like others
        return
    shards = posixpath.join("/", posixpath.dirname(old), root)
    source, place = (f"/{path}/" for path in renamed)
    shards = posixpath.normpath(shards) + "/"
    if shards.startswith(source):
        shards = place + shards.removeprefix(source)
    if (
        not has_store_scheme(root)
        and posixpath.relpath(shards, f"/{posixpath.dirname(new)}") != root
    ):
        folder = shards.strip("/")
        raise UsageError(
            f"{old!r} is the map of {folder!r}, which it would not find from {new!r}",
            hint=f'"mvc data rm {old}", then "mvc data add {folder} --name {new}"',
        )


def make_rule(folder: str, pattern: str | None) -> bytes:
    """Return the line of ``.mvcignore`` that hides the shards of a folder of the worktree."""
    rule = f"/{escape(folder)}/" if folder else "/"
    rule += pattern or ""
    if "\n" in rule or "\r" in rule:
        raise UsageError(f"{folder!r} has a line break in its name", hint="rename it")
    return encode_path(rule)


def change_rules(
    context: Context, *, add: bytes | None = None, remove: bytes | None = None
) -> bool:
    """Add a line to the worktree's ``.mvcignore``, or remove one; return whether it changed."""
    check_parents(context.worktree, IGNORE_NAME)
    path = context.worktree / IGNORE_NAME
    stat = find_file_stat(context.worktree, IGNORE_NAME)
    if stat is not None and not stat.is_regular:
        raise UsageError(f"{IGNORE_NAME} is not a file")
    before = path.read_bytes() if stat is not None else b""
    lines = before.splitlines(keepends=True)
    if remove is not None:
        lines = [line for line in lines if line.rstrip(b"\r\n") != remove]
    if add is not None and add not in [line.rstrip(b"\r\n") for line in lines]:
        if lines and not lines[-1].endswith(b"\n"):
            lines[-1] += b"\n"
        lines.append(add + b"\n")
    after = b"".join(lines)
    if after == before:
        return False
    if after:
        write_durable(path, [after])
    else:
        remove_file(path)
    return True


def stage_rules(context: Context) -> None:
    """Stage the worktree's ``.mvcignore``, or that it is gone."""
    is_there = find_file_stat(context.worktree, IGNORE_NAME) is not None
    if is_there or IGNORE_NAME in context.history.read_index().entries:
        add(context, [IGNORE_NAME])

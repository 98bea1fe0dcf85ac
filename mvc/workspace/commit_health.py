"""The health of the checkpoints of a commit that is being made.

The health of a file is kept by the id of its blob when it is stored. So a commit adds up a few kept
figures, and reads no weight; what a checkpoint's files were in a parent is taken from there. What is
not known is measured if it is little, else there is no line, rather than a wrong one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mvc.checkpoints.names import is_checkpoint_name
from mvc.numbers.figures import Health
from mvc.workspace.health import CheckpointHealth, read_health
from mvc.workspace.kept_health import find_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc.history.values import TreeEntry
    from mvc.ids import GitId
    from mvc.workspace.context import Context

MAX_CHECKPOINTS = 16
CHEAP_BYTES = 64 * 2**20
"""A commit reads so much to measure what is not known."""
_SHARD = re.compile(r"-\d+-of-(\d+)(?=\.[^./]*$)")


def group_checkpoints(tree: Mapping[str, TreeEntry]) -> dict[str, dict[str, GitId]]:
    """Return checkpoint → path → blob of its files."""
    groups: dict[str, dict[str, GitId]] = {}
    for path, entry in tree.items():
        if is_checkpoint_name(path):
            groups.setdefault(_SHARD.sub(r"-*-of-\1", path), {})[path] = entry.blob
    return groups


def find_health(
    context: Context,
    tree: Mapping[str, TreeEntry],
    earlier: Sequence[GitId],
    *,
    wanted: bool = False,
) -> tuple[CheckpointHealth, ...]:
    """Return the health of the checkpoints in a tree, those that are new first to be named.

    Args:
        context: the repository.
        tree: what is to be committed.
        earlier: commits whose lines count where their files are the same, first parent first.
        wanted: measure whatever is not known, however large.
    """
    groups = group_checkpoints(tree)
    if not groups:
        return ()
    said: dict[str, CheckpointHealth] = {}
    same: set[str] = set()
    for commit in earlier:
        old = group_checkpoints(context.history.read_tree(commit))
        equal = {name for name, files in groups.items() if old.get(name) == files}
        same |= equal if commit == earlier[0] else set()
        lines = read_health(context.history.read_commit(commit).trailers) if equal else ()
        said = {one.path: one for one in lines if one.path in equal} | said
    asked = {name: files for name, files in groups.items() if wanted or name not in same}
    asked = {name: files for name, files in asked.items() if name not in said}
    kept = find_files(context, (blob for files in asked.values() for blob in files.values()))
    for name in sorted(asked)[:MAX_CHECKPOINTS]:
        health = _add_up(context, asked[name], kept, None if wanted else CHEAP_BYTES)
        if health is not None and health.elements:
            said[name] = CheckpointHealth(
                name, health.nan, health.inf, health.largest, health.norm, health.saturated
            )
    chosen = sorted(said, key=lambda name: (name in same, name))[:MAX_CHECKPOINTS]
    return tuple(said[name] for name in sorted(chosen))


def _add_up(
    context: Context,
    files: Mapping[str, GitId],
    kept: Mapping[GitId, Health],
    limit_bytes: int | None,
) -> Health | None:
    total = Health()
    for path in sorted(files):
        health = kept.get(files[path])
        if health is None:
            from mvc.workspace.measuring import measure_file  # noqa: PLC0415  brings NumPy

            health = measure_file(context, files[path], limit_bytes)
        if health is None:
            return None
        total += health
    return total

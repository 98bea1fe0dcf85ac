"""What repack has looked at, noted in ``.mvc/repacked``; and whether it is due again.

The note holds the tips of the history that was paired, so that the next repack only pairs what is
new. It is a convenience: losing it costs time and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from mvc.chunkstore.sweep_plan import SMALL_PACK_BYTES
from mvc.errors import FormatError
from mvc.fs import open_file, write_durable
from mvc.ids import GitId, is_git_id
from mvc.upkeep.versions import reach

if TYPE_CHECKING:
    from mvc.history.values import CommitInfo
    from mvc.workspace.context import Context

NOTE_NAME = "repacked"
AUTO_PACKS = 50
"""How many small packs make a repack due."""
AUTO_COMMITS = 20
"""How many commits that were not paired make a repack due."""


def read_note(context: Context) -> list[GitId]:
    """Return the tips of what the last repack has looked at."""
    try:
        with open_file(context.git_dir / NOTE_NAME) as file:
            lines = file.read().decode("ascii").split()
    except (OSError, ValueError, FormatError):
        return []
    return [GitId(line) for line in lines if is_git_id(line)]


def write_note(context: Context, tips: Sequence[GitId]) -> None:
    """Note that everything up to these commits was looked at."""
    if set(read_note(context)) == set(tips):
        return
    write_durable(context.git_dir / NOTE_NAME, [b"".join(tip.encode() + b"\n" for tip in tips)])


def find_paired(context: Context, commits: Sequence[CommitInfo]) -> set[GitId]:
    """Return which of some commits an earlier repack has paired."""
    parents = {info.id: info.parents for info in commits}
    return reach(parents, read_note(context))


def find_tips(commits: Sequence[CommitInfo]) -> list[GitId]:
    """Return the commits that no other of them comes after."""
    inner = {parent for info in commits for parent in info.parents}
    return [info.id for info in commits if info.id not in inner]


def is_due(context: Context) -> bool:
    """Return whether many packs are small, or many commits were never repacked.

    Raises:
        StorageError: the machine failed.
    """
    sizes = context.here.list_packs().packs.values()
    if sum(size < SMALL_PACK_BYTES for size in sizes) >= AUTO_PACKS:
        return True
    head = context.history.head().commit
    noted = set(read_note(context))
    fresh = 0
    # Bounded, so that asking after every commit stays cheap however long the history is.
    for info in islice(context.history.walk([] if head is None else [head]), 2 * AUTO_COMMITS):
        if info.id in noted:
            break
        fresh += 1
    return fresh >= AUTO_COMMITS

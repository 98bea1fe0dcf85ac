"""The shard maps in the commits of a run: which one a commit saw, and how another one differs from it.

The state of a commit names each map by its tree hash, and the commit has the map itself as a file,
``train.shards``. Later commits leave it as it is, so it is stored once for as long as it does not change,
and what works on files of commits works on it: ``git log -p``, ``mvc diff``, ``mvc data diff``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import mvc.shards
from mvc import ConflictError, MvcError, NotFoundError
from mvc_data.record import DATA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc import Repo
    from mvc.shards import MapChanges, ShardMap
    from mvc_hooks.parts.restoring import StateSource

SHARDS = "shards"
"""Name of the trees in the entry ``data_record``, and of what ``allow`` allows."""
_MOST_TEXT_BYTES = 32 * 2**20
"""A longer map does not fit into a message to the writer."""
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class OtherMap:
    """A map that is not the one that a commit saw; ``old_tree`` is that one's, ``changes`` are words."""

    name: str
    old_tree: str
    tree: str
    changes: str

    def is_allowed(self, allow: Sequence[str]) -> bool:
        """Return whether a pattern allows it."""
        path = f"data.{SHARDS}.{self.name}"
        return any(pattern == SHARDS or fnmatchcase(path, pattern) for pattern in allow)

    def as_change(self) -> tuple[str, object, object]:
        """Return it as a change of the environment."""
        return (
            f"{SHARDS}.{self.name}",
            self.old_tree[:_SHOWN],
            f"{self.tree[:_SHOWN]} ({self.changes})",
        )


def find_other_maps(
    repo: Repo, commit: str, source: StateSource, maps: Mapping[str, ShardMap]
) -> list[OtherMap]:
    """Return which maps of a run are not those that a commit, whose state is ``source``, saw."""
    if not maps:
        return []
    data = source.outline().get(DATA)
    trees = data.get(SHARDS) if isinstance(data, Mapping) else None
    different = []
    for name, tree in trees.items() if isinstance(trees, Mapping) else ():
        now = maps.get(name)
        if now is None or tree == now.tree or not isinstance(tree, str):
            continue
        old = read_map(repo, commit, name)
        words = "what was added or changed is not known: the commit lacks the map"
        if old is not None and old.tree == tree:
            words = describe_changes(mvc.shards.compare_maps(old, now))
        different.append(OtherMap(name, tree, now.tree, words))
    return different


def refuse_maps(
    others: Sequence[OtherMap], allow: Sequence[str] = (), *, hint: str | None = None
) -> None:
    """Raise ConflictError if there are other maps than a commit's that no pattern allows."""
    refused = [other for other in others if not other.is_allowed(allow)]
    if refused:
        names = "; ".join(f"{change.name} ({change.changes})" for change in refused)
        raise ConflictError(
            f"the data is not that of the commit: {names}",
            hint=hint or f'nothing was changed; allow=["{SHARDS}"] goes on with the current shards',
        )


def list_texts(
    repo: Repo, tip: str | None, maps: Mapping[str, ShardMap]
) -> tuple[dict[str, bytes], list[str]]:
    """Return the files of maps that a commit lacks, and a line for each that is too long for one."""
    texts, doubts = dict[str, bytes](), []
    for name, shard_map in maps.items():
        data = shard_map.encode()
        if len(data) > _MOST_TEXT_BYTES:
            doubts.append(f"the map {name} is too long to be in commits: they only name its tree")
        elif not tip or _read_text(repo, tip, map_path(name)) != data:
            texts[map_path(name)] = data
    return texts, doubts


def map_path(name: str) -> str:
    """Return which file of a commit is the map of a name."""
    return f"{name}.{SHARDS}"


def read_map(repo: Repo, commit: str, name: str) -> ShardMap | None:
    """Return the map of a name in a commit of a run, or None if there is none that can be read."""
    data = _read_text(repo, commit, map_path(name))
    if data is None:
        return None
    try:
        return mvc.shards.ShardMap.parse(data)
    except MvcError:
        return None


def _read_text(repo: Repo, commit: str, path: str) -> bytes | None:
    try:
        return repo.read_file(commit, path)
    except NotFoundError:
        return None


def describe_changes(changes: MapChanges) -> str:
    """Return in words what differs between two maps."""
    kinds = ("added", "removed", "changed", "moved")
    counts = {kind: len(getattr(changes, kind)) for kind in kinds}
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)

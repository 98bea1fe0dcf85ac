"""What differs between two shard maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.shards.shard_map import sum_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc.shards.shard_map import Shard, ShardMap


@dataclass(frozen=True, slots=True)
class MapChanges:
    """What differs between two maps; pairs are (before, after).

    Attributes:
        added: shards that are new.
        removed: shards that are gone.
        changed: shards with another content under the same path.
        moved: shards with the same content under another path.
    """

    added: tuple[Shard, ...] = ()
    removed: tuple[Shard, ...] = ()
    changed: tuple[tuple[Shard, Shard], ...] = ()
    moved: tuple[tuple[Shard, Shard], ...] = ()

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.added or self.removed or self.changed or self.moved)

    @property
    def more_bytes(self) -> int:
        """By how many bytes the data grew."""
        more = sum(shard.size_bytes for shard in self.added)
        more -= sum(shard.size_bytes for shard in self.removed)
        return more + sum(new.size_bytes - old.size_bytes for old, new in self.changed)

    @property
    def more_records(self) -> int | None:
        """By how many samples the data grew, or None if that is not known."""
        came = sum_records((*self.added, *(new for _, new in self.changed)))
        went = sum_records((*self.removed, *(old for old, _ in self.changed)))
        return None if came is None or went is None else came - went


def compare_maps(old: ShardMap | None, new: ShardMap | None) -> MapChanges:
    """Return what differs; None is a map that does not exist, all of whose shards come or go."""
    before = {shard.path: shard for shard in old.shards} if old is not None else {}
    after = {shard.path: shard for shard in new.shards} if new is not None else {}
    added = {path: shard for path, shard in after.items() if path not in before}
    removed = {path: shard for path, shard in before.items() if path not in after}
    both = ((shard, after[path]) for path, shard in before.items() if path in after)
    changed = tuple((one, other) for one, other in both if one.content != other.content)
    moved = tuple(_pair_moved(removed, added))
    for one, other in moved:
        del removed[one.path], added[other.path]
    return MapChanges(tuple(added.values()), tuple(removed.values()), changed, moved)


def _pair_moved(
    removed: dict[str, Shard], added: dict[str, Shard]
) -> Iterator[tuple[Shard, Shard]]:
    places: dict[object, list[Shard]] = {}
    for shard in reversed(added.values()):
        places.setdefault(shard.content, []).append(shard)
    for shard in removed.values():
        found = places.get(shard.content)
        if found:
            yield shard, found.pop()

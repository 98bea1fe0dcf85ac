"""In which shards the samples of a ledger are: the maps of a commit, by the sources that they are of.

The index of a sample counts the records of a map, shard by shard. That holds for a source if its plan
names the map by tree hash, or the map has its name; or, of a loader that names none, if it is the
only map of the commit with as many records as the loader has samples. In no case may it have more or
fewer. A stream that is packed has windows in place of records, and no window crosses a shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mvc.errors import FormatError
from mvc.sampling.blocks import BlockOrder
from mvc.sampling.ledger import LedgerEntry, PlanEntry, RunLedger
from mvc.shards.shard_map import MAP_SUFFIX, ShardMap, name_of_map
from mvc.shards.stored import read_stored_map

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.ids import GitId
    from mvc.operations.data_ledgers import Ledgers
    from mvc.sampling.sources import Source
    from mvc.workspace.context import Context

    Maps = tuple[tuple[str, ShardMap], ...]


@dataclass(frozen=True, slots=True, eq=False)
class SourceShards:
    """The shards of a source: sample ``starts[i]`` is the first of ``paths[i]``."""

    paths: tuple[str, ...]
    starts: NDArray[np.int64]

    def find(self, path: str) -> range | None:
        """Return the samples of a shard; None if it is none of these."""
        if path not in self.paths:
            return None
        at = self.paths.index(path)
        return range(int(self.starts[at]), int(self.starts[at + 1]))

    def count(self, ids: NDArray[np.int64]) -> dict[str, int]:
        """Return path → how many of some samples."""
        inside = ids[(ids >= 0) & (ids < self.starts[-1])]
        numbers = np.searchsorted(self.starts, inside, "right") - 1
        shards, counts = np.unique(numbers, return_counts=True)
        paths = [self.paths[shard] for shard in shards.tolist()]
        return dict(zip(paths, counts.tolist(), strict=True))


class LedgerMaps:
    """The maps of commits; those that do not change from one to the next are read once."""

    def __init__(self, context: Context, ledgers: Ledgers) -> None:
        self._context, self._ledgers = context, ledgers
        self._known: tuple[object, Maps] = ((), ())

    def read(self, commit: GitId) -> Maps:
        """Return path and content of the shard maps of a commit; a damaged one is left out."""
        tree = self._context.history.read_tree(commit)
        blobs = [(path, entry.blob) for path, entry in tree.items() if path.endswith(MAP_SUFFIX)]
        if self._known[0] != blobs:
            maps: list[tuple[str, ShardMap]] = []
            for path, blob in blobs:
                with suppress(FormatError):
                    maps.append((path, read_stored_map(self._context, blob, path)))
            self._known = (blobs, tuple(maps))
        return self._known[1]

    def find(
        self, commit: GitId, ledger: Mapping[str, LedgerEntry]
    ) -> dict[tuple[str, str], SourceShards | str]:
        """Return by loader and source its shards, or why they are not known."""
        maps = self.read(commit)
        found: dict[tuple[str, str], SourceShards | str] = {}
        for name, entry in ledger.items():
            if isinstance(entry, PlanEntry):
                for one in entry.plan.sources:
                    found[name, one.name] = _find_planned(name, one, maps)
            elif entry.kind == "index":
                found[name, name] = self._find_drawn(commit, name, maps)
            else:
                found[name, name] = f"the samples of {name} have keys and no numbers"
        return found

    def _find_drawn(self, commit: GitId, name: str, maps: Maps) -> SourceShards | str:
        facts = self._ledgers.read_value(commit, "environment", "data", name)
        facts = facts if isinstance(facts, Mapping) else {}
        if facts.get("subset") is not None:
            return f"{name} draws from a Subset, whose numbers are its own: draw from the whole with a sampler"
        items = facts.get("items")
        return _choose(name, items if type(items) is int else None, maps)

    def complete(self, commit: GitId, ledger: RunLedger) -> RunLedger:
        """Return a ledger whose plans have the sizes of shards that they store as a hash, if a map has them."""
        lacking = [
            name
            for name, entry in ledger.base.items()
            if isinstance(entry, PlanEntry)
            and any(
                source.order is not None and not source.order.is_known
                for source in entry.plan.sources
            )
        ]
        if not lacking:
            return ledger
        maps = self.read(commit)
        more = {name: _complete_plan(ledger.base[name], maps) for name in lacking}
        return RunLedger({**ledger.base, **more}, ledger.own)


def _find_planned(loader: str, source: Source, maps: Maps) -> SourceShards | str:
    if source.order is not None and source.shards is not None and source.order.is_known:
        shard_map = _find_tree(source.shards, maps)
        if shard_map is not None and len(shard_map.shards) == len(source.order.sizes):
            return _lay_out(shard_map, source.order.sizes)
    if source.content is not None:
        return f"{source.name} packs samples into windows: PackedDataset.windows_of names those of a sample"
    return _choose(source.name, source.size, maps, source.shards, loader)


def _choose(
    name: str, size: int | None, maps: Maps, tree: str | None = None, loader: str | None = None
) -> SourceShards | str:
    """Return the shards of a source of so many samples (None: that is not known)."""
    if tree is not None:
        chosen = [(tree[:12], shard_map) for _, shard_map in maps if shard_map.tree == tree][:1]
    else:
        named = [
            (path, shard_map) for path, shard_map in maps if name_of_map(path) in (name, loader)
        ]
        chosen = named or [
            (path, shard_map) for path, shard_map in maps if size and shard_map.records == size
        ]
    if not chosen and maps and size is not None and tree is None:
        counts = ", ".join(f"{name_of_map(path)} {shard_map.records}" for path, shard_map in maps)
        return f"{name} has {size} samples, and no map has as many records: {counts}"
    if len({shard_map.tree for _, shard_map in chosen}) != 1:
        return f"which map {name} reads is not known: a map of its name tells"
    label, shard_map = chosen[0]
    if shard_map.records is None:
        return f"the map {name_of_map(label)} does not say how many records each shard has"
    if size is not None and shard_map.records != size:
        return f"{name} has {size} samples, and its map {shard_map.records} records"
    return _lay_out(shard_map, [shard.records or 0 for shard in shard_map.shards])


def _lay_out(shard_map: ShardMap, sizes: object) -> SourceShards:
    starts = np.concatenate([[0], np.cumsum(np.asarray(sizes, np.int64))])
    return SourceShards(tuple(shard.path for shard in shard_map.shards), starts.astype(np.int64))


def _find_tree(tree: str | None, maps: Maps) -> ShardMap | None:
    return next((shard_map for _, shard_map in maps if shard_map.tree == tree), None)


def _complete_plan(entry: LedgerEntry, maps: Maps) -> LedgerEntry:
    if not isinstance(entry, PlanEntry):
        return entry
    sources = tuple(_add_sizes(source, maps) for source in entry.plan.sources)
    return replace(entry, plan=replace(entry.plan, sources=sources))


def _add_sizes(source: Source, maps: Maps) -> Source:
    shard_map = _find_tree(source.shards, maps)
    if source.order is None or source.order.is_known or shard_map is None:
        return source
    sizes = np.array([shard.records or 0 for shard in shard_map.shards], np.int64)
    order = BlockOrder(sizes, source.order.block)
    return replace(source, order=order) if order == source.order else source

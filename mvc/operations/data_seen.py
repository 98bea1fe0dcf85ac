"""data seen: which samples the state of a commit saw since another one, how often, and from which shards."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mvc.errors import FormatError, NotFoundError
from mvc.operations.data_ledgers import Ledgers
from mvc.sampling.digest import SampleDigest
from mvc.sampling.ledger import LedgerEntry, PlanEntry, RunLedger
from mvc.sampling.stretch import Stretch, find_stretches
from mvc.shards.shard_map import MAP_SUFFIX, ShardMap, name_of_map
from mvc.shards.stored import read_stored_map

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from mvc.ids import GitId
    from mvc.sampling.stretch import Samples
    from mvc.workspace.context import Context

MOST_LISTED = 1 << 24
"""Samples that are listed; of more, only number and digest are told."""


@dataclass(frozen=True, slots=True)
class SamplesSeen:
    """Samples of one source and epoch that were seen, or skipped for a reason.

    Attributes:
        ranges: first and last index of each run, in order.
        keys: in place of ranges, if samples have keys.
        shards: path → samples, if the map of the source is in the commit.
    """

    source: str
    epoch: int | None
    count: int
    ranges: tuple[tuple[int, int], ...]
    keys: tuple[str, ...]
    shards: Mapping[str, int]
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LoaderSeen:
    """What came of one loader.

    Attributes:
        digest: of the samples seen; ``total`` is that of all until the commit.
        positions: from which until before which, if the order is a plan.
        times: how often → of how many samples; None: they are not listed.
        is_proven: whether the listed samples have the digest; None: that was not asked.
    """

    name: str
    digest: SampleDigest
    total: SampleDigest
    positions: tuple[int, int] | None
    samples: tuple[SamplesSeen, ...]
    skipped: tuple[SamplesSeen, ...]
    times: Mapping[int, int] | None
    is_proven: bool | None


@dataclass(frozen=True, slots=True)
class DataSeen:
    """What the state of ``commit`` saw since that of ``since``; None: since the run began."""

    commit: GitId
    since: GitId | None
    loaders: tuple[LoaderSeen, ...]


def list_seen(
    context: Context, revision: str, since: str | None = None, *, prove: bool = False
) -> DataSeen:
    """Return what a commit's state saw since its parent, or since it left the line of another commit."""
    ledgers = Ledgers(context)
    commit = context.history.resolve_commit(revision)
    last = ledgers.read(commit)
    if last is None:
        raise NotFoundError(
            f"{revision} does not say which samples it saw",
            hint="commits of a training run say it, if a loader or saw() names the samples",
        )
    base, links = _find_links(context, ledgers, commit, since)
    maps = read_maps(context, commit)
    names = sorted({name for _, after in links for name in after.total})
    loaders = tuple(_tell_loader(name, links, maps, prove=prove) for name in names)
    return DataSeen(commit, base, loaders)


def _find_links(
    context: Context, ledgers: Ledgers, commit: GitId, since: str | None
) -> tuple[GitId | None, list[tuple[RunLedger, RunLedger]]]:
    """Return where a stretch begins, and the ledgers of each commit on it and the one before."""
    if since is None:
        base, before = ledgers.before(commit)
        return base, [(before, ledgers.read(commit) or RunLedger())]
    theirs = set(ledgers.line(context.history.resolve_commit(since)))
    line: list[RunLedger] = []
    base = None
    for one in ledgers.line(commit):
        found = ledgers.read(one)
        if one in theirs:
            base = one
            line.append(found if found is not None else ledgers.before(one)[1])
            break
        if found is not None:
            line.append(found)
    else:
        line.append(RunLedger())
    return base, list(zip(line[:0:-1], line[-2::-1], strict=True))


def _tell_loader(
    name: str,
    links: Sequence[tuple[RunLedger, RunLedger]],
    maps: Sequence[tuple[str, ShardMap]],
    *,
    prove: bool,
) -> LoaderSeen:
    parts = [one for then, now in links for one in find_stretches(name, then, now)]
    last = next(now.total[name] for _, now in reversed(links) if name in now.total)
    digest = sum((one.digest for one in parts), SampleDigest())
    spans = [one.positions for one in parts if one.positions is not None]
    length = max(sum(stop - start for start, stop in spans), digest.count)
    is_listed = all(one.is_listed for one in parts) and length <= MOST_LISTED
    found = [one for part in parts for one in part.samples()] if is_listed else []
    shards = _ShardNames(last, maps)
    return LoaderSeen(
        name,
        digest,
        last.digest,
        (spans[0][0], spans[-1][1]) if spans else None,
        tuple(_sum_up(shards, [one for one in found if one.reason is None])),
        tuple(_sum_up(shards, [one for one in found if one.reason is not None])),
        _count_times([one for one in found if one.reason is None]) if is_listed else None,
        all(map(Stretch.prove, parts)) if prove else None,
    )


def _sum_up(shards: _ShardNames, found: Sequence[Samples]) -> Iterator[SamplesSeen]:
    groups: dict[tuple[str, int, str], list[Samples]] = {}
    for one in found:
        epoch = -1 if one.epoch is None else one.epoch
        groups.setdefault((one.source, epoch, one.reason or ""), []).append(one)
    for (source, epoch, reason), its in sorted(groups.items(), key=lambda item: item[0]):
        keys = tuple(key for one in its if isinstance(one.ids, tuple) for key in one.ids)
        arrays = [one.ids for one in its if not isinstance(one.ids, tuple)]
        ids = np.sort(np.concatenate(arrays)) if arrays else np.empty(0, np.int64)
        yield SamplesSeen(
            source, None if epoch < 0 else epoch, len(keys) + len(ids), _find_runs(ids), keys,
            shards.count(source, ids), reason or None,
        )  # fmt: skip


def _find_runs(ids: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    ids = np.unique(ids)
    if not len(ids):
        return ()
    breaks = np.flatnonzero(np.diff(ids) != 1)
    firsts, lasts = ids[np.r_[0, breaks + 1]], ids[np.r_[breaks, len(ids) - 1]]
    return tuple(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _count_times(found: Sequence[Samples]) -> dict[int, int]:
    """Return how often → of how many samples."""
    times: Counter[int] = Counter()
    for source in {one.source for one in found}:
        its = [one.ids for one in found if one.source == source]
        keys = Counter(key for ids in its if isinstance(ids, tuple) for key in ids)
        times.update(keys.values())
        arrays = [ids for ids in its if not isinstance(ids, tuple)]
        if arrays:
            _, numbers = np.unique(np.concatenate(arrays), return_counts=True)
            often, samples = np.unique(numbers, return_counts=True)
            times.update(dict(zip(often.tolist(), samples.tolist(), strict=True)))
    return dict(sorted(times.items()))


# Shards.


def read_maps(context: Context, commit: GitId) -> list[tuple[str, ShardMap]]:
    """Return path and content of the shard maps of a commit; a damaged one is left out."""
    found: list[tuple[str, ShardMap]] = []
    for path, entry in context.history.read_tree(commit).items():
        if path.endswith(MAP_SUFFIX):
            try:
                found.append((path, read_stored_map(context, entry.blob, path)))
            except FormatError:
                continue
    return found


def find_map(
    entry: LedgerEntry, source: str, maps: Sequence[tuple[str, ShardMap]]
) -> ShardMap | None:
    """Return the map of a source: by the tree hash that its plan has, else by its name."""
    planned = entry.plan.sources if isinstance(entry, PlanEntry) else ()
    tree = next((one.shards for one in planned if one.name == source), None)
    for path, one in maps:
        if one.tree == tree if tree is not None else name_of_map(path) == source:
            return one
    return None


def find_records(shard_map: ShardMap) -> NDArray[np.int64] | None:
    """Return the index of the first record of each shard, and of what would come after the last."""
    counts = [shard.records for shard in shard_map.shards]
    if any(count is None for count in counts):
        return None
    return np.cumsum([0, *(count or 0 for count in counts)], dtype=np.int64)


class _ShardNames:
    """Tells in which shards of a source samples are."""

    def __init__(self, entry: LedgerEntry, maps: Sequence[tuple[str, ShardMap]]) -> None:
        self._entry, self._maps = entry, maps

    def count(self, source: str, ids: NDArray[np.int64]) -> dict[str, int]:
        """Return path → how many of the samples."""
        shard_map = find_map(self._entry, source, self._maps)
        starts = None if shard_map is None else find_records(shard_map)
        if shard_map is None or starts is None:
            return {}
        inside = ids[(ids >= 0) & (ids < starts[-1])]
        numbers = np.searchsorted(starts, inside, "right") - 1
        shards, counts = np.unique(numbers, return_counts=True)
        paths = [shard_map.shards[one].path for one in shards.tolist()]
        return dict(zip(paths, counts.tolist(), strict=True))

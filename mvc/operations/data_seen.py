"""data seen: which samples the state of a commit saw since another one, how often, and from which shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mvc.errors import NotFoundError
from mvc.operations.data_ledgers import Ledgers
from mvc.operations.ledger_maps import LedgerMaps, SourceShards
from mvc.sampling.digest import SampleDigest
from mvc.sampling.ledger import LedgerEntry, RunLedger
from mvc.sampling.stretch import Samples, SeenStretch, find_stretches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.ids import GitId
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
    context: Context, revision: str = "HEAD", since: str | None = None, *, prove: bool = False
) -> DataSeen:
    """Return which samples the state of a commit saw since its parent, and which were skipped.

    Args:
        revision: which commit.
        since: since this one; if it is on another line, since the two parted.
        prove: compute the digest from the plan and the ids, and compare it with the commit's.

    Raises:
        NotFoundError: no such revision, or it does not say which samples it saw.
        FormatError: what it says of them is malformed.
    """
    ledgers = Ledgers(context)
    commit = context.history.resolve_commit(revision)
    last = ledgers.read(commit)
    if last is None:
        raise NotFoundError(
            f"{revision} does not say which samples it saw",
            hint="commits of a training run say it, if a loader or saw() names the samples",
        )
    if since is None:
        base = ledgers.before(commit)[0]
        stop = base
    else:
        base = stop = ledgers.find_fork(commit, context.history.resolve_commit(since))
        if stop is not None and ledgers.read(stop) is None:
            stop = ledgers.before(stop)[0]
    maps = LedgerMaps(context, ledgers)
    sums: dict[str, _LoaderSum] = {}
    at: GitId | None = commit
    while at is not None and at != stop:
        after = maps.complete(at, ledgers.read(at) or RunLedger())
        base_of_at, before = ledgers.before(at)
        for name, entry in after.total.items():
            if name not in sums:
                sums[name] = _LoaderSum(name, entry, is_proven=True if prove else None)
            for part in reversed(find_stretches(name, before, after)):
                sums[name].add(part)
        at = base_of_at
    shards = maps.find(commit, last.total)
    loaders = (
        one.finish({source: its for (loader, source), its in shards.items() if loader == name})
        for name, one in sorted(sums.items())
    )
    return DataSeen(commit, base, tuple(loaders))


class _LoaderSum:
    """What came of one loader, added up from the newest commit to older ones."""

    def __init__(self, name: str, newest: LedgerEntry, *, is_proven: bool | None) -> None:
        self._name, self._newest, self._is_proven = name, newest, is_proven
        self._digest, self._spans = SampleDigest(), list[tuple[int, int]]()
        self._found: list[Samples] | None = []
        self._length = 0

    def add(self, part: SeenStretch) -> None:
        """Add what came before all that was added."""
        self._digest += part.digest
        length = part.digest.count
        if part.positions is not None:
            self._spans.append(part.positions)
            length = max(length, part.positions[1] - part.positions[0])
        self._length += length
        if not part.is_listed or self._length > MOST_LISTED:
            self._found = None
        if self._found is not None:
            self._found += part.samples()
        if self._is_proven:
            self._is_proven = part.prove()

    def finish(self, shards: Mapping[str, SourceShards | str]) -> LoaderSeen:
        """Return it, with the shards where they are known."""
        seen = [samples for samples in self._found or () if samples.reason is None]
        skipped = [samples for samples in self._found or () if samples.reason is not None]
        return LoaderSeen(
            self._name,
            self._digest,
            self._newest.digest,
            (self._spans[-1][0], self._spans[0][1]) if self._spans else None,
            tuple(_sum_up(shards, seen)),
            tuple(_sum_up(shards, skipped)),
            None if self._found is None else _count_times(seen),
            self._is_proven,
        )


def _sum_up(
    shards: Mapping[str, SourceShards | str], found: Sequence[Samples]
) -> Iterator[SamplesSeen]:
    groups: dict[tuple[str, int, str], list[Samples]] = {}
    for one in found:
        epoch = -1 if one.epoch is None else one.epoch
        groups.setdefault((one.source, epoch, one.reason or ""), []).append(one)
    for (source, epoch, reason), its in sorted(groups.items(), key=lambda item: item[0]):
        keys = tuple(key for one in its if isinstance(one.ids, tuple) for key in one.ids)
        arrays = [one.ids for one in its if not isinstance(one.ids, tuple)]
        ids = np.sort(np.concatenate(arrays)) if arrays else np.empty(0, np.int64)
        known = shards.get(source)
        yield SamplesSeen(
            source, None if epoch < 0 else epoch, len(keys) + len(ids), _find_runs(ids), keys,
            {} if known is None or isinstance(known, str) else known.count(ids), reason or None,
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

"""What a state saw between two entries of a ledger: the samples themselves, and the proof.

The samples come out of the plan, or are listed; the digest is of those that were fetched. The proof is
that the two agree. Of a plan, positions are looked at in blocks, so memory does not grow with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mvc.sampling.digest import SampleDigest
from mvc.sampling.ids import IdList, Ids
from mvc.sampling.ledger import DrawnEntry, LedgerEntry, PlanEntry, RunLedger

if TYPE_CHECKING:
    from mvc.sampling.plan import Located

_BLOCK = 1 << 18
_INVERSE_COST, _FEW = 4, 512
"""What finding a sample takes, in positions that are looked at, and what it takes at least."""


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Samples of a source in one of its epochs (None: it does not know), in the order they came.

    ``reason`` is why they were skipped, if they were.
    """

    source: str
    epoch: int | None
    ids: Ids
    reason: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SeenStretch:
    """What came between two entries of one loader; ``before`` is None if that is all of the later one."""

    name: str
    before: LedgerEntry | None
    after: LedgerEntry

    @property
    def digest(self) -> SampleDigest:
        """The digest of the samples that were seen in it."""
        return self.after.digest if self.before is None else self.after.digest - self.before.digest

    @property
    def positions(self) -> tuple[int, int] | None:
        """The positions that it is of, if there is a plan: from the first until before the second."""
        if not isinstance(self.after, PlanEntry):
            return None
        is_on = isinstance(self.before, PlanEntry)
        return self.before.cursor if is_on else self.after.start, self.after.cursor  # type: ignore[union-attr]  # it is one

    @property
    def is_listed(self) -> bool:
        """Whether it can be said which samples these are."""
        if isinstance(self.after, PlanEntry):
            assert self.positions is not None
            orders = [source.order for source in self.after.plan.sources]
            if any(order is not None and not order.is_known for order in orders):
                return False
            return self.after.passed.complete_from <= self.positions[0] or not self.positions[0]
        before = self.before.seen if isinstance(self.before, DrawnEntry) else IdList()
        return self.after.seen.after(before.digest.count) is not None

    def samples(self) -> Iterator[Samples]:
        """Yield what was seen, and with a reason what was skipped."""
        if isinstance(self.after, DrawnEntry):
            yield from _list_drawn(self.name, self.before, self.after)
        else:
            assert self.positions is not None
            yield from _walk(self.after, *self.positions)

    def count(self, source: str, wanted: range | str) -> tuple[int, dict[str, int]] | None:
        """Return how often samples of a source (indices, or one key) were seen, and skipped by reason.

        None: it does not list what it has of the source. Few samples of a plan are found by its
        inverse, whatever the number of positions.
        """
        if not self.is_listed:
            return None
        counts = Counter[str | None]()
        for samples in self._find(source, wanted):
            counts[samples.reason] += len(samples.ids)
        seen = counts.pop(None, 0)
        return seen, {str(reason): number for reason, number in counts.items()}

    def _find(self, source: str, wanted: range | str) -> Iterator[Samples]:
        entry = self.after
        if isinstance(entry, PlanEntry) and not isinstance(wanted, str):
            names = [part.name for part in entry.plan.sources]
            if source not in names:
                return
            if self._is_few(entry, names.index(source), wanted):
                assert self.positions is not None
                yield from _find_planned(entry, names.index(source), wanted, *self.positions)
                return
        for samples in self.samples():
            if samples.source != source:
                continue
            ids = samples.ids
            if isinstance(ids, tuple):
                ids = tuple(key for key in ids if key == wanted)
            elif isinstance(wanted, str):
                ids = ids[:0]
            else:
                ids = ids[(ids >= wanted.start) & (ids < wanted.stop)]
            yield Samples(source, samples.epoch, ids, samples.reason)

    def _is_few(self, entry: PlanEntry, source: int, wanted: range) -> bool:
        """Return whether finding samples takes less than looking at all positions."""
        assert self.positions is not None
        start, stop = self.positions
        plan = entry.plan
        has_tail = plan.tail == "drop" and stop // plan.epoch_length > start // plan.epoch_length
        most = len(wanted) * len(plan.epochs(source, start, stop))
        return not has_tail and most * _INVERSE_COST + _FEW < stop - start

    def prove(self) -> bool:
        """Return whether the samples that it lists have the digest of those that were fetched."""
        if not self.is_listed:
            return False
        digest = SampleDigest()
        for samples in self.samples():
            if samples.reason is None:
                digest += IdList.of(samples.source, samples.ids).digest
            if digest.count > self.digest.count:
                return False  # a damaged entry may claim more positions than can be gone through
        return digest == self.digest


def find_stretch(name: str, before: LedgerEntry | None, after: LedgerEntry) -> SeenStretch:
    """Return what came between two entries; all of the later one if it does not go on from the earlier."""
    goes_on = type(before) is type(after) and before is not None
    if isinstance(before, PlanEntry) and isinstance(after, PlanEntry):
        goes_on = before.plan.id == after.plan.id and after.start <= before.cursor <= after.cursor
    if goes_on and before is not None and before.digest.count > after.digest.count:
        goes_on = False
    return SeenStretch(name, before if goes_on else None, after)


def find_stretches(name: str, before: RunLedger, after: RunLedger) -> list[SeenStretch]:
    """Return what came of a loader between two ledgers of a run, rank by rank where each has its own."""
    base = after.base.get(name)
    then = before.base.get(name)
    earlier: tuple[Mapping[str, DrawnEntry], ...] = before.own
    is_planned = isinstance(then, PlanEntry) or isinstance(base, PlanEntry)
    is_alike = is_planned or (then and then.digest) == (base and base.digest)
    if not is_alike or len(before.own) != len(after.own):  # the ranks have met since
        then, earlier = before.total.get(name), ({},) * len(after.own)
    stretches = [] if base is None else [find_stretch(name, then, base)]
    for theirs, its in zip(earlier, after.own, strict=True):
        if name in its:
            stretches.append(find_stretch(name, theirs.get(name), its[name]))
    return stretches


def _list_drawn(name: str, before: LedgerEntry | None, after: DrawnEntry) -> Iterator[Samples]:
    earlier = before if isinstance(before, DrawnEntry) else DrawnEntry(after.kind)
    lists: list[tuple[str | None, IdList]] = [(None, after.seen), *after.skipped.items()]
    for reason, samples in lists:
        then = earlier.seen if reason is None else earlier.skipped.get(reason, IdList())
        ids = samples.after(then.digest.count)
        if ids is not None and len(ids):
            yield Samples(name, None, ids, reason)


def _find_planned(
    entry: PlanEntry, source: int, wanted: range, start: int, stop: int
) -> Iterator[Samples]:
    """Yield some samples at positions, by the inverse of the order, epoch by epoch."""
    plan = entry.plan
    indices = np.arange(wanted.start, wanted.stop, dtype=np.int64)
    for epoch in plan.epochs(source, start, stop):
        positions = plan.find(source, indices, epoch)
        positions = positions[(positions >= start) & (positions < stop)]
        located = plan.locate(positions)
        is_passed = entry.passed.find(plan, positions, located)
        yield from _name_passed(entry, positions[is_passed], located.take(is_passed))
        yield from _name(entry, located.take(~is_passed))


def _walk(entry: PlanEntry, start: int, stop: int) -> Iterator[Samples]:
    """Yield the samples at positions; the last ones of an epoch that fill no batch are left out."""
    length = entry.plan.epoch_length
    while start < stop:
        end = (start // length + 1) * length
        drops_tail = entry.plan.tail == "drop" and stop >= end
        yield from _walk_epoch(entry, start, min(end, stop), drops_tail=drops_tail)
        start = min(end, stop)


def _walk_epoch(entry: PlanEntry, start: int, stop: int, *, drops_tail: bool) -> Iterator[Samples]:
    batch, count = entry.plan.batch, 0
    held = np.empty(0, np.int64)
    for first in range(start, stop, _BLOCK):
        positions = np.arange(first, min(first + _BLOCK, stop), dtype=np.int64)
        located = entry.plan.locate(positions)
        is_passed = entry.passed.find(entry.plan, positions, located)
        if is_passed.any():
            yield from _name_passed(entry, positions[is_passed], located.take(is_passed))
        kept = np.concatenate([held, positions[~is_passed]])
        count += len(kept) - len(held)
        # A batch begins at the start, and all but the last one are full.
        over = (batch - 1 if first + _BLOCK < stop else count % batch) if drops_tail else 0
        held = kept[len(kept) - min(over, len(kept)) :]
        seen = kept[: len(kept) - len(held)]
        if len(seen):
            yield from _name(entry, entry.plan.locate(seen))
    if len(held):
        yield from _name(entry, entry.plan.locate(held), TAIL)


TAIL = "the rest of an epoch fills no batch"
"""Why samples at the end of an epoch are not seen if ``tail`` is ``drop``."""


def _name(entry: PlanEntry, located: Located, reason: str | None = None) -> Iterator[Samples]:
    """Yield samples by source and epoch."""
    for source in np.unique(located.source).tolist():
        its = located.take(located.source == source)
        for epoch in np.unique(its.epoch).tolist():
            ids = its.index[its.epoch == epoch]
            yield Samples(entry.plan.sources[source].name, epoch, ids, reason)


def _name_passed(
    entry: PlanEntry, positions: np.ndarray[tuple[int], np.dtype[np.int64]], located: Located
) -> Iterator[Samples]:
    """Yield samples that were passed over, by the reason."""
    left = np.ones(len(positions), np.bool_)
    while left.any():
        reason = entry.passed.reason(entry.plan, int(positions[np.argmax(left)])) or ""
        is_so = left & entry.passed.find_reason(reason, entry.plan, positions, located)
        if not is_so.any():
            is_so = left
        yield from _name(entry, located.take(is_so), reason)
        left &= ~is_so

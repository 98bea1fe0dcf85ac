"""The samples of one source: without a plan counted as they come; with one, rank 0 hashes those of all ranks."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from mvc import sampling

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from mvc.sampling import DrawnEntry, GlobalBatch, Located, PlanEntry
    from mvc_hooks.ranks.group import Ranks

    Ids: TypeAlias = "NDArray[np.int64] | tuple[str, ...]"

Kind: TypeAlias = "Literal['index', 'key']"
_AT_ONCE = 1 << 16
"""Ids that are kept before they are hashed: a batch alone is too few to be hashed fast."""


def read_ids(named: Any) -> Ids | None:
    """Return what a sampler or the user names samples by as ids; None if it names none.

    Whole numbers are indices. Texts are keys, and so are other values that JSON has.
    """
    if isinstance(named, range):
        return np.arange(named.start, named.stop, named.step, dtype=np.int64)
    if isinstance(named, str):
        named = [named]
    try:
        values = np.asarray(named)
    except (ValueError, TypeError, RuntimeError):  # ragged, or a tensor elsewhere
        values = np.empty(0, object)
    if values.dtype.kind in "iu" and values.ndim < 2:  # noqa: PLR2004  of more, each row is an id
        return values.astype(np.int64).reshape(-1)
    try:
        return tuple(key if isinstance(key, str) else json.dumps(key) for key in named)
    except (TypeError, ValueError):
        return None


def kind_of(ids: Ids) -> Kind:
    """Return by what some ids name samples."""
    return "key" if isinstance(ids, tuple) else "index"


class DrawnTally:
    """Samples of one source that this rank drew; ``reason`` is why some were skipped."""

    def __init__(self, source: str, kind: Kind) -> None:
        self.kind = kind
        self._source = source
        self._waiting: dict[str | None, list[Ids]] = {}
        self._held = 0
        self._entry = sampling.DrawnEntry(kind)

    def add(self, ids: Ids, reason: str | None = None) -> None:
        """Count samples."""
        self._waiting.setdefault(reason, []).append(ids)
        self._held += len(ids)
        if self._held >= _AT_ONCE:
            self.settle()

    def settle(self) -> DrawnEntry:
        """Return all of them as an entry."""
        for reason, parts in self._waiting.items():
            is_named = isinstance(parts[0], tuple)
            ids: Any = tuple(chain(*parts)) if is_named else np.concatenate(parts)
            samples = sampling.IdList.of(self._source, ids)
            seen = samples if reason is None else sampling.IdList()
            skipped = {} if reason is None else {reason: samples}
            self._entry = self._entry.join(sampling.DrawnEntry(self.kind, seen, skipped))
        self._waiting, self._held = {}, 0
        return self._entry

    def take_up(self, entry: DrawnEntry) -> None:
        """Count what an entry has."""
        self._entry = self._entry.join(entry)

    def forget(self, before: DrawnEntry) -> None:
        """List no ids any more that an earlier entry counts."""
        self._entry = self.settle().forget(before)


_EPOCH = "a later epoch was begun"
ROLLBACK = "rollback"  # why samples were skipped that a rollback passes over


@runtime_checkable
class Planned(Protocol):
    """A loader whose order is a plan.

    ``cursor`` is the position after the last global batch that was handed out. ``watch`` takes a function
    that is called with the positions and samples of this rank's part of each, once the cursor has moved.
    """

    plan: Any
    cursor: Any
    skips: Any

    def watch(self, callback: Callable[[Any, Any], object]) -> object:
        """Call a function with what is handed out."""


class Drawing(Protocol):
    """What draws from a loader: it says what becomes of the batches that come."""

    @property
    def is_dropping(self) -> bool:
        """Whether they are dropped."""

    @property
    def is_redrawing(self) -> bool:
        """Whether they were drawn before, and are drawn again to get to a position."""


class PlanTally:
    """What was seen of a loader, as rank 0 can tell from the plan as soon as it has its own part."""

    def __init__(self, loader: Planned, drawing: Drawing, ranks: Ranks) -> None:
        self.loader, self._drawing = loader, drawing
        self._shares, self._hashes = ranks.size > 1, ranks.is_first
        self._waiting: list[Any] = []
        self._held = 0
        self._entry = self._begin()
        loader.watch(self._note)

    def _begin(self) -> PlanEntry:
        self._before, self._skips = int(self.loader.cursor), self.loader.skips
        self._ahead = sampling.Ahead(self.loader.plan)
        return sampling.PlanEntry(self.loader.plan, self._before, self._before)

    def _note(self, positions: Any, located: Any) -> None:
        """Take a batch that was handed out; what is skipped may have changed before it."""
        if self._drawing.is_redrawing:
            return
        cursor = int(self.loader.cursor)
        if self.loader.skips is not self._skips:
            self._advance(self._before)
            self._skips = self.loader.skips
        self._pass_jump(int(positions[0]))
        if self._drawing.is_dropping:
            self._advance(self._before)
            self._entry = self._entry.pass_over(cursor, ROLLBACK)
        elif self._hashes:
            self._take(located, int(positions[0]))
        self._before = cursor

    def _pass_jump(self, position: int) -> None:
        """Count what ``set_epoch`` left out of an epoch that was not over, and the epochs after it."""
        plan, before = self.loader.plan, self._before
        begin = position // plan.epoch_length * plan.epoch_length
        if begin > before and sampling.draw_batch(plan, self._skips, before) is not None:
            self._advance(before)
            self._entry = self._entry.pass_over(begin, _EPOCH)
            self._before = begin

    def _take(self, located: Located, position: int) -> None:
        if self._shares:  # a global batch ends with the last micro-batch of each rank
            batch = self._find_batch(int(self.loader.cursor), position)
            located = located.take(slice(0, 0)) if batch is None else batch.located
        self._waiting.append(located)
        self._held += len(located)
        if self._held >= _AT_ONCE:
            self._hash()

    def _find_batch(self, cursor: int, position: int) -> GlobalBatch | None:
        """Return the batch of all ranks that ends at the cursor and has a position; None if it has not ended.

        It begins at the last cursor, or in a later epoch: that of the position, or the one before it.
        """
        plan, start = self.loader.plan, self._before
        epoch = position // plan.epoch_length * plan.epoch_length
        epochs = (begin for begin in (epoch, epoch - plan.epoch_length) if begin > start)
        for begin in (start, *epochs):
            batch = sampling.draw_batch(plan, self._skips, begin, self._ahead)
            if batch is not None and batch.stop == cursor > start:
                return batch
        return None

    def _advance(self, cursor: int) -> None:
        self._entry = self._entry.move(cursor, sampling.SampleDigest(), self._skips)

    def _hash(self) -> None:
        waiting, self._waiting, self._held = self._waiting, [], 0
        if not waiting:
            return
        sources = np.concatenate([located.source for located in waiting])
        indices = np.concatenate([located.index for located in waiting])
        for number in np.unique(sources).tolist():
            name = self._entry.plan.sources[number].name
            digest = sampling.SampleDigest.of(name, indices[sources == number])
            self._entry = self._entry.move(self._entry.cursor, digest, self._skips)

    @property
    def entry(self) -> PlanEntry:
        """What was seen and passed over until the cursor; only rank 0 has the digest."""
        self._hash()
        self._advance(self._before)
        return self._entry

    def take_over(self, entry: PlanEntry) -> None:
        """Go on where another loader of the same plan was; its position is taken up at the next batch."""
        if entry.plan.id == self._entry.plan.id:
            self._entry, self._before = entry, entry.cursor

    def restore(self, entry: PlanEntry | None, reason: str) -> None:
        """Go on from a stored entry, if it is of this plan; what the loader is ahead of it is passed over."""
        self._waiting, self._held = [], 0
        fresh = self._begin()
        if entry is None or entry.plan.id != fresh.plan.id or entry.cursor > fresh.cursor:
            self._entry = fresh
        else:
            self._entry = entry.pass_over(fresh.cursor, reason)

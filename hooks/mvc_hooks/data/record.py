"""What a run records of its data in each commit: the entry ``data`` of its state.

All ranks have the same ``base``, what was seen until they last met, and each has its ``own`` since.
At a commit they meet: what is their own is joined to the base, rank by rank. So counts and digests are
those of the whole run, whatever the number of ranks. A snapshot of the ring is taken without a word to
the others; it holds both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc import DrawnEntry, FormatError, IdList, UsageError, parse_drawn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mvc_hooks.ranks.group import Ranks

DATA = "data"
"""Name of the entry in the state of a run."""
_LEDGER, _OWN, _PIPELINE, _SHARDS = "ledger", "own", "pipeline", "shards"
_PENDING = 1 << 16
_OTHER = "other reasons"
_MAX_REASONS = 60


@dataclass(slots=True)
class _Tally:
    """Ids of one source that came since all ranks met; ``pending`` are not hashed yet."""

    source: str
    pending: list[Any] = field(default_factory=list)
    held: int = 0
    done: IdList = field(default_factory=IdList)

    def add(self, ids: Any) -> None:
        self.pending.append(ids)
        self.held += len(ids)
        if self.held > _PENDING:
            self.settle()

    def settle(self) -> IdList:
        if self.pending:
            is_keys = isinstance(self.pending[0], tuple)
            ids: Any = (
                tuple(key for part in self.pending for key in part)
                if is_keys
                else np.concatenate(self.pending)
            )
            self.done = self.done.join(IdList.of(self.source, ids))
            self.pending, self.held = [], 0
        return self.done


class DataRecord:
    """What the state of a run says of its data.

    Attributes:
        pipeline: what the commit says of the pipeline, if there is one.
        shards: name of each shard map that the run reads → its tree hash.
        stored: the entry that was last restored.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.pipeline: dict[str, Any] = {}
        self.shards: dict[str, str] = {}
        self.stored: Mapping[str, Any] = {}
        self._ranks = ranks
        self._base: dict[str, DrawnEntry] = {}
        self._own: dict[tuple[str, str | None], _Tally] = {}
        self._kinds: dict[str, str] = {}

    # What is seen.

    def saw(self, source: str, ids: Any, reason: str | None = None) -> None:
        """Note samples of a source: a numpy array of indices, or a tuple of keys.

        With a ``reason`` they were drawn, and skipped for it.
        """
        kind = "key" if isinstance(ids, tuple) else "index"
        known = self._kinds.setdefault(source, kind)
        if known != kind:
            raise UsageError(
                f"samples of {source!r} were named by {known} before, and by {kind} now",
                hint="give samples of another kind a source of their own",
            )
        tally = self._own.get((source, reason))
        if tally is None:
            tally = self._own[source, reason] = _Tally(source)
        tally.add(ids)

    # State.

    def capture(self) -> dict[str, Any] | None:
        """Return the entry as this rank alone knows it; None if there is nothing to say."""
        if self._ranks.size == 1:
            return self.merge()
        own = [
            [source, reason, tally.settle().to_json(), self._kinds[source]]
            for (source, reason), tally in self._own.items()
        ]
        entry = self._spell() or {}
        return ({**entry, _OWN: own} if own else entry) or None

    def merge(self) -> dict[str, Any] | None:
        """Return the entry of all ranks; every rank must call it."""
        mine = [
            (source, reason, self._kinds[source], tally.settle())
            for (source, reason), tally in self._own.items()
        ]
        self._own.clear()
        for told in self._ranks.exchange(mine):
            self._join(told)
        return self._spell()

    def _join(self, told: Iterable[tuple[str, str | None, str, IdList]]) -> None:
        for source, reason, kind, found in told:
            entry = self._base.get(source) or DrawnEntry("key" if kind == "key" else "index")
            seen, skipped = entry.seen, dict(entry.skipped)
            if reason is None:
                seen = seen.join(found)
            else:
                is_one_more = reason not in skipped and len(skipped) >= _MAX_REASONS
                why = _OTHER if is_one_more else reason
                skipped[why] = skipped.get(why, IdList()).join(found)
            self._base[source] = DrawnEntry(entry.kind, seen, skipped)

    def _spell(self) -> dict[str, Any] | None:
        ledger = {name: entry.to_json() for name, entry in sorted(self._base.items())}
        found = {_LEDGER: ledger, _PIPELINE: self.pipeline, _SHARDS: self.shards}
        return {name: value for name, value in found.items() if value} or None

    def restore(self, stored: object) -> None:
        """Go back to what a stored state has seen; None if it does not say.

        Raises:
            FormatError: it is not such an entry.
        """
        if stored is not None and not isinstance(stored, Mapping):
            raise FormatError("the commit's record of its data is not one")
        self.stored = stored or {}
        base = parse_ledger(self.stored.get(_LEDGER, {}))
        self._base, self._own = base, {}
        self._kinds = {name: entry.kind for name, entry in base.items()}
        for source, reason, found, kind in self.stored.get(_OWN, ()):
            self._kinds[source] = kind
            self._own[source, reason] = _Tally(source, done=IdList.parse(found))


def parse_ledger(value: object) -> dict[str, DrawnEntry]:
    """Return a stored ledger; FormatError if it is none."""
    if not isinstance(value, Mapping):
        raise FormatError("the ledger of a commit is not one")
    return {str(name): parse_drawn(entry) for name, entry in value.items()}

"""What a run records of its data in each commit: the entry ``data_record`` of its state.

What a loader with a plan hands out, rank 0 knows for all ranks. Of everything else, each rank has its
``own``, which is committed with what else belongs to it, so none has to ask the others: readers of the
commit add them up. All have the same ``base`` besides: what was seen before they were as many as now.
They meet only to restore what other ranks made, and make a base of it.

Ids are listed since the newest commit that is known to be durable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mvc import FormatError, UsageError, sampling
from mvc_data.tallies import ROLLBACK, DrawnTally, Planned, PlanTally, kind_of, read_ids
from mvc_hooks.extension import OWN
from mvc_hooks.run.extensions import DATA

if TYPE_CHECKING:
    from collections.abc import Callable

    from mvc.sampling import DrawnEntry, PlanEntry
    from mvc_data.tallies import Drawing, Ids, Kind
    from mvc_hooks.ranks.group import Ranks

    LedgerEntry = PlanEntry | DrawnEntry
    Drawn = Mapping[str, DrawnEntry]

_RESUME = "passed over at a resume"
_SHORT, _DIGITS = 12, 16
_MAX_TEXT = 1000
_LEDGER, _PIPELINE, _SHARDS = "ledger", "pipeline", "shards"
_UNNAMED = (
    "the sampler of {} names samples by what is neither number nor text, so commits do not record "
    "which were seen"
)


class DataRecord:
    """What the state of a run says of its data."""

    def __init__(self, ranks: Ranks) -> None:
        self.pipeline: dict[str, Any] = {}  # what the commit says of the pipeline, if there is one
        # Name of each shard map that the run reads → its tree hash.
        self.shards: dict[str, str] = {}
        self._ranks = ranks
        self._base: dict[str, DrawnEntry] = {}
        self._own: dict[str, DrawnTally] = {}
        self._drawn: set[str] = set()
        self._unnamed: set[str] = set()
        # Without their ids: what commits have by their step, and what the newest durable one has.
        self._made: dict[int, dict[str, DrawnEntry]] = {}
        self._durable: dict[str, DrawnEntry] = {}
        self._planned: dict[str, PlanTally] = {}
        self._gone: dict[str, PlanEntry] = {}  # of loaders that the run no longer has
        self._is_told = True

    # What is seen.

    def saw(self, source: object, named: object, reason: object = None) -> None:
        """Note samples of a source that the user names; ``reason`` is why they were skipped, if they were.

        Raises:
            UsageError: a name, a sample or a reason that is not one, or a source that is a loader whose
                samples are noted as it draws them, or whose samples were named in another way before.
        """
        source, ids = _check_text("source", source), read_ids(named)
        why = None if reason is None else _check_text("skipped", reason)
        if ids is None or not all(len(key) <= _MAX_TEXT for key in ids if isinstance(key, str)):
            raise UsageError(
                f"the samples of {source!r} are not named by numbers or short texts",
                hint='ckpt.saw([17, 4, ...], source="web"), or the keys of the samples',
            )
        if source in self._drawn:
            raise UsageError(
                f"the samples of {source!r} are recorded as the loader draws them",
                hint="leave saw() out for it, or name another source",
            )
        kind = kind_of(ids)
        known = self._find_kind(source) or kind
        if known != kind:
            raise UsageError(
                f"samples of {source!r} were named by {known} before, and by {kind} now",
                hint="give samples of another kind a source of their own",
            )
        if len(ids):
            self._note(source, kind, ids, why)

    def note_drawn(self, name: str, path: str, indices: object, is_dropped: bool) -> None:  # noqa: FBT001  the callback of a part
        """Note a batch that a torch DataLoader of a part handed out."""
        source = f"{name}.{path}".rstrip(".")
        if name in self._planned:
            return
        ids = None if source in self._unnamed else read_ids(indices)
        if ids is None or (self._find_kind(source) or kind_of(ids)) != kind_of(ids):
            self._unnamed.add(source)
            return
        self._drawn.add(source)
        self._note(source, kind_of(ids), ids, ROLLBACK if is_dropped else None)

    def _find_kind(self, source: str) -> Kind | None:
        known = self._own.get(source) or self._base.get(source)
        return None if known is None else known.kind

    def _note(self, source: str, kind: Kind, ids: Ids, reason: str | None) -> None:
        tally = self._own.get(source)
        if tally is None:
            tally = self._own[source] = DrawnTally(source, kind)
        tally.add(ids, reason)

    def doubt(self) -> list[str]:
        """Return a line for each loader whose samples cannot be recorded."""
        return [_UNNAMED.format(source) for source in sorted(self._unnamed)]

    def follow(self, name: str, path: str, loader: object, drawing: Drawing) -> None:
        """Note what a loader of a part hands out, if its order is a plan."""
        name = f"{name}.{path}".rstrip(".")
        before = self._planned.get(name)
        if not isinstance(loader, Planned) or (before is not None and before.loader is loader):
            return
        self._drawn.add(name)
        self._planned[name] = plan = PlanTally(loader, drawing, self._ranks)
        gone = self._gone.pop(name, None)
        if before is not None:
            plan.take_over(before.entry)
        elif gone is not None:
            plan.take_over(gone)

    # State.

    def capture(self) -> dict[str, Any] | None:
        """Return the entry as this rank has it; None if there is nothing to say."""
        for source, durable in self._durable.items():
            self._own[source].forget(durable)
        own = _spell(self._settle())
        is_alone = self._ranks.size == 1
        ledger = (own if is_alone else _spell(self._base)) | _spell(self._plans)
        facts = {
            _LEDGER: dict(sorted(ledger.items())),
            _PIPELINE: self.pipeline,
            _SHARDS: self.shards,
        }
        entry = {name: value for name, value in facts.items() if value}
        return (entry if is_alone else {**entry, OWN: own}) or None

    def _settle(self) -> dict[str, DrawnEntry]:
        return {source: tally.settle() for source, tally in sorted(self._own.items())}

    @property
    def _plans(self) -> dict[str, LedgerEntry]:
        return {**self._gone, **{name: plan.entry for name, plan in self._planned.items()}}

    def restore(
        self,
        stored: object,
        *,
        ranks: int | None = None,
        read_own: Callable[[int], object] = lambda _: {},
        is_durable: bool = True,
        passes_on: bool = False,
    ) -> None:
        """Go back to what a stored state has seen; None if it does not say. Every rank must call it.

        Args:
            stored: the entry, with what is this rank's own.
            ranks: how many made it; None: as many as there are now.
            read_own: returns what another one of them had for itself.
            is_durable: whether it is a commit's, so the ids that it lists need not be listed again.
            passes_on: whether the data stays where it is: what was seen since then is skipped.

        Raises:
            FormatError: it is not such an entry.
        """
        entry, self._is_told = _check_entry(stored), stored is not None
        ledger = sampling.parse_ledger(entry.get(_LEDGER, {}))
        base: Drawn = sampling.pick_drawn(ledger)
        mine: Drawn = {}
        now: Drawn = self._settle()
        size = self._ranks.size
        ranks = ranks or size
        meets = size == 1 or ranks != size or (passes_on and _digests(base) != _digests(self._base))
        if meets:
            base, now = self._meet(base, entry, now, ranks, read_own)
        else:
            mine = _parse_own(entry)
        says_skipped = passes_on and (self._ranks.is_first or not meets)
        skipped = _skip_since(base if meets else mine, now) if says_skipped else {}
        if size == 1:
            base, mine = {}, base
        self._base = {name: entries.unlisted for name, entries in base.items()}
        self._made, self._durable, self._own = {}, {}, {}
        for source, entries in (*mine.items(), *skipped.items()):
            self._own.setdefault(source, DrawnTally(source, entries.kind)).take_up(entries)
        if is_durable:
            self._durable = {name: entries.unlisted for name, entries in mine.items()}
        plans = {
            name: part for name, part in ledger.items() if isinstance(part, sampling.PlanEntry)
        }
        self._gone = {name: plan for name, plan in plans.items() if name not in self._planned}
        for name, planned in self._planned.items():
            planned.restore(plans.get(name), ROLLBACK if passes_on else _RESUME)

    def _meet(
        self,
        base: Drawn,
        entry: Mapping[str, Any],
        now: Drawn,
        ranks: int,
        read_own: Callable[[int], object],
    ) -> tuple[Drawn, Drawn]:
        """Return what all ranks of a stored state saw together, and what those of this run have seen."""
        size, rank = self._ranks.size, self._ranks.rank

        def read() -> tuple[Drawn, Drawn]:
            mine = [_parse_own(entry)] if rank < ranks else []
            rest = (_parse_own(read_own(other)) for other in range(rank + size, ranks, size))
            return sampling.join_ledgers({}, *mine, *rest), now

        then, seen = zip(*self._ranks.ask_all(read), strict=True)
        return sampling.join_ledgers(base, *then), sampling.join_ledgers(self._base, *seen)

    def compare(self, stored: object) -> list[str]:
        """Say what the samples of a stored entry are that these are not; every rank must call it.

        Each passes the entry with what is its own. Which ids are listed does not count: that depends on
        when a commit became durable. A commit of a run without data has no entry: a run that went on
        from it counts from there, and so does this record.
        """
        if stored is None and not self._is_told:
            self.restore(None)
            return []
        entry = _check_entry(stored)
        stored_own, own = zip(
            *self._ranks.ask_all(lambda: (_parse_own(entry), self._settle())), strict=True
        )
        theirs = sampling.join_ledgers(sampling.parse_ledger(entry.get(_LEDGER, {})), *stored_own)
        mine = sampling.join_ledgers({**self._base, **self._plans}, *own)
        lines: list[str] = []
        for name in sorted(theirs.keys() | mine.keys()) if self._ranks.is_first else ():
            ours, its = _spell_seen(mine.get(name)), _spell_seen(theirs.get(name))
            if ours != its:
                lines.append(f"{DATA}.{_LEDGER}.{name} (saw {ours}; the commit: {its})")
        return self._ranks.share(lines)

    # Commits.

    def note_commit(self, step: int) -> tuple[dict[str, str], tuple[int, int]]:
        """Note that the state as captured last becomes the commit of a step; return facts for it.

        Besides, the number of samples that this rank counts, and the first lane of their digest: whoever
        reads them adds up those of all ranks.
        """
        own = self._settle()
        self._made[step] = {name: entries.unlisted for name, entries in own.items()}
        facts = {f"data.{name}": tree[:_SHORT] for name, tree in self.shards.items()}
        known = {**self._base, **self._plans} if self._ranks.is_first else {}
        digests = [entries.digest for entries in (*known.values(), *own.values())]
        if not digests:  # and nothing of ``sampling`` is imported for it
            return facts, (0, 0)
        total = sum(digests[1:], digests[0])
        return facts, (total.count, total.lanes[0])

    def note_durable(self, step: int) -> None:
        """Note that the commit of a step is durable: its ids need not be listed again."""
        made = self._made.pop(step, None)
        if made is not None:
            self._durable = made
            self._made = {later: kept for later, kept in self._made.items() if later > step}


def _spell(entries: Mapping[str, LedgerEntry]) -> dict[str, Any]:
    return {name: entry.to_json() for name, entry in entries.items()}


def _check_entry(stored: object) -> Mapping[str, Any]:
    if stored is not None and not isinstance(stored, Mapping):
        raise FormatError("the commit has no record of its data where one belongs")
    return stored or {}


def _parse_own(entry: object) -> dict[str, DrawnEntry]:
    """Return what an entry says that one rank has for itself."""
    own = entry.get(OWN, {}) if isinstance(entry, Mapping) else {}
    return sampling.pick_drawn(sampling.parse_ledger(own))


def _skip_since(then: Drawn, now: Drawn) -> dict[str, DrawnEntry]:
    """Return what came since a stored state as skipped."""
    return {
        source: entry.skip_since(
            source, then.get(source) or sampling.DrawnEntry(entry.kind), ROLLBACK
        )
        for source, entry in now.items()
    }


def _digests(ledger: Drawn) -> dict[str, object]:
    return {name: entries.digest for name, entries in ledger.items()}


def _spell_seen(entry: LedgerEntry | None) -> str:
    """Return in words what an entry says was seen and skipped."""
    if entry is None:
        return "nothing"
    seen = f"{entry.digest.count:,} samples of digest {entry.digest.hex[:_DIGITS]}"
    if isinstance(entry, sampling.PlanEntry):
        return f"{seen} up to position {entry.cursor:,} of plan {entry.plan.id[:_SHORT]}"
    skipped = [
        f"{samples.digest.count:,} ({reason})" for reason, samples in sorted(entry.skipped.items())
    ]
    return f"{seen}, and skipped {', '.join(skipped)}" if skipped else seen


def _check_text(name: str, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_TEXT:
        raise UsageError(f"{name} is {value!r}, not a text of at most {_MAX_TEXT} characters")
    return value

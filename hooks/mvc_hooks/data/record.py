"""What a run records of its data in each commit: the entry ``data_record`` of its state.

All ranks have the same ``base``, what was seen until they last met, and each has its ``own`` since.
At a commit they meet: each rank's own is joined to the base, rank by rank. So counts and digests are
those of the whole run, whatever the number of ranks. A snapshot of the ring is taken without a word to
the others; it holds both.

Ids are listed since the newest commit that is known to be durable. Rank 0 says which one that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mvc import FormatError, UsageError, sampling
from mvc_hooks.data.drawn import Tally, kind_of, read_ids
from mvc_hooks.data.planned import ROLLBACK, Planned, PlanTally

if TYPE_CHECKING:
    from collections.abc import Callable

    from mvc.sampling import DrawnEntry, PlanEntry, SampleDigest
    from mvc_hooks.data.drawn import Ids, Kind
    from mvc_hooks.ranks.group import Ranks

    LedgerEntry = PlanEntry | DrawnEntry

DATA = "data_record"
"""Name of the entry in the state of a run."""
_RESUME = "passed over at a resume"
_SHORT, _DIGITS = 12, 16
_MAX_TEXT = 1000
_LEDGER, _OWN, _PIPELINE, _SHARDS = "ledger", "own", "pipeline", "shards"
_UNNAMED = (
    "the sampler of {} names samples by what is neither number nor text, so commits do not record "
    "which were seen"
)


class DataRecord:
    """What the state of a run says of its data.

    Attributes:
        pipeline: what the commit says of the pipeline, if there is one.
        shards: name of each shard map that the run reads → its tree hash.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.pipeline: dict[str, Any] = {}
        self.shards: dict[str, str] = {}
        self._ranks = ranks
        self._base: dict[str, DrawnEntry] = {}
        self._own: dict[str, Tally] = {}
        self._drawn: set[str] = set()
        self._unnamed: set[str] = set()
        # Without their ids: what commits have by their step, and what the newest durable one has.
        self._made: dict[int, dict[str, DrawnEntry]] = {}
        self._durable: dict[str, DrawnEntry] = {}
        self._planned: dict[str, PlanTally] = {}
        self._gone: dict[str, PlanEntry] = {}  # of loaders that the run no longer has

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
            tally = self._own[source] = Tally(source, kind)
        tally.add(ids, reason)

    def doubt(self) -> list[str]:
        """Say of which loaders samples cannot be recorded."""
        return [_UNNAMED.format(source) for source in sorted(self._unnamed)]

    def follow(self, name: str, loader: object, is_dropping: Callable[[], bool]) -> None:
        """Note what a loader of the run hands out, if its order is a plan."""
        before = self._planned.get(name)
        if not isinstance(loader, Planned) or (before is not None and before.loader is loader):
            return
        self._drawn.add(name)
        self._planned[name] = plan = PlanTally(loader, is_dropping)
        gone = self._gone.pop(name, None)
        if before is not None:
            plan.take_over(before.entry, before.settle())
        elif gone is not None:
            plan.take_over(gone, sampling.SampleDigest())

    # State.

    def capture(self) -> dict[str, Any] | None:
        """Return the entry as this rank alone knows it; None if there is nothing to say."""
        if self._ranks.size == 1:
            return self.merge()
        own = {source: tally.settle().to_json() for source, tally in self._own.items()}
        for name, plan in self._planned.items():
            digest = plan.settle()
            if digest.count:
                own[name] = {"count": digest.count, "digest": digest.hex}
        entry = self._spell() or {}
        return ({**entry, _OWN: own} if own else entry) or None

    def merge(self) -> dict[str, Any] | None:
        """Return the entry of all ranks; every rank must call it."""
        mine = {source: tally.settle() for source, tally in self._own.items()}
        plans = {name: plan.settle() for name, plan in self._planned.items()}
        self._own.clear()
        told = self._ranks.exchange((mine, plans, self._durable))
        for found, _, _ in told:
            for source, entry in found.items():
                known = self._base.get(source) or sampling.DrawnEntry(entry.kind)
                self._base[source] = known.join(entry)
        for name, plan in self._planned.items():
            plan.join(sum((digests[name] for _, digests, _ in told), sampling.SampleDigest()))
        for source, durable in told[0][2].items():
            self._base[source] = self._base[source].forget(durable)
        return self._spell()

    @property
    def _entries(self) -> dict[str, LedgerEntry]:
        plans = {name: plan.entry for name, plan in self._planned.items()}
        return {**self._gone, **self._base, **plans}

    def _spell(self) -> dict[str, Any] | None:
        ledger = {name: entry.to_json() for name, entry in sorted(self._entries.items())}
        found = {_LEDGER: ledger, _PIPELINE: self.pipeline, _SHARDS: self.shards}
        return {name: value for name, value in found.items() if value} or None

    def restore(self, stored: object, *, is_durable: bool = True, passes_on: bool = False) -> None:
        """Go back to what a stored state has seen; None if it does not say.

        Args:
            stored: the entry.
            is_durable: whether it is a commit's, so the ids that it lists need not be listed again.
            passes_on: whether the data stays where it is: what was seen since then is skipped.

        Raises:
            FormatError: it is not such an entry.
        """
        if stored is not None and not isinstance(stored, Mapping):
            raise FormatError("the commit's record of its data is malformed")
        entry = stored or {}
        ledger = sampling.parse_ledger(entry.get(_LEDGER, {}))
        own, digests = _parse_own(entry.get(_OWN, {}))
        base = {name: one for name, one in ledger.items() if isinstance(one, sampling.DrawnEntry)}
        skipped = self._pass_over(base, own) if passes_on else {}
        self._base, self._own, self._made, self._durable = base, {}, {}, {}
        if is_durable:
            self._base = {name: one.forget(one) for name, one in base.items()}
            self._durable = dict(self._base)
        for source, found in (*own.items(), *skipped.items()):
            self._own.setdefault(source, Tally(source, found.kind)).take_up(found)
        plans = {name: one for name, one in ledger.items() if isinstance(one, sampling.PlanEntry)}
        self._gone = {name: one for name, one in plans.items() if name not in self._planned}
        for name, plan in self._planned.items():
            why = ROLLBACK if passes_on else _RESUME
            plan.restore(plans.get(name), digests.get(name, sampling.SampleDigest()), why)

    def _pass_over(
        self, base: Mapping[str, DrawnEntry], own: Mapping[str, DrawnEntry]
    ) -> dict[str, DrawnEntry]:
        """Return what came since a stored state as skipped; of what all ranks know, rank 0 says it."""
        found: dict[str, DrawnEntry] = {}
        mine = {source: tally.settle() for source, tally in self._own.items()}
        sides = [(mine, own), (self._base, base)] if self._ranks.is_first else [(mine, own)]
        for now, then in sides:
            for source, entry in now.items():
                before = then.get(source) or sampling.DrawnEntry(entry.kind)
                more = entry.skip_since(source, before, ROLLBACK)
                found[source] = more.join(found[source]) if source in found else more
        return found

    def compare(self, stored: object) -> list[str]:
        """Say what the samples of a stored state are that these, as merged last, are not.

        Which ids are listed does not count: that depends on when a commit became durable.
        """
        theirs = (
            sampling.parse_ledger(stored.get(_LEDGER, {})) if isinstance(stored, Mapping) else {}
        )
        ours = self._entries
        found: list[str] = []
        for name in sorted(theirs.keys() | ours.keys()):
            mine, its = _spell_seen(ours.get(name)), _spell_seen(theirs.get(name))
            if mine != its:
                found.append(f"{DATA}.{_LEDGER}.{name} (saw {mine}; the commit: {its})")
        return found

    # Commits.

    def note_commit(self, step: int) -> dict[str, str]:
        """Note that the state as merged last is to be the commit of a step; return facts for it."""
        self._made[step] = {name: one.forget(one) for name, one in self._base.items()}
        facts = {f"data.{name}": tree[:_SHORT] for name, tree in self.shards.items()}
        digests = [one.digest for one in self._entries.values() if one.digest.count]
        if digests:
            total = sum(digests, sampling.SampleDigest())
            facts |= {"data.samples": str(total.count), "data.digest": total.hex[:_DIGITS]}
        return facts

    def note_durable(self, step: int) -> None:
        """Note that the commit of a step is durable: its ids need not be listed again."""
        made = self._made.pop(step, None)
        if made is not None:
            self._durable = made
            self._made = {later: one for later, one in self._made.items() if later > step}


def _parse_own(value: object) -> tuple[dict[str, DrawnEntry], dict[str, SampleDigest]]:
    """Return what a snapshot has of one rank alone."""
    found = value if isinstance(value, Mapping) else {}
    digests = {
        name: sampling.SampleDigest.parse(one["count"], one["digest"])
        for name, one in found.items()
        if "kind" not in one
    }
    rest = sampling.parse_ledger({name: one for name, one in found.items() if name not in digests})
    return {
        name: one for name, one in rest.items() if isinstance(one, sampling.DrawnEntry)
    }, digests


def _spell_seen(entry: LedgerEntry | None) -> str:
    """Return in words what an entry says was seen and skipped."""
    if entry is None:
        return "nothing"
    seen = f"{entry.digest.count:,} samples of digest {entry.digest.hex[:_DIGITS]}"
    if isinstance(entry, sampling.PlanEntry):
        return f"{seen} up to position {entry.cursor:,} of plan {entry.plan.id[:_SHORT]}"
    skipped = [f"{one.digest.count:,} ({reason})" for reason, one in sorted(entry.skipped.items())]
    return f"{seen}, and skipped {', '.join(skipped)}" if skipped else seen


def _check_text(name: str, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_TEXT:
        raise UsageError(f"{name} is {value!r}, not a text of at most {_MAX_TEXT} characters")
    return value

"""The ledger: what a commit says about the samples that its state has seen.

There is an entry for each loader, or source that the user names. All its numbers are cumulative, so
what a commit saw since its parent is the difference of the two, and a commit that failed loses
nothing.

*With a plan* the order is known, and an entry is the plan, the cursor, what was passed over, and the
digest of the samples that were really fetched. *Without one* it lists ids: the last ones, at least
since the newest commit that was durable when this one was made, and at most ``MAX_LISTED``.
Everything parsed here may come from a remote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

from mvc.errors import FormatError
from mvc.sampling.digest import SampleDigest
from mvc.sampling.ids import IdList, check_name
from mvc.sampling.passed import MAX_REASONS, OTHER_REASONS, Passed
from mvc.sampling.permutation import MAX_SIZE, is_whole
from mvc.sampling.plan import SamplePlan

if TYPE_CHECKING:
    from mvc.sampling.skips import Skips

_MAX_ENTRIES = 4096


@dataclass(frozen=True, slots=True, eq=False)
class PlanEntry:
    """The samples of a loader with a plan: positions from ``start`` until before ``cursor``.

    Attributes:
        digest: of the samples that were fetched there.
        passed: what was skipped there.
    """

    plan: SamplePlan
    start: int = 0
    cursor: int = 0
    digest: SampleDigest = field(default_factory=SampleDigest)
    passed: Passed = field(default_factory=Passed)

    def move(self, cursor: int, digest: SampleDigest, skips: Skips) -> PlanEntry:
        """Return the entry after more samples; ``skips`` hold from the old cursor on."""
        passed = self.passed.update(skips, self.cursor)
        return replace(self, cursor=cursor, digest=self.digest + digest, passed=passed)

    def pass_over(self, stop: int, reason: str) -> PlanEntry:
        """Return the entry with the positions until before ``stop`` skipped."""
        passed = self.passed.add_window(self.cursor, stop, reason)
        return replace(self, cursor=max(stop, self.cursor), passed=passed)

    def to_json(self) -> dict[str, Any]:
        """Return it as a state can hold it."""
        return {
            "kind": "plan",
            "plan": self.plan.to_json(),
            "start": self.start,
            "cursor": self.cursor,
            "count": self.digest.count,
            "digest": self.digest.hex,
            **self.passed.to_json(),
        }


def _parse_plan(value: Mapping[str, Any]) -> PlanEntry:
    plan = SamplePlan.parse(value.get("plan"))
    start: Any = value.get("start")
    cursor: Any = value.get("cursor")
    if not is_whole(start, 0, MAX_SIZE - 1) or not is_whole(cursor, start, MAX_SIZE - 1):
        raise FormatError("a ledger entry does not say which positions it is of")
    digest = SampleDigest.parse(value.get("count"), value.get("digest"))
    if digest.count > cursor - start:
        raise FormatError("a ledger entry counts more samples than positions")
    return PlanEntry(plan, start, cursor, digest, Passed.parse(value))


@dataclass(frozen=True, slots=True, eq=False)
class DrawnEntry:
    """The samples of a source whose order is known only as it is drawn.

    Attributes:
        skipped: reason → samples that were drawn and dropped.
    """

    kind: Literal["index", "key"]
    seen: IdList = field(default_factory=IdList)
    skipped: Mapping[str, IdList] = field(default_factory=dict)

    @property
    def digest(self) -> SampleDigest:
        """The digest of the samples seen."""
        return self.seen.digest

    def join(self, later: DrawnEntry) -> DrawnEntry:
        """Return the entry with what came later; more reasons than there may be become one."""
        skipped = dict(self.skipped)
        for reason, samples in later.skipped.items():
            is_one_more = reason not in skipped and len(skipped) >= MAX_REASONS - 1
            why = OTHER_REASONS if is_one_more else reason
            skipped[why] = skipped.get(why, IdList()).join(samples)
        return DrawnEntry(self.kind, self.seen.join(later.seen), skipped)

    def forget(self, before: DrawnEntry) -> DrawnEntry:
        """Return the entry without the ids that an earlier one counts."""
        skipped = {
            reason: samples.forget(before.skipped.get(reason, IdList()).digest.count)
            for reason, samples in self.skipped.items()
        }
        return DrawnEntry(self.kind, self.seen.forget(before.digest.count), skipped)

    @property
    def unlisted(self) -> DrawnEntry:
        """The entry without any ids."""
        return self.forget(self)

    def skip_since(self, source: str, before: DrawnEntry, reason: str) -> DrawnEntry:
        """Return what was seen or skipped since an earlier entry as skipped, the former for a reason."""
        skipped = DrawnEntry(self.kind)
        lists = [(reason, self.seen, before.seen)] + [
            (why, samples, before.skipped.get(why, IdList()))
            for why, samples in self.skipped.items()
        ]
        for why, now, then in lists:
            more = now.since(source, then)
            if more.digest != SampleDigest():
                skipped = skipped.join(DrawnEntry(self.kind, skipped={why: more}))
        return skipped

    def to_json(self) -> dict[str, Any]:
        """Return it as a state can hold it."""
        skipped = {reason: samples.to_json() for reason, samples in sorted(self.skipped.items())}
        extra = {"skipped": skipped} if skipped else {}
        return {"kind": self.kind, **self.seen.to_json(), **extra}


def _parse_drawn(value: Mapping[str, Any]) -> DrawnEntry:
    """Return a stored entry of a loader without a plan; FormatError if it is malformed."""
    kind, skipped = value.get("kind"), value.get("skipped", {})
    if kind not in ("index", "key"):
        raise FormatError("a ledger entry is of a kind that this mvc does not know")
    if not isinstance(skipped, Mapping) or len(skipped) > MAX_REASONS:
        raise FormatError("a ledger entry does not say why samples were skipped")
    seen = IdList.parse(value)
    lists = {check_name(reason): IdList.parse(samples) for reason, samples in skipped.items()}
    for samples in (seen, *lists.values()):
        if len(samples.ids) and isinstance(samples.ids, tuple) != (kind == "key"):
            raise FormatError("a ledger entry lists ids of another kind")
    return DrawnEntry("key" if kind == "key" else "index", seen, lists)


LedgerEntry: TypeAlias = PlanEntry | DrawnEntry


@dataclass(frozen=True, eq=False)
class RunLedger:
    """The ledger of a run: ``base`` is what its ranks know alike, ``own`` what each saw besides.

    A run of one rank has all in ``base``. Of several, each adds up what it draws without a plan since the
    run began with this number of ranks, so that none has to ask the others.
    """

    base: Mapping[str, LedgerEntry] = field(default_factory=dict)
    own: tuple[Mapping[str, DrawnEntry], ...] = ()

    @cached_property
    def total(self) -> dict[str, LedgerEntry]:
        """What the ranks saw together, by loader or source."""
        return join_ledgers(self.base, *self.own)


_Entry = TypeVar("_Entry", bound=LedgerEntry)


def join_ledgers(first: Mapping[str, _Entry], *others: Mapping[str, _Entry]) -> dict[str, _Entry]:
    """Return the sum of what ranks saw; of a loader that changed its kind, what came last."""
    joined = dict(first)
    for name, entry in (item for other in others for item in other.items()):
        known = joined.get(name)
        if (
            isinstance(known, DrawnEntry)
            and isinstance(entry, DrawnEntry)
            and known.kind == entry.kind
        ):
            joined[name] = cast("_Entry", known.join(entry))
        else:
            joined[name] = entry
    return joined


def pick_drawn(ledger: Mapping[str, LedgerEntry]) -> dict[str, DrawnEntry]:
    """Return the entries of sources whose order is known only as it is drawn."""
    return {name: entry for name, entry in ledger.items() if isinstance(entry, DrawnEntry)}


def parse_ledger(value: object) -> dict[str, LedgerEntry]:
    """Return a stored ledger; FormatError if it is malformed."""
    if not isinstance(value, Mapping) or len(value) > _MAX_ENTRIES:
        raise FormatError("a ledger is not a set of entries by name")
    ledger = dict[str, LedgerEntry]()
    for name, entry in value.items():
        if not isinstance(entry, Mapping):
            raise FormatError("a ledger entry is not a mapping")
        try:
            parse = _parse_plan if entry.get("kind") == "plan" else _parse_drawn
            ledger[check_name(name)] = parse(entry)
        except ValueError:  # an array where a number or a text belongs
            raise FormatError("a ledger entry has an array where none belongs") from None
    return ledger

"""data who: which commits saw a sample or a shard, and which skipped it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mvc.errors import NotFoundError, UsageError
from mvc.operations.data_ledgers import Ledgers
from mvc.operations.ledger_maps import LedgerMaps
from mvc.sampling.ledger import DrawnEntry, LedgerEntry, PlanEntry, RunLedger
from mvc.sampling.stretch import find_stretches
from mvc.workspace.ranges import walk_ranges

if TYPE_CHECKING:
    from mvc.ids import GitId
    from mvc.workspace.context import Context

    Wanted = dict[tuple[str | None, str], range | str]


@dataclass(frozen=True, slots=True)
class SawSample:
    """A commit whose state saw a sample, or skipped it, since the commit before.

    Attributes:
        seen: how often; None: it does not list what it saw.
        total: how often in all until then, as far as that is known.
        skipped: reason → how often.
    """

    commit: GitId
    loader: str
    seen: int | None
    total: int
    skipped: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WhoSaw:
    """Who saw a sample: ``wanted`` of ``source``.

    Attributes:
        saw: the commits that saw or skipped it since the one before, newest first.
        affected: all commits whose state has seen it, newest first.
    """

    source: str
    wanted: range | str
    saw: tuple[SawSample, ...]
    affected: tuple[GitId, ...]


def find_who(
    context: Context,
    sample: str | None = None,
    *,
    shard: str | None = None,
    revision: str = "HEAD",
    everything: bool = False,
) -> WhoSaw:
    """Return which commits saw a sample, or any sample of a shard.

    Args:
        sample: ``source:index``, an index or a key.
        shard: in place of a sample, the path of a shard in its map.
        revision: look at it and its first parents.
        everything: look at all branches.

    Raises:
        NotFoundError: no such revision, source or shard, or no commit says what it saw.
        UsageError: no sample, or one that may be of several sources.
    """
    ledgers = Ledgers(context)
    maps = LedgerMaps(context, ledgers)
    asked: _Sample | _Shard | None = None
    looks: list[tuple[GitId, GitId | None, list[SawSample]]] = []
    for info in walk_ranges(
        context,
        () if everything else (revision,),
        everything=everything,
        first_parent=not everything,
    ):
        after = ledgers.read(info.id)
        if after is None:
            continue
        if asked is None:
            asked = _Sample(sample or "") if shard is None else _Shard(maps, shard)
        base, before = ledgers.before(info.id)
        after = maps.complete(info.id, after)
        wanted = asked.find(info.id, after.total)
        looks.append((info.id, base, list(_look(info.id, before, after, wanted))))
    if asked is None:
        raise NotFoundError("no commit says which samples it saw")
    source, wanted_there = asked.answer(looks[0][0])
    totals: dict[GitId, int] = {}
    saw: list[SawSample] = []
    for commit, base, its in reversed(looks):
        totals[commit] = totals.get(base, 0) if base is not None else 0
        for sample_saw in its:
            totals[commit] += sample_saw.seen or 0
            saw.append(replace(sample_saw, total=totals[commit]))
    affected = tuple(commit for commit, _, _ in looks if totals[commit])
    return WhoSaw(source, wanted_there, tuple(reversed(saw)), affected)


def _look(
    commit: GitId, before: RunLedger, after: RunLedger, wanted: Wanted
) -> Iterator[SawSample]:
    for name, entry in after.total.items():
        asked = [
            (source, ids)
            for (loader, source), ids in wanted.items()
            if loader in (None, name) and source in _sources(name, entry)
        ]
        stretches = find_stretches(name, before, after) if asked else []
        counts = [stretch.count(source, ids) for stretch in stretches for source, ids in asked]
        known = [count for count in counts if count is not None]
        seen, skipped = sum(count for count, _ in known), Counter[str]()
        for _, its in known:
            skipped.update(its)
        if len(known) < len(counts):
            yield SawSample(commit, name, None, 0, {})
        elif seen or any(skipped.values()):
            yield SawSample(commit, name, seen, 0, {why: n for why, n in skipped.items() if n})


def _sources(name: str, entry: LedgerEntry) -> list[str]:
    return (
        [source.name for source in entry.plan.sources] if isinstance(entry, PlanEntry) else [name]
    )


@dataclass(frozen=True, slots=True)
class _Named:
    """What a name may stand for: a source, of one loader or (None) of whichever has it."""

    loader: str | None
    source: str
    kind: str


def _list_names(ledger: Mapping[str, LedgerEntry]) -> dict[str, _Named]:
    """Return the names of sources: their own, or by loader where several loaders have one of that name."""
    every = [
        (name, source, entry.kind if isinstance(entry, DrawnEntry) else "index")
        for name, entry in ledger.items()
        for source in _sources(name, entry)
    ]
    times = Counter(source for _, source, _ in every)
    named = dict[str, _Named]()
    for loader, source, kind in every:
        if times[source] == 1:
            named[source] = _Named(None, source, kind)
        else:
            is_only = _sources(loader, ledger[loader]) == [source]
            named[loader if is_only else f"{loader}.{source}"] = _Named(loader, source, kind)
    return named


def _add_loaders(
    ledger: Mapping[str, LedgerEntry], named: Mapping[str, _Named]
) -> dict[str, _Named]:
    """Return the names with those of loaders of one source, which may stand for it."""
    found = dict(named)
    for loader, entry in ledger.items():
        sources = _sources(loader, entry)
        if isinstance(entry, PlanEntry) and len(sources) == 1:
            found.setdefault(loader, _Named(loader, sources[0], "index"))
    return found


def _find_sample(ledger: Mapping[str, LedgerEntry], text: str) -> tuple[str, _Named, range | str]:
    """Return name, source and index of ``source:index`` or ``index``, or source and key."""
    named = _list_names(ledger)
    known = _add_loaders(ledger, named)
    name, _, rest = text.rpartition(":")
    begun = next((name for name in known if text.startswith(f"{name}:")), None)
    if begun is not None:
        name, rest = begun, text[len(begun) + 1 :]
    elif rest.isdecimal() and name:
        raise NotFoundError(
            f"there is no source {name!r}", hint=f"sources are {', '.join(sorted(named))}"
        )
    else:
        is_index = text.isdecimal()
        fits = [name for name, what in named.items() if (what.kind == "index") == is_index] or [
            *named
        ]
        if len(fits) > 1:
            raise UsageError(
                f"{text!r} may be of several sources: {', '.join(sorted(fits))}",
                hint=f"mvc data who {min(fits)}:{text}",
            )
        name, rest = fits[0], text
    if known[name].kind == "key":
        return name, known[name], rest
    if not rest.isdecimal() or int(rest) >= 1 << 62:
        raise UsageError(f"{rest!r} is not the index of a sample of {name!r}")
    return name, known[name], range(int(rest), int(rest) + 1)


class _Sample:
    """A sample that is asked for: what the newest commit that has its source says it is."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: tuple[str, _Named, range | str] | None = None
        self._error = NotFoundError("no commit says which samples it saw")

    def find(self, _: GitId, ledger: Mapping[str, LedgerEntry]) -> Wanted:
        """Return what is asked for in a commit; nothing if no commit so far has the source."""
        if self._found is None and ledger:
            try:
                self._found = _find_sample(ledger, self._text)
            except NotFoundError as error:
                self._error = error if self._error.hint is None else self._error
        if self._found is None:
            return {}
        named = self._found[1]
        return {(named.loader, named.source): self._found[2]}

    def answer(self, _: GitId) -> tuple[str, range | str]:
        """Return what was asked for; NotFoundError if no commit has the source."""
        if self._found is None:
            raise self._error
        return self._found[0], self._found[2]


class _Shard:
    """A shard that is asked for: its samples are where the map of each commit has them."""

    def __init__(self, maps: LedgerMaps, path: str) -> None:
        self._maps, self._path = maps, path
        self._answer: tuple[str, range] | None = None
        self._known, self._doubts = set[str](), dict[str, None]()
        self._latest: tuple[object, Wanted] = ((), {})

    def find(self, commit: GitId, ledger: Mapping[str, LedgerEntry]) -> Wanted:
        """Return the samples of the shard in a commit."""
        plans = [(n, e.plan.id if isinstance(e, PlanEntry) else e.kind) for n, e in ledger.items()]
        key = self._maps.read(commit), plans
        if self._latest[0] != key:
            self._latest = key, self._find(commit, ledger)
        return self._latest[1]

    def _find(self, commit: GitId, ledger: Mapping[str, LedgerEntry]) -> Wanted:
        found: Wanted = {}
        for (loader, source), shards in self._maps.find(commit, ledger).items():
            if isinstance(shards, str):
                self._doubts[shards] = None
                continue
            self._known.add(source)
            inside = shards.find(self._path)
            if inside is not None:
                found[loader, source] = inside
                self._answer = self._answer or (source, inside)
        return found

    def answer(self, newest: GitId) -> tuple[str, range]:
        """Return source and samples of the shard where it was found last; NotFoundError if nowhere."""
        if self._answer is not None:
            return self._answer
        hint = "the commit has no map of the data; pass Checkpointer(shards=...)"
        if self._known:
            names = ", ".join(sorted(self._known))
            hint = f"the sources with maps are {names}; mvc data ls names their shards"
        elif self._doubts:
            hint = next(iter(self._doubts))
        raise NotFoundError(
            f"there is no shard {self._path!r} in the maps of what commit {newest[:10]} saw",
            hint=hint,
        )

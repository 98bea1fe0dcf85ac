"""data who: which commits saw a sample or a shard, and which skipped it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import NotFoundError, UsageError
from mvc.operations.data_ledgers import Ledgers
from mvc.operations.data_seen import find_map, find_records, read_maps
from mvc.sampling.ledger import DrawnEntry, LedgerEntry, PlanEntry, RunLedger
from mvc.sampling.stretch import find_stretches
from mvc.workspace.ranges import walk_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mvc.ids import GitId
    from mvc.workspace.context import Context


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
    sample: str | None,
    *,
    shard: str | None = None,
    revision: str = "HEAD",
    everything: bool = False,
) -> WhoSaw:
    """Return which commits saw a sample, or any of a shard; of all branches, or of one line."""
    ledgers = Ledgers(context)
    commits = [
        info.id
        for info in walk_ranges(
            context,
            () if everything else (revision,),
            everything=everything,
            first_parent=not everything,
        )
        if ledgers.read(info.id) is not None
    ]
    if not commits:
        raise NotFoundError("no commit says which samples it saw")
    newest = (ledgers.read(commits[0]) or RunLedger()).total
    wanted: range | str
    if shard is not None:
        source, wanted = _find_shard(context, commits[0], newest, shard)
    else:
        source, wanted = _find_sample(newest, sample or "")
    totals: dict[GitId, int] = {}
    saw: list[SawSample] = []
    for commit in reversed(commits):
        base, before = ledgers.before(commit)
        totals[commit] = totals.get(base, 0) if base is not None else 0
        for one in _look(commit, before, ledgers.read(commit) or RunLedger(), source, wanted):
            totals[commit] += one.seen or 0
            saw.append(SawSample(commit, one.loader, one.seen, totals[commit], one.skipped))
    affected = tuple(commit for commit in commits if totals[commit])
    return WhoSaw(source, wanted, tuple(reversed(saw)), affected)


def _look(
    commit: GitId, before: RunLedger, after: RunLedger, source: str, wanted: range | str
) -> Iterator[SawSample]:
    for name, entry in after.total.items():
        if source not in _sources(name, entry):
            continue
        stretches = find_stretches(name, before, after)
        counts = [one.count(source, wanted) for one in stretches]
        found = [one for one in counts if one is not None]
        seen, skipped = sum(one[0] for one in found), Counter[str]()
        for _, its in found:
            skipped.update(its)
        if len(found) < len(counts):
            yield SawSample(commit, name, None, 0, {})
        elif seen or any(skipped.values()):
            yield SawSample(commit, name, seen, 0, {why: n for why, n in skipped.items() if n})


def _sources(name: str, entry: LedgerEntry) -> list[str]:
    return [one.name for one in entry.plan.sources] if isinstance(entry, PlanEntry) else [name]


def _find_sample(ledger: Mapping[str, LedgerEntry], text: str) -> tuple[str, range | str]:
    """Return source and index of ``source:index`` or ``index``, or source and key."""
    kinds = {
        source: entry.kind if isinstance(entry, DrawnEntry) else "index"
        for name, entry in ledger.items()
        for source in _sources(name, entry)
    }
    source, _, rest = text.rpartition(":")
    named = next((one for one in kinds if text.startswith(f"{one}:")), None)
    if named is not None:
        source, rest = named, text[len(named) + 1 :]
    elif rest.isdecimal() and source:
        raise NotFoundError(
            f"there is no source {source!r}", hint=f"sources are {', '.join(sorted(kinds))}"
        )
    else:
        is_index = text.isdecimal()
        fits = [one for one, kind in kinds.items() if (kind == "index") == is_index] or [*kinds]
        if len(fits) > 1:
            raise UsageError(
                f"{text!r} may be of several sources: {', '.join(sorted(fits))}",
                hint=f"mvc data who {min(fits)}:{text}",
            )
        source, rest = fits[0], text
    if kinds[source] == "key":
        return source, rest
    if not rest.isdecimal() or int(rest) >= 1 << 62:
        raise UsageError(f"{rest!r} is not the index of a sample of {source!r}")
    return source, range(int(rest), int(rest) + 1)


def _find_shard(
    context: Context, commit: GitId, ledger: Mapping[str, LedgerEntry], path: str
) -> tuple[str, range]:
    maps = read_maps(context, commit)
    known: list[str] = []
    for name, entry in ledger.items():
        for source in _sources(name, entry):
            shard_map = find_map(entry, source, maps)
            starts = None if shard_map is None else find_records(shard_map)
            if shard_map is None or starts is None:
                continue
            known.append(source)
            paths = [one.path for one in shard_map.shards]
            if path in paths:
                at = paths.index(path)
                return source, range(int(starts[at]), int(starts[at + 1]))
    raise NotFoundError(
        f"there is no shard {path!r} in the maps of what commit {commit[:10]} saw",
        hint=_hint(known),
    )


def _hint(known: Sequence[str]) -> str:
    if known:
        return f"the sources with maps are {', '.join(known)}; mvc data ls names their shards"
    return "the commit has no map with numbers of records for its sources; mvc data add makes one"

"""Why ranks differ: storage, transport or compute, from what every rank testifies. Pure.

In this order:

* *storage*: the newest commit's chunks of the tensor do not hash to their ids.
* *transport*: a sum of known numbers over the ranks came out wrong; or the ranks had the same parameters before the
  step, and not the same gradients after the collective.
* *compute*: parameters, state and gradients were the same, and the step made something else of them. Done again
  in place, it gives the bits that a healthy rank has, and not those that the faulty one has. Or a value
  changed between two steps, while storage and transport are sound: the memory of a rank.

A step that no rank can do again to the same bits proves nothing about a rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from mvc_hooks.ranks.group import spell_ranks
from mvc_lab.consistency.digest import find_majority

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mvc_lab.consistency.kept import Key, StoredTensor
    from mvc_lab.consistency.reports import Cause


@dataclass(frozen=True, slots=True)
class Testimony:
    """What one rank says of itself, as digests."""

    live: Mapping[str, bytes]  # name → digest of the whole tensor as it is now
    changed: frozenset[str]  # names of those that changed since they were last the same
    shared: frozenset[str]  # names of those that must be the same on all ranks
    before: dict[Key, bytes]  # before, grads, after: of the pieces of the share that was checked
    grads: dict[Key, bytes]
    after: dict[Key, bytes]
    redone: dict[Key, bool]  # whether the step done again comes to what is there


@dataclass(frozen=True, slots=True)
class Suspect:
    """A tensor, and its digest on each rank of a row.

    With ``key`` it is a piece of it as it was before the step, or of its gradient.
    """

    name: str
    digests: Mapping[int, bytes]
    key: Key | None = None
    is_gradient: bool = False

    @property
    def row(self) -> tuple[int, ...]:
        """The ranks that hold it."""
        return tuple(sorted(self.digests))

    @property
    def is_unlike(self) -> bool:
        """Whether its digests differ."""
        return len(set(self.digests.values())) > 1


def find_unlike(
    testimonies: Sequence[Testimony],
    rows: Mapping[str, Iterable[tuple[int, ...]]],
    what: Literal["before", "grads", "after"],
) -> list[Suspect]:
    """Return the pieces whose digests differ in a row; ``rows`` as in a trial."""
    tables: list[Mapping[Key, bytes]] = [getattr(testimony, what) for testimony in testimonies]
    suspects = (
        Suspect(key[0], {rank: tables[rank].get(key, b"") for rank in row}, key, what == "grads")
        for key in dict.fromkeys(key for table in tables for key in table)
        for row in rows.get(key[0], ())
    )
    return [suspect for suspect in suspects if suspect.is_unlike]


@dataclass(frozen=True, slots=True)
class Trial:
    """The evidence on some suspects; ``stored`` and ``is_sound`` are by rank."""

    state: Sequence[Suspect]
    gradients: Sequence[Suspect]
    testimonies: Sequence[Testimony]
    stored: Sequence[Mapping[str, StoredTensor]] = ()
    is_sound: Sequence[bool] = ()
    rows: Mapping[str, Iterable[tuple[int, ...]]] = field(default_factory=dict)
    """Name → the rows of ranks that hold the same part."""

    def judge(self) -> tuple[Cause, str]:
        """Return the cause, and what speaks for it."""
        for table in self.stored:
            for name, tensor in table.items():
                if tensor.damage is not None:
                    return "storage", f"{name} is damaged in the newest commit: {tensor.damage}"
        unsound = [rank for rank, is_sound in enumerate(self.is_sound) if not is_sound]
        if unsound:
            return "transport", f"a sum of known numbers came out wrong on {spell_ranks(unsound)}"
        moved = self._list_moved()
        if self.gradients and not moved:
            return "transport", (
                "parameters and state were the same before the step, and gradients differ after the collective"
            )
        if moved:
            faulty = sorted(self.find_faulty())
            where = f"the memory of {spell_ranks(faulty)}" if faulty else "the memory of a rank"
            sound = "storage and transport are sound" if any(self.stored) else "transport is sound"
            return "compute", f"{moved[0]} changed between two steps, while {sound}: {where}"
        wrong, healthy = self._split_redone()
        same = "parameters, state and gradients were the same before the step"
        if not wrong or not healthy:
            return "compute", f"{same}; the step done again is inconclusive"
        ranks = spell_ranks(sorted(wrong))
        return "compute", f"{same}, and done again it gives other bits on {ranks}"

    def _list_moved(self) -> list[str]:
        """Return the names of suspects that differed before the step, or were not part of it."""
        seen = {name for testimony in self.testimonies for name, _ in testimony.before}
        early = {suspect.name for suspect in find_unlike(self.testimonies, self.rows, "before")}
        return [
            suspect.name
            for suspect in self.state
            if suspect.name in early or suspect.name not in seen
        ]

    @property
    def has_moved(self) -> bool:
        """Whether something may have differed before the step that was checked."""
        return bool(self._list_moved())

    def list_names(self) -> tuple[str, ...]:
        """Return the names of all that differs."""
        gradients = (f"gradient of {suspect.name}" for suspect in self.gradients)
        return tuple(dict.fromkeys([*(suspect.name for suspect in self.state), *gradients]))

    def list_origins(self) -> list[Suspect]:
        """Return what differs; first what the other differences may have come from."""
        if not self.has_moved:
            return [*self.gradients, *self.state]
        early = find_unlike(self.testimonies, self.rows, "before")
        early.sort(key=lambda suspect: suspect.key or ())
        names = {suspect.name for suspect in early}
        moved = self._list_moved()
        rest = [suspect for suspect in self.state if suspect.name not in names]
        return [
            *early,
            *sorted(rest, key=lambda suspect: suspect.name not in moved),
            *self.gradients,
        ]

    def _split_redone(self) -> tuple[set[int], set[int]]:
        """Return the ranks that do not come to their own bits, and those that do."""
        after, before = (
            {suspect.key for suspect in find_unlike(self.testimonies, self.rows, what)}
            for what in ("after", "before")
        )
        faulty, healthy = set[int](), set[int]()
        for rank, testimony in enumerate(self.testimonies):
            answers = [same for key, same in testimony.redone.items() if key in after - before]
            if answers:
                (healthy if all(answers) else faulty).add(rank)
        return faulty, healthy

    def find_faulty(self) -> set[int]:
        """Return the ranks that are known to be wrong in some suspect."""
        return {
            rank
            for suspect in (*self.state, *self.gradients)
            for right in [self.find_right(suspect)]
            if right
            for rank in suspect.row
            if suspect.digests[rank] != suspect.digests[right[0]]
        }

    def find_right(self, suspect: Suspect) -> tuple[int, ...]:
        """Return the ranks that have the right bits; none if that is not known.

        The step done again knows best, then what was stored of a tensor that has not changed since, then
        the majority.
        """
        return next(filter(None, self._list_right(suspect)), ())

    def _list_right(self, suspect: Suspect) -> Iterator[tuple[int, ...]]:
        if suspect.key is None and suspect.name not in self._list_moved():
            faulty, healthy = self._split_redone()
            right = tuple(rank for rank in suspect.row if rank in healthy)
            is_known = bool(faulty & set(suspect.row))
            if is_known and len({suspect.digests[rank] for rank in right}) == 1:
                yield right
        if suspect.key is None:
            for table in self.stored:
                known = table.get(suspect.name)
                digest = None if known is None else known.digest
                yield tuple(rank for rank in suspect.row if suspect.digests[rank] == digest)
        yield find_majority(suspect.digests)

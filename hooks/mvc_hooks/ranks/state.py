"""The state of a run as one of its ranks commits it and gets it back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mvc import ConflictError
from mvc_hooks.parts.sources import StateSource
from mvc_hooks.ranks.buckets import IN_ANY_ORDER, Buckets
from mvc_hooks.ranks.own import OwnParts, RankView
from mvc_hooks.ranks.pieces import RANKS
from mvc_hooks.ranks.placed import expect_placed
from mvc_hooks.ranks.replicas import check_replicas, find_difference
from mvc_hooks.ranks.stored import RankSource
from mvc_hooks.ranks.topology import (
    Loss,
    count_ranks,
    explain,
    find_losses,
    find_shared,
    has_folder,
    read_records,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from mvc_hooks.parts.part import Part
    from mvc_hooks.parts.tree import Steps
    from mvc_hooks.ranks.group import Ranks


_IN_ANY_ORDER = (
    2  # numbers have the same sum in any order; with another number of ranks it is another sum
)


def _have_none(_: int) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Opened:
    """A stored state as one rank has it.

    Attributes:
        ranks: how many made it.
        read_records: returns the records of another one of them, where they are in a state.
        unknown: names of the parts that are not stored for this rank.
        doubts: in words, why the run may not go on as it did.
    """

    source: StateSource
    ranks: int
    read_records: Callable[[int], dict[str, Any]] = _have_none
    unknown: Collection[str] = ()
    doubts: Sequence[str] = ()


class RankState:
    """Tells apart what this rank and what all ranks have, on the way out and back."""

    def __init__(
        self,
        ranks: Ranks,
        parts: Mapping[str, Part],
        extras: Collection[str] = (),
        records: Collection[Steps] = (),
    ) -> None:
        """Take the parts of a run; the top-level ``extras`` besides them are committed by rank 0.

        At the paths ``records`` in them each rank has its own, which other ranks can take over.
        """
        self._ranks, self._parts = ranks, parts
        self._own = OwnParts(parts, extras, records)
        self._buckets = Buckets(parts)
        self._is_checked = False

    def plan_buckets(self) -> dict[str, object]:
        """Return how each DistributedDataParallel groups gradients, for the record of the environment."""
        return {} if self._ranks.size == 1 else self._buckets.plan()

    def check(self, capture: Callable[[], Mapping[str, Any]]) -> None:
        """Check that the ranks hold one model; every rank must call it."""
        if not self._ranks.is_alone:
            check_replicas(self._ranks, self._parts, capture())
            self._is_checked = True

    def view(self, state: dict[str, Any]) -> RankView:
        """Return a captured state as this rank commits it; every rank must call it."""
        ranks = self._ranks
        if ranks.size == 1:
            return RankView(state)
        if not self._is_checked:
            self.check(lambda: state)
        buckets = self._buckets.describe()
        return self._own.view(state, ranks.rank, ranks.size, buckets)

    def find_difference(self, state: dict[str, Any]) -> str | None:
        """Return in words how the state of another rank differs in form; every rank must call it."""
        if self._ranks.is_alone:
            return None
        return find_difference(
            self._ranks, self._own.view(state, self._ranks.rank, self._ranks.size)
        )

    def open(
        self, source: StateSource, allow: Sequence[str], capture: Callable[[], Mapping[str, Any]]
    ) -> Opened:
        """Return the state as this rank has it; every rank must call it.

        ``capture`` returns the live state.
        """
        if source.is_own:
            return Opened(source, self._ranks.size)
        rank, size = self._ranks.rank, self._ranks.size
        outline = self._ranks.together(source.outline)
        stored = count_ranks(outline)
        unknown: Collection[str] = ()
        if stored != size:
            losses = self._ranks.ask_first(
                lambda: find_losses(
                    source, self._own.parts, self._own.find(capture()), size, self._own.records
                )
            )
            self._check(losses, stored, allow)
            missing = {str(one.path[0]) for one in losses if rank in one.ranks and one.is_missing}
            # A DTensor that only some ranks filled would be wrong: a part with one comes as rank 0's.
            shared = self._ranks.ask_first(lambda: find_shared(source, capture()))
            unknown = missing & self._own.names - shared
        told = outline.get(RANKS)
        facts = told if isinstance(told, dict) else {}
        expect_placed(facts.get("placed"), self._own.optimizers)
        if told is None:
            return Opened(source, 1, unknown=unknown)
        doubts = self._buckets.restore(facts.get("buckets", [])) if size > 1 else ()
        is_exact = stored == size > IN_ANY_ORDER  # of other ranks it is another sum
        is_known = type(stored) is int and rank < stored
        folder = f"{RANKS}/{rank}"
        own = source.folder(folder) if is_known and has_folder(outline, rank) else None
        mine = RankSource(source, own, rank)
        return Opened(
            StateSource(mine.outline, mine.load, mine.check),
            stored if type(stored) is int else 1,
            partial(read_records, source, self._own.records),
            unknown,
            doubts if is_exact else (),
        )

    def _check(self, losses: Sequence[Loss], stored: object, allow: Sequence[str]) -> None:
        if losses and RANKS not in allow:
            raise ConflictError(
                f"the run has {_count(self._ranks.size)}, but the commit was made by {_count(stored)}: "
                f"{explain(losses, self._own.parts)}",
                hint=f'start as many ranks, or pass allow=["{RANKS}"]: a rank takes what the commit has '
                "of it, and one that it does not have keeps what it has now",
            )


def _count(size: object) -> str:
    return f"{size} rank" if size == 1 else f"{size} ranks"

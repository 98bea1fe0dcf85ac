"""The state of a run as one of its ranks commits it and gets it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mvc import ConflictError
from mvc_hooks.parts.sources import StateSource
from mvc_hooks.ranks.own import OwnParts, RankView
from mvc_hooks.ranks.pieces import RANKS
from mvc_hooks.ranks.placed import expect_placed
from mvc_hooks.ranks.replicas import check_replicas, find_difference
from mvc_hooks.ranks.stored import RankSource
from mvc_hooks.ranks.topology import Loss, count_ranks, explain, find_losses, has_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from mvc_hooks.parts.part import Part
    from mvc_hooks.ranks.group import Ranks


class RankState:
    """Tells apart what this rank and what all ranks have, on the way out and back."""

    def __init__(
        self, ranks: Ranks, parts: Mapping[str, Part], extras: Collection[str] = ()
    ) -> None:
        """Take the parts of a run; the top-level ``extras`` besides them are committed by rank 0."""
        self._ranks, self._parts = ranks, parts
        self._own = OwnParts(parts, extras)
        self._is_checked = False

    def check(self, capture: Callable[[], Mapping[str, Any]]) -> None:
        """Check that the ranks hold one model; every rank must call it."""
        if not self._ranks.is_alone:
            check_replicas(self._ranks, self._parts, capture())
            self._is_checked = True

    def view(self, state: dict[str, Any]) -> RankView:
        """Return a captured state as this rank commits it; the first time every rank must call it."""
        ranks = self._ranks
        if ranks.size == 1:
            return RankView(state)
        if not self._is_checked:
            self.check(lambda: state)
        return self._own.view(state, ranks.rank, ranks.size)

    def find_difference(self, state: dict[str, Any]) -> str | None:
        """Return in words how the state of another rank differs in form; every rank must call it."""
        if self._ranks.is_alone:
            return None
        return find_difference(
            self._ranks, self._own.view(state, self._ranks.rank, self._ranks.size)
        )

    def open(
        self, source: StateSource, allow: Sequence[str], capture: Callable[[], Mapping[str, Any]]
    ) -> tuple[StateSource, Collection[str]]:
        """Return the state as this rank has it, and which parts of it are not stored.

        Every rank must call it. ``capture`` returns the live state.
        """
        if source.is_own:
            return source, ()
        rank, size = self._ranks.rank, self._ranks.size
        outline = self._ranks.together(source.outline)
        stored = count_ranks(outline)
        unknown: Collection[str] = ()
        if stored != size:
            losses = self._ranks.ask_first(
                lambda: find_losses(source, self._own.parts, self._own.find(capture()), size)
            )
            self._check(losses, stored, allow)
            missing = {str(one.path[0]) for one in losses if rank in one.ranks and one.is_missing}
            unknown = missing & self._own.names
        told = outline.get(RANKS)
        placed = told.get("placed") if isinstance(told, dict) else None
        expect_placed(placed, self._own.optimizers)
        if told is None:
            return source, unknown
        is_known = type(stored) is int and rank < stored
        folder = f"{RANKS}/{rank}"
        own = source.folder(folder) if is_known and has_folder(outline, rank) else None
        mine = RankSource(source, own, rank)
        return StateSource(mine.outline, mine.load, mine.check), unknown

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

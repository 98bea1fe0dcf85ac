"""The state of one rank, as a commit of all ranks has it: that of rank 0, with pieces of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mvc_hooks.parts.tree import ABSENT, edit_at, find_at, order_like
from mvc_hooks.ranks.pieces import PIECES, RANKS, overlay, parse_pieces, pick, spare

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mvc_hooks.parts.sources import StateSource
    from mvc_hooks.ranks.pieces import Piece


class RankSource:
    """The state of a rank; ``own`` is where its pieces are, None if they are in the one state."""

    def __init__(self, base: StateSource, own: StateSource | None, rank: int) -> None:
        self._base, self._own, self._rank = base, own, rank
        self._stored: dict[str, Any] = {}
        self._pieces: dict[str, Any] = {}

    def outline(self) -> dict[str, Any]:
        """Return its structure."""
        return overlay(*self._outline())

    def load(self, into: Mapping[str, object]) -> dict[str, Any]:
        """Return it; older commits do not fill the live tensors at this rank's own pieces."""
        _, pieces = self._outline()
        # The source would fill what is at pieces with the values of rank 0.
        self._stored = self._base.load(spare(into, pieces))
        if self._own is None:
            self._pieces = {PIECES: self._find_inside(self._stored)}
        else:
            self._pieces = self._own.load(pick(into, pieces))
        return overlay(self._stored, parse_pieces(self._pieces[PIECES]))

    def check(self, state: Mapping[str, object]) -> tuple[str, ...]:
        """Return a line for every difference of a live state of this rank."""
        # Put this rank's values where the commit has them, and rank 0's back in their places.
        whole: Any = {**state, RANKS: self._stored[RANKS]}
        mine: Any = self._pieces
        for number, piece in enumerate(parse_pieces(mine[PIECES])):
            live = find_at(state, piece.path)
            mine = edit_at(mine, (PIECES, number, "value"), piece.under(live))
            base = find_at(self._stored, piece.path)
            whole = edit_at(whole, piece.path, piece.back(base, live))
        if self._own is None:
            if mine[PIECES]:
                whole = edit_at(whole, (RANKS, str(self._rank)), mine[PIECES])
            return self._base.check(order_like(whole, self._stored))
        return (
            *self._base.check(order_like(whole, self._stored)),
            *self._own.check(order_like(mine, self._pieces)),
        )

    def _find_inside(self, state: Mapping[str, Any]) -> Any:
        found = find_at(state, (RANKS, str(self._rank)))
        return [] if found is ABSENT else found

    def _outline(self) -> tuple[dict[str, Any], list[Piece]]:
        outline = self._base.outline()
        if self._own is None:
            return outline, parse_pieces(self._find_inside(outline))
        return outline, parse_pieces(self._own.outline().get(PIECES))

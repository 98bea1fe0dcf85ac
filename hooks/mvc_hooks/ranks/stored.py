"""The state of one rank, as a commit of all ranks has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mvc_hooks.parts.tree import ABSENT, edit_at, find_at, order_like

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mvc_hooks.parts.sources import StateSource

RANKS = "ranks"
"""The top-level name of the pieces of ranks other than 0."""


class RankSource:
    """A state as one rank has it: rank 0's, with the pieces of that rank."""

    def __init__(self, source: StateSource, outline: dict[str, Any], rank: int) -> None:
        self._source, self._rank = source, str(rank)
        self._outline = outline
        self._base: dict[str, Any] = {}

    def outline(self) -> dict[str, Any]:
        """Return its structure."""
        return _overlay(self._outline, self._rank)

    def load(self, into: Mapping[str, object]) -> dict[str, Any]:
        """Return it; live tensors at this rank's own pieces are not filled here."""
        # The source would fill them with the values of rank 0.
        for path, _ in _pieces(self._outline, self._rank):
            if find_at(into, path) is not ABSENT:
                into = edit_at(into, path, None if type(path[-1]) is int else ABSENT)
        self._base = self._source.load(into)
        return _overlay(self._base, self._rank)

    def check(self, state: Mapping[str, object]) -> tuple[str, ...]:
        """Return a line for every difference of a live state of this rank."""
        # Put this rank's values where the commit has them, and rank 0's back in their places.
        whole: Any = {**state, RANKS: self._base[RANKS]}
        for number, (path, _) in enumerate(_pieces(self._base, self._rank)):
            whole = edit_at(whole, (RANKS, self._rank, number, "value"), find_at(state, path))
            whole = edit_at(whole, path, find_at(self._base, path))
        return self._source.check(order_like(whole, self._base))


def _pieces(state: Mapping[str, Any], rank: str) -> list[tuple[tuple[Any, ...], Any]]:
    pieces = find_at(state, (RANKS, rank))
    if not isinstance(pieces, list):
        return []
    return [(tuple(one["at"]), one["value"]) for one in pieces]


def _overlay(state: dict[str, Any], rank: str) -> dict[str, Any]:
    pieces = _pieces(state, rank)
    result: Any = {name: value for name, value in state.items() if name != RANKS}
    for path, value in pieces:
        result = edit_at(result, path, value)
    return dict(result)

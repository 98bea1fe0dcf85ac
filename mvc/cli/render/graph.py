r"""The history as lines of text, as ``git log --graph`` draws it.

Commits come children first. A *lane* is a column that waits for one commit: the first child that
names a commit as its parent opens the lane, and drawing that commit ends it. Each commit takes its
own row, then rows that move the lanes to where the next commit needs them.

    * |        the commit is in its lane
    |\ \      a merge opens a slot to the right per further parent; lanes right of it move
    | |/       lanes that wait for the same commit join, and gaps close: in every row, each
    |/|        moving lane goes one slot left, and may pass behind lanes that stay

A lane in slot ``s`` is ``|`` in text column ``2s`` if it stays, and ``/`` in column ``2s - 1`` if
it moves left. Moving lanes start in different slots and are equally fast, so two never meet before
their goal, and no place in a row is needed twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class GraphRows:
    """What to draw left of a commit's text; ``padding`` goes before text that needs more rows."""

    commit: str
    below: tuple[str, ...]
    padding: str

    @property
    def width(self) -> int:
        """Columns of the widest row."""
        return max(map(len, (self.commit, *self.below, self.padding)))


class Graph:
    """The lanes between one commit and the next."""

    def __init__(self) -> None:
        self._lanes: list[str] = []

    def step(self, commit: str, parents: Sequence[str]) -> GraphRows:
        """Draw one commit; its children were drawn before."""
        if commit not in self._lanes:
            self._lanes.append(commit)
        place = self._lanes.index(commit)
        row = " ".join("*" if slot == place else "|" for slot in range(len(self._lanes)))
        below = self._advance(place, list(dict.fromkeys(parents)))
        return GraphRows(row, tuple(below), " ".join("|" for _ in self._lanes))

    def _advance(self, place: int, parents: list[str]) -> list[str]:
        old, left = self._lanes, self._lanes[:place]
        if len(parents) == 2 and parents[0] not in old:  # noqa: PLR2004  a plain merge
            if parents[1] in left:
                return self._merge_from_left(place, parents)
            if old[place + 1 : place + 2] == [parents[1]]:
                self._lanes[place] = parents[0]
                return [_draw({**_stay(range(len(old))), 2 * place + 1: "\\"})]
        # Slot ``place`` keeps the first parent; the further ones come right of it, last one first.
        slots = [*left, *parents[:1], *reversed(parents[1:]), *old[place + 1 :]]
        rows = [self._open_slot(place, len(old) + extra) for extra in range(len(parents) - 1)]
        starts = list(range(len(slots) + (not parents)))
        if not parents:
            del starts[place]  # the lane ends here and leaves a gap
        self._lanes = list(dict.fromkeys(slots))
        goals = [self._lanes.index(lane) for lane in slots]
        return rows + _collapse(list(zip(starts, goals, strict=True)))

    def _merge_from_left(self, place: int, parents: list[str]) -> list[str]:
        """Draw the way to the second parent, whose lane is on the left, from the commit itself."""
        self._lanes[place] = parents[0]
        edges = [(slot, slot) for slot in range(len(self._lanes))]
        return _collapse([*edges, (place, self._lanes.index(parents[1]))])

    @staticmethod
    def _open_slot(place: int, count: int) -> str:
        """Draw a slot opening right of ``place`` among ``count`` lanes."""
        moving = {2 * slot + 1: "\\" for slot in range(place, count)}
        return _draw({**_stay(range(place + 1)), **moving})


def _collapse(edges: list[tuple[int, int]]) -> list[str]:
    """Draw rows until every (slot, goal) has reached its goal."""
    rows: list[str] = []
    while any(slot > goal for slot, goal in edges):
        moving = {2 * slot - 1: "/" for slot, goal in edges if slot > goal}
        rows.append(_draw({**_stay(slot for slot, goal in edges if slot == goal), **moving}))
        edges = [(slot - (slot > goal), goal) for slot, goal in edges]
    return rows


def _stay(slots: Iterable[int]) -> dict[int, str]:
    return {2 * slot: "|" for slot in slots}


def _draw(signs: dict[int, str]) -> str:
    return "".join(signs.get(column, " ") for column in range(max(signs, default=-1) + 1))


def close_gaps(
    commits: Sequence[tuple[str, Sequence[str]]], shown: set[str]
) -> dict[str, tuple[str, ...]]:
    """Return the parents to draw for the shown ones of (commit, parents), children first.

    A hidden parent is replaced by its nearest shown ancestors.
    """
    nearest: dict[str, tuple[str, ...]] = {}
    for commit, parents in reversed(commits):
        seen = dict.fromkeys(
            ancestor
            for parent in parents
            for ancestor in ((parent,) if parent in shown else nearest.get(parent, ()))
        )
        nearest[commit] = tuple(seen)
    return {commit: parents for commit, parents in nearest.items() if commit in shown}

"""What a merge that is under way has left to decide, as the index tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.merging.files import Sides, plan_files

if TYPE_CHECKING:
    from mvc.history.values import Index
    from mvc.merging.files import Conflict
    from mvc.merging.told import Told
    from mvc.workspace.context import Context


def find_conflicts(context: Context, index: Index, told: Told) -> tuple[Conflict, ...]:
    """Return every tensor and file that is not decided; no weight is read for it."""
    sides = undecided_sides(index)
    merges = plan_files(context, sides, told.rules, told.methods(context, 2).resolve)
    return tuple(one for merge in merges for one in merge.conflicts)


def undecided_sides(index: Index) -> Sides:
    """Return the versions of the undecided files."""
    base, ours, theirs = (
        {path: one for path, stages in index.unmerged.items() if (one := stages[number])}
        for number in range(3)
    )
    return Sides(base, [ours, theirs], ("HEAD", "theirs"), tuple(index.entries))

"""What a merge under way has left to decide, according to the index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.merging.files import Sides, plan_files
from mvc.merging.trees import find_base

if TYPE_CHECKING:
    from mvc.history.values import Index
    from mvc.merging.files import Conflict
    from mvc.merging.told import Told
    from mvc.workspace.context import Context


def find_conflicts(context: Context, index: Index, told: Told) -> tuple[Conflict, ...]:
    """Return every tensor and file that is not decided; no weight is read for it."""
    sides = undecided_sides(context, index, told)
    merges = plan_files(context, sides, told.rules, told.methods(context, 2).resolve)
    return tuple(one for merge in merges for one in merge.conflicts)


def undecided_sides(context: Context, index: Index, told: Told) -> Sides:
    """Return the versions of the undecided files; ``told`` is what the merge was told."""
    base, ours, theirs = (
        {path: one for path, stages in index.unmerged.items() if (one := stages[number])}
        for number in range(3)
    )
    return Sides(
        base, [ours, theirs], ("HEAD", "theirs"), tuple(index.entries), told.tokenizer,
        lambda: _read_sides(context) or Sides(base, [ours, theirs]),
    )  # fmt: skip


def _read_sides(context: Context) -> Sides | None:
    """Return the whole trees of a merge under way, or None if it is something else."""
    head, heads = context.history.head().commit, context.history.refs.merge_heads()
    if head is None or not heads:
        return None
    commits = (head, *heads)
    return Sides(
        find_base(context, commits) or {}, [context.history.read_tree(one) for one in commits]
    )

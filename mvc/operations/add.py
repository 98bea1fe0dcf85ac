"""add: the worktree's files into the index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.workspace.additions import AddPlan, AddResult, plan_add, store_planned
from mvc.workspace.context import holds_sweep_lock
from mvc.workspace.recovery import recover

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.progress import ByteProgress
    from mvc.workspace.context import Context

__all__ = ["AddPlan", "AddResult", "add", "plan_add"]


@holds_sweep_lock
def add(
    context: Context,
    patterns: Sequence[str],
    *,
    force: bool = False,
    delta: bool | None = None,
    progress: ByteProgress = None,
) -> AddResult:
    """Store files and stage them; the index changes only once everything is durable."""
    recover(context)
    plan = plan_add(context, patterns, force=force)
    result = store_planned(context, plan, progress, delta=delta)
    result.stage(context)
    return result

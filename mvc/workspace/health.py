"""Health marks: commits after which the training went on well for a while.

A mark is a note below ``refs/notes/healthy``:

    Healthy: 2026-11-20T16:00:00Z
    Note: 200 steps without alarm

Any note there makes its commit healthy, whatever it says. This module is part of ``log`` and loads
nothing heavy.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mvc.errors import NotFoundError
from mvc.history.refnames import HEADS
from mvc.workspace.context import holds_sweep_lock
from mvc.workspace.notebook import NoteKind, one_line, time_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc.history.values import CommitInfo
    from mvc.ids import GitId
    from mvc.workspace.context import Context

HEALTHY_REF = "refs/notes/healthy"
HEALTH_MARKS: NoteKind[None] = NoteKind(HEALTHY_REF, "health mark", lambda _commit, _text: ())


@holds_sweep_lock
def mark_healthy(context: Context, revision: str, *, note: str = "") -> None:
    """Mark a commit as healthy, durably; a mark that is there already stays as it is."""
    commit = context.history.resolve_commit(revision)
    marks = context.notebooks.of(HEALTH_MARKS)
    with context.history.lock():
        if marks.find_note(commit) is not None:
            return
        remark = one_line(note)
        lines = [
            f"Healthy: {time_text(int(time.time()))}",
            *([f"Note: {remark}"] if remark else []),
        ]
        marks.write(
            {commit: ["\n".join(lines)]},
            message=f"commit {commit} is healthy",
            stamp=context.stamp(),
        )


def healthy_commits(context: Context, branch: str | None = None) -> tuple[GitId, ...]:
    """Return the healthy commits of a branch (HEAD's if None) along first parents, newest first."""
    tip = context.history.head().commit
    if branch is not None:
        tip = context.history.find_ref(HEADS + branch)
        if tip is None:
            raise NotFoundError(f"no branch {branch!r}", hint='"mvc branch" lists them')
    marks = context.notebooks.of(HEALTH_MARKS).open()
    if tip is None or marks is None:
        return ()
    line = first_parents(context, context.history.read_commit(tip))
    return tuple(info.id for info in line if marks.find(info.id) is not None)


def first_parents(context: Context, tip: CommitInfo) -> Iterator[CommitInfo]:
    """Yield a commit and its first parents, newest first; reads no further than it is asked."""
    info = tip
    yield info
    while info.parents:
        info = context.history.read_commit(info.parents[0])
        yield info

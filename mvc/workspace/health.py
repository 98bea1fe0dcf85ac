"""Health marks: the commits of a training after which it went on well for a while.

A mark is a Git note below ``refs/notes/healthy``, so that no commit changes its id and
``git log --notes=healthy`` of a stock Git shows it:

    Healthy: 2026-11-20T16:00:00Z
    Note: 200 steps without alarm

That there is a note makes the commit healthy, whatever it says. This module is part of ``log`` and
loads nothing heavy.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mvc.errors import NotFoundError
from mvc.history.refnames import HEADS
from mvc.workspace.context import unswept
from mvc.workspace.note_text import one_line, time_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc.history.values import CommitInfo
    from mvc.ids import GitId
    from mvc.workspace.context import Context

HEALTHY_REF = "refs/notes/healthy"


@unswept
def mark_healthy(context: Context, revision: str, *, note: str = "") -> None:
    """Mark a commit as healthy, durably; one that is marked stays as it is.

    Args:
        context: the repository.
        revision: which commit.
        note: a remark for people, on one line.

    Raises:
        NotFoundError: no such revision.
        FormatError: the notes that are there are damaged.
    """
    commit = context.resolve_commit(revision)
    with context.history.lock():
        marks = context.history.find_notes(HEALTHY_REF)
        if marks is not None and marks.find(commit) is not None:
            return
        remark = one_line(note)
        lines = [
            f"Healthy: {time_text(int(time.time()))}",
            *([f"Note: {remark}"] if remark else []),
        ]
        text = "\n".join(lines) + "\n"
        context.history.write_notes(
            HEALTHY_REF,
            {commit: text.encode()},
            message=f"commit {commit} is healthy",
            stamp=context.stamp(),
        )


def healthy_commits(context: Context, branch: str | None = None) -> tuple[GitId, ...]:
    """Return the healthy commits of a branch along first parents, newest first.

    Args:
        context: the repository.
        branch: which branch; where HEAD is if None.

    Raises:
        NotFoundError: no such branch.
        FormatError: the history or its notes are damaged.
    """
    tip = context.history.head().commit
    if branch is not None:
        tip = context.history.find_ref(HEADS + branch)
        if tip is None:
            raise NotFoundError(f"no branch {branch!r}", hint='"mvc branch" lists them')
    marks = context.history.find_notes(HEALTHY_REF)
    if tip is None or marks is None:
        return ()
    line = first_parents(context, context.history.read_commit(tip))
    return tuple(info.id for info in line if marks.find(info.id) is not None)


def first_parents(context: Context, tip: CommitInfo) -> Iterator[CommitInfo]:
    """Yield a commit and its first parents, newest first; no more is read than is asked for."""
    info = tip
    yield info
    while info.parents:
        info = context.history.read_commit(info.parents[0])
        yield info

"""The reading end of a run's feed: which one, and what is new in it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mvc.errors import NotFoundError, translate_os_errors
from mvc.fs import find_stat
from mvc.history.names import HEADS, branch_ref
from mvc.runs.feed import FEED_SUFFIX, MAX_FEED_BYTES, RUNS_DIR_NAME, feed_path
from mvc.runs.reading import FeedTail, RunTotals
from mvc.runs.records import RunView, find_branch

if TYPE_CHECKING:
    from mvc.workspace.context import Context

READ_BYTES = MAX_FEED_BYTES + MAX_FEED_BYTES // 4
"""How much of a feed is read at once, from its end."""

_HINTED = 5


def read_run(
    context: Context, branch: str | None = None, *, losses: int = 2000, events: int = 20
) -> RunView:
    """Return how a run is going; only the end of its feed is read, so this is quick.

    Args:
        branch: which run; defaults to that of the current branch, or else the latest.
        losses: at most this many of the last losses.
        events: at most this many of the last commits, alarms, rollbacks and other events.

    Raises:
        NotFoundError: there is no such run.
        UsageError: not a valid branch name.
        StorageError: the machine failed.
    """
    return follow_run(context, branch, losses=losses, events=events).read()


def follow_run(
    context: Context, branch: str | None = None, *, losses: int = 2000, events: int = 20
) -> RunFollower:
    """Return a reader for ``read_run`` that reads only what is new each time it is asked.

    Raises:
        NotFoundError: there is no such run.
        UsageError: not a valid branch name.
        StorageError: the machine failed.
    """
    if branch is not None:
        branch_ref(branch)
    runs = _find_runs(context)
    if not runs:
        raise NotFoundError(
            "there is no training run here",
            hint="a run with a Checkpointer of mvc_hooks shows up here",
        )
    latest = sorted(runs, key=runs.__getitem__, reverse=True)
    if branch is not None and branch not in runs:
        raise NotFoundError(
            f"there is no training run on branch {branch!r}",
            hint=f"there are runs on {', '.join(latest[:_HINTED])}",
        )
    current = branch or context.history.head().branch
    chosen = current if current in runs else latest[0]
    return RunFollower(context, chosen, losses=losses, events=events)


def _find_runs(context: Context) -> dict[str, int]:
    """Return branch → time of the last change, in nanoseconds, of all feeds."""
    folder = context.git_dir / RUNS_DIR_NAME
    with translate_os_errors(f"list {folder}"):
        try:
            names = [name for name in os.listdir(folder) if name.endswith(FEED_SUFFIX)]
        except (FileNotFoundError, NotADirectoryError):
            return {}
    branches = [find_branch(name.removesuffix(FEED_SUFFIX)) for name in names]
    if None in branches:  # only a hash is left of a long name: try those of all branches
        branches += [full.removeprefix(HEADS) for full in context.history.list_refs(HEADS)]
    found = {branch: find_stat(feed_path(context.git_dir, branch)) for branch in branches if branch}
    return {branch: file.mtime_ns for branch, file in found.items() if file and file.is_regular}


class RunFollower:
    """Reads the run of a branch again and again; each time only what is new in its feed."""

    def __init__(self, context: Context, branch: str, *, losses: int, events: int) -> None:
        self.branch = branch
        self._tail = FeedTail(feed_path(context.git_dir, branch), limit_bytes=READ_BYTES)
        self._totals = RunTotals(losses=losses, events=events)

    def read(self) -> RunView:
        """Return the run as it is now."""
        for line in self._tail.read_lines():
            if line:
                self._totals.take(line)
        return self._totals.view(self.branch)

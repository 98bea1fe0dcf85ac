"""Which commits a replay goes through: from one commit to the one K steps later, on one branch.

Each commit of a branch, first parent by first parent, holds a state that came out of the one before,
with one exception: after a rollback the run continued from an earlier state, with other data or
another learning rate. A replay cannot train across that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from mvc import NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc import Repo

_ROLLED_BACK = "rolled_back_to"
_NAMED = 5


@dataclass(frozen=True, slots=True)
class ReplayPoint:
    """A commit with the step whose state it holds."""

    step: int
    commit: str


@dataclass(frozen=True, slots=True)
class ReplayStretch:
    """What is replayed: from ``start`` over later ``points``, oldest first, to the last of them.

    ``rollback`` is the step that the run was rolled back to within the requested steps, if it was;
    the stretch ends there.
    """

    branch: str
    start: ReplayPoint
    points: tuple[ReplayPoint, ...]
    rollback: int | None = None


_Line: TypeAlias = "Sequence[tuple[ReplayPoint, bool]]"
"""Commits of a branch, oldest first; with each, whether a rollback came right before it."""


def find_stretch(repo: Repo, revision: str, steps: int) -> ReplayStretch:
    """Return the stretch of that many steps that begins at a commit.

    If no commit follows, as at the tip of a branch, it is the stretch that leads there.
    """
    if steps < 1:
        raise UsageError(f"{steps} steps cannot be replayed", hint="at least one")
    commit = repo.resolve(revision)
    step = repo.show(commit).annotations.step
    if step is None:
        raise NotFoundError(f"commit {commit[:10]} has no training step")
    # The current branch first, abandoned ones last.
    branches = sorted(
        repo.branches.list(),
        key=lambda branch: (
            not branch.is_current,
            branch.name.startswith("diverged/"),
            branch.name,
        ),
    )
    walked = [(branch.name, _walk(repo, branch.commit, commit)) for branch in branches]
    lines = [(name, line) for name, line in walked if line and line[0][0].commit == commit]
    for name, line in lines:
        stretch = _cut(name, line, step + steps)
        if stretch is not None:
            return stretch
    if all(len(line) == 1 for _, line in lines):
        return _find_before(repo, lines[0][0] if lines else "", ReplayPoint(step, commit), steps)
    end = step + steps
    known = {point.step for _, line in lines for point, _ in line[1:]}
    nearest = sorted(
        sorted(known, key=lambda known_step: (abs(known_step - end), known_step))[:_NAMED]
    )
    raise NotFoundError(
        f"no commit of step {end} follows that commit",
        hint=f"steps of the commits after it: {', '.join(map(str, nearest)) or 'none'}",
    )


def _walk(repo: Repo, tip: str, stop: str | None) -> _Line:
    """Return the line from ``stop``, or the first commit, to a tip."""
    line: list[tuple[ReplayPoint, bool]] = []
    for entry in repo.log(tip, first_parent=True):
        step = entry.annotations.step
        if step is not None:
            is_after_rollback = _ROLLED_BACK in (entry.annotations.meta or {})
            line.append((ReplayPoint(step, entry.info.id), is_after_rollback))
        if entry.info.id == stop:
            break
    return line[::-1]


def _cut(branch: str, line: _Line, end: int) -> ReplayStretch | None:
    """Return the stretch from the start of a line to step ``end``, or to a rollback before it."""
    start = line[0][0]
    points: list[ReplayPoint] = []
    for point, is_after_rollback in line[1:]:
        if is_after_rollback:
            before = points[-1].step if points else start.step
            return ReplayStretch(branch, start, tuple(points), before)
        if point.step > end:
            return None
        points.append(point)
        if point.step == end:
            return ReplayStretch(branch, start, tuple(points))
    return None


def _find_before(repo: Repo, branch: str, last: ReplayPoint, steps: int) -> ReplayStretch:
    line = _walk(repo, last.commit, None)
    first = last.step - steps
    at = next((at for at, (point, _) in enumerate(line) if point.step == first), None)
    if at is None:
        near = ", ".join(str(point.step) for point, _ in line[-1 - _NAMED : -1]) or "none"
        raise NotFoundError(
            f"no commit is {steps} steps before or after commit {last.commit[:10]}"
            f" of step {last.step}",
            hint=f"steps of the commits before it: {near}",
        )
    stretch = _cut(branch, line[at:], last.step)
    if stretch is None:
        raise NotFoundError(f"no commit of step {last.step} follows step {first}")
    return stretch

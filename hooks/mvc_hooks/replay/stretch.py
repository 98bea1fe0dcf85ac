"""Which commits a replay goes through: from one commit to the one K steps later, on one branch.

A branch's own line, first parent by first parent, is a line of states that came out of each other.
It has one kind of joint where they did not: a rollback, behind which the run went on from an earlier
state with other data, or with another learning rate. A replay cannot train across it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc import NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc import Repo

_ROLLED_BACK = "rolled_back_to"
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Point:
    """A commit with the step whose state it holds."""

    step: int
    commit: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """What is replayed.

    Attributes:
        branch: the branch whose line it is on.
        start: the commit that is loaded.
        points: later commits to compare with, oldest first; the last is the end.
        rollback: step that the run was rolled back to within the steps that were asked for; the
            stretch ends there. None for none.
    """

    branch: str
    start: Point
    points: tuple[Point, ...]
    rollback: int | None = None


def find_stretch(repo: Repo, revision: str, steps: int) -> Stretch:
    """Return the stretch of so many steps that begins at a commit.

    Where no later commit follows, as at the tip of a branch, it is the stretch that leads there.

    Args:
        repo: the repository.
        revision: the commit.
        steps: K.

    Raises:
        UsageError: less than one step.
        NotFoundError: no such revision, or no commit K steps later.
    """
    if steps < 1:
        raise UsageError(f"{steps} steps cannot be replayed", hint="at least one")
    commit = repo.resolve(revision)
    step = repo.show(commit).annotations.step
    if step is None:
        raise NotFoundError(f"commit {commit[:10]} is of no training step")
    lines = [(name, list(_walk(repo, tip, commit))) for name, tip in _tips(repo)]
    lines = [(name, line) for name, line in lines if line and line[0][0].commit == commit]
    for name, line in lines:
        if len(line) > 1:
            found = _cut(name, line, step + steps)
            if found is not None:
                return found
    if all(len(line) == 1 for _, line in lines):
        return _find_before(repo, lines[0][0] if lines else "", Point(step, commit), steps)
    raise _no_commit(step + steps, lines)


def _tips(repo: Repo) -> list[tuple[str, str]]:
    """Return name and tip of the branches: the current one first, those left behind last."""
    branches = repo.branches()
    branches.sort(key=lambda one: (not one.is_current, one.name.startswith("diverged/"), one.name))
    return [(one.name, one.commit) for one in branches]


def _walk(repo: Repo, tip: str, stop: str | None) -> list[tuple[Point, bool]]:
    """Return the commits of a line from ``stop`` (or the first) to its tip, oldest first.

    With each, whether the run had been rolled back right before it.
    """
    line: list[tuple[Point, bool]] = []
    for entry in repo.log(tip, first_parent=True):
        step = entry.annotations.step
        if step is not None:
            is_behind = _ROLLED_BACK in (entry.annotations.meta or {})
            line.append((Point(step, entry.info.id), is_behind))
        if entry.info.id == stop:
            break
    return line[::-1]


def _cut(branch: str, line: Sequence[tuple[Point, bool]], end: int) -> Stretch | None:
    start = line[0][0]
    points: list[Point] = []
    for point, is_behind in line[1:]:
        if is_behind:
            before = points[-1].step if points else start.step
            return Stretch(branch, start, tuple(points), before)
        if point.step > end:
            return None
        points.append(point)
        if point.step == end:
            return Stretch(branch, start, tuple(points))
    return None


def _find_before(repo: Repo, branch: str, last: Point, steps: int) -> Stretch:
    """Return the stretch that leads to a commit."""
    line = _walk(repo, last.commit, None)
    at = next((at for at, one in enumerate(line) if one[0].step == last.step - steps), None)
    if at is None:
        near = ", ".join(str(one.step) for one, _ in line[-1 - _NAMED : -1]) or "none"
        raise NotFoundError(
            f"no commit is {steps} steps behind commit {last.commit[:10]} of step {last.step}, "
            f"or before it",
            hint=f"the commits before it are of steps: {near}",
        )
    found = _cut(branch, line[at:], last.step)
    if found is None:
        raise NotFoundError(f"no commit of step {last.step} follows step {last.step - steps}")
    return found


def _no_commit(step: int, lines: Sequence[tuple[str, list[tuple[Point, bool]]]]) -> NotFoundError:
    steps = sorted({point.step for _, line in lines for point, _ in line[1:]})
    near = sorted(sorted(steps, key=lambda one: abs(one - step))[:_NAMED])
    return NotFoundError(
        f"there is no commit of step {step} behind that commit",
        hint=f"those behind it are of steps: {', '.join(map(str, near)) or 'none'}",
    )

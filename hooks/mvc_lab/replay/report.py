"""What a replay found, as data and as text.

It makes two separate claims. That a *state* is restored exactly can be proven wherever the commit
can be read. That the *trajectory* is exact can hold only if everything else that the bits depend on,
the environment, is the same.

Each commit of a branch, first parent by first parent, holds a state that came out of the one before,
with one exception: after a rollback the run continued from an earlier state, with other data or
another learning rate. A replay cannot train across that.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from mvc import NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


@dataclass(frozen=True, slots=True)
class ReplayDifference:
    """Where a replay begins to differ from the run.

    Attributes:
        step: the first committed step whose state differs, of ``commit``.
        name: the first tensor or value that differs, dotted; ``rng.torch of rank 1`` if it is not of
            all ranks.
        elements: how many of its ``size`` elements differ; 0 if it is not a tensor.
        largest: largest difference of two elements; None if it is not a number.
        others: how many more tensors and values differ.
    """

    step: int
    after_step: int
    commit: str
    name: str
    elements: int
    size: int
    largest: float | None
    others: int

    def __str__(self) -> str:
        text = f"step {self.step}: {self.name} differs"
        if self.elements:
            text += f" in {self.elements:,} of {self.size:,} elements"
        if self.largest is not None:
            text += f", by {self.largest:.3g} at most"
        if self.others:
            text += f"; {self.others} more differ"
        return text


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay shows.

    Attributes:
        stretch: what was replayed.
        state_differences: what was not restored to the bit from the first commit; usually nothing.
        compared: steps whose states were compared and are the same.
        difference: where the trajectory begins to differ, or None.
        environment_changes: what differs from the first commit: (item, then, now).
        tensors: how many tensors the last comparison looked at.
        seconds: how long it took.
    """

    stretch: ReplayStretch
    state_differences: tuple[str, ...]
    compared: tuple[int, ...]
    difference: ReplayDifference | None
    environment_changes: tuple[tuple[str, object, object], ...]
    tensors: int
    seconds: float = 0.0

    @property
    def is_state_exact(self) -> bool:
        """Whether the first commit's state was restored to the bit."""
        return not self.state_differences

    @property
    def is_trajectory_exact(self) -> bool | None:
        """Whether training gave the same bits again; None if there was nothing to compare."""
        if not self.is_state_exact or (self.difference is None and not self.compared):
            return None
        return self.difference is None

    @property
    def is_exact(self) -> bool:
        """Whether both claims hold for all the steps that could be compared."""
        return self.is_trajectory_exact is True

    def fields(self) -> dict[str, Any]:
        """Return the report as plain data, for ``--json``."""
        return {
            "branch": self.stretch.branch,
            "start": asdict(self.stretch.start),
            "end": asdict(self.stretch.points[-1]) if self.stretch.points else None,
            "rollback": self.stretch.rollback,
            "state_exact": self.is_state_exact,
            "state_differences": list(self.state_differences),
            "trajectory_exact": self.is_trajectory_exact,
            "compared_steps": list(self.compared),
            "first_difference": None if self.difference is None else asdict(self.difference),
            "environment_changes": [
                {"item": item, "then": _plain(then), "now": _plain(now)}
                for item, then, now in self.environment_changes
            ],
            "tensors": self.tensors,
            "seconds": round(self.seconds, 3),
        }

    def lines(self) -> Iterator[str]:
        """Yield the report for people."""
        start = self.stretch.start
        where = f"commit {start.commit[:10]} (step {start.step})"
        if not self.is_state_exact:
            yield f"state       NOT restored exactly from {where}"
            yield from (f"            {line}" for line in self.state_differences[:_NAMED])
            trajectory = "not replayed"
        else:
            yield f"state       restored exactly from {where}"
            if self.difference is not None:
                trajectory = (
                    f"DIFFERS at {self.difference}; exact up to step {self.difference.after_step}"
                )
            elif not self.compared:
                trajectory = "nothing to compare"
            else:
                count, steps = len(self.compared), self.compared[-1] - start.step
                commits = f"{count} commit{'' if count == 1 else 's'}"
                trajectory = (
                    f"exact for {steps} steps, {self.tensors:,} tensors in each of {commits}"
                )
        yield f"trajectory  {trajectory}"
        if self.stretch.rollback is not None:
            yield f"            the run was rolled back to step {self.stretch.rollback}; compared up to there"
        if not self.environment_changes:
            yield "environment the same"
        for item, then, now in self.environment_changes:
            yield f"environment {item} was {then!r}, is {now!r}"


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, (int, float, str)) else str(value)

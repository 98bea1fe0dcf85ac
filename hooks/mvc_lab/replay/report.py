"""What a replay found, as data and as text.

It makes two separate claims. That a *state* is restored exactly can be proven wherever the commit
can be read. That the *trajectory* is exact can hold only if everything else that the bits depend on,
the environment, is the same.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc_lab.replay.stretch import ReplayStretch

_NAMED = 5


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

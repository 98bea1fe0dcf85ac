"""What a check reports and answers, and the error that ends a run whose ranks cannot be made the same."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from mvc import MvcError, UsageError
from mvc_hooks.checks import check_count
from mvc_hooks.divergence.ladder import FORGET_AFTER_STEPS

Cause = Literal["storage", "transport", "compute", "unknown"]
Answer = Literal["report", "resync", "rollback", "stop"]
DEFAULT: tuple[Answer, ...] = ("resync", "rollback", "stop")
_MOST = 3
_HINT = 'answers=("resync", "rollback", "stop"); "report" goes on with a warning'


@dataclass(frozen=True, slots=True)
class Deviation:
    """One tensor that is not the same on ranks that hold the same part of it.

    Attributes:
        tensor: its name in the state of the run; ``gradient of ...`` is what the optimizer was given.
        ranks: the ranks that deviate; all that hold it if it is not known which of them are right.
        right: a rank that has the right bits, or None if that is not known.
        index: the first element that differs, in the whole tensor.
        max_delta: the largest difference of two elements; infinite if one of them is not finite.
        bits: how many bits differ.
        elements: how many elements differ.
    """

    tensor: str
    ranks: tuple[int, ...]
    right: int | None
    index: tuple[int, ...]
    max_delta: float
    bits: int
    elements: int

    def __str__(self) -> str:
        who = f"rank{'s' * (len(self.ranks) > 1)} {', '.join(map(str, self.ranks))}"
        is_odd = self.right is not None or len(self.ranks) == 1
        where = f"differs {'on' if is_odd else 'between'} {who}"
        elements = f"{self.elements:,} element{'s' * (self.elements != 1)}"
        return (
            f"{self.tensor} {where} at {list(self.index)}: {elements}, "
            f"{self.bits:,} bit{'s' * (self.bits != 1)}, max |Δ| {self.max_delta:.3g}"
        )


@dataclass(frozen=True, slots=True)
class ConsistencyReport:
    """A check that found ranks to differ; its text is one line.

    Attributes:
        step: training step that was checked.
        cause: ``storage``, ``transport`` or ``compute``; ``unknown`` if nothing speaks for one of them.
        reason: what speaks for that.
        answer: what was done: ``report``, ``resync``, ``rollback`` or ``stop``.
        deviations: the tensors, the first ones in full; never empty.
        tensors: names of all tensors that differ.
        tolerance: up to which difference a deviation counts as small.
    """

    step: int
    cause: Cause
    reason: str
    answer: Answer
    deviations: tuple[Deviation, ...]
    tensors: tuple[str, ...]
    tolerance: float

    @property
    def tensor(self) -> str:
        """The first tensor that differs."""
        return self.deviations[0].tensor

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that deviate, in any tensor."""
        return tuple(sorted({rank for deviation in self.deviations for rank in deviation.ranks}))

    @property
    def index(self) -> tuple[int, ...]:
        """Where the first tensor differs first."""
        return self.deviations[0].index

    @property
    def bits(self) -> int:
        """How many bits of the first tensor differ."""
        return self.deviations[0].bits

    @property
    def max_delta(self) -> float:
        """The largest difference of two elements."""
        return max(deviation.max_delta for deviation in self.deviations)

    @property
    def is_small(self) -> bool:
        """Whether no element differs by more than the tolerance."""
        return self.max_delta <= self.tolerance

    def __str__(self) -> str:
        shown = "; ".join(map(str, self.deviations[:_MOST]))
        rest = len(self.tensors) - min(len(self.deviations), _MOST)
        more = f"; and {rest} more" if rest > 0 else ""
        size = "within" if self.is_small else "above"
        return f"{shown}{more} ({size} {self.tolerance:g}); {self.cause}: {self.reason}"


class InconsistentError(MvcError):
    """The ranks do not hold the same, and the run was told to stop, or cannot be mended.

    Attributes:
        report: what was found, or None.
    """

    kind: ClassVar[str] = "inconsistent"
    exit_code: ClassVar[int] = 11

    def __init__(
        self, message: str, *, hint: str | None = None, report: ConsistencyReport | None = None
    ) -> None:
        """Say what was found."""
        super().__init__(message, hint=hint)
        self.report = report


class Answers:
    """The wanted answers in order, and how often some were given: they are forgotten as a ladder forgets."""

    def __init__(self, wanted: Sequence[Answer], stop_after: int | None) -> None:
        """Take the answers; after so many of them the next one is to stop."""
        given: object = wanted
        if isinstance(given, str) or not isinstance(given, Sequence) or not given:
            raise UsageError(f"answers is {wanted!r}, not a list of answers", hint=_HINT)
        for answer in given:
            if answer not in get_args(Answer):
                raise UsageError(f"{answer!r} is not an answer", hint=_HINT)
        if stop_after is not None:
            check_count("stop_after", stop_after, 0, hint="stop_after=None never stops by itself")
        self._wanted, self._stop_after = tuple(given), stop_after
        self._given: list[int] = []

    def choose(self, step: int, possible: Collection[Answer]) -> Answer:
        """Return what to do at a step; it is stopped if nothing that is wanted is possible."""
        self._given = [at for at in self._given if step - at < FORGET_AFTER_STEPS]
        self._given.append(step)
        if self._stop_after is not None and len(self._given) > self._stop_after:
            return "stop"
        return next((answer for answer in self._wanted if answer in possible), "stop")

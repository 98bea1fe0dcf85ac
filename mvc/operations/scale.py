"""scale: the sizes that a run is to grow through, and whether it may take the next one."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, FormatError, NotFoundError, UsageError
from mvc.scaling.limits import judge_scale, make_limits, parse_measured
from mvc.scaling.results import RESULTS, ScaleResult, encode_result, plan_steps
from mvc.workspace.context import Context, holds_sweep_lock

if TYPE_CHECKING:
    from mvc.ids import GitId

_PLAN = "scale.plan"
_ENDS = re.compile(r"([1-9][0-9]{0,8}) ([1-9][0-9]{0,8})", re.ASCII)
_NO_PLAN = '"mvc scale plan --from A --to B" makes one'


@dataclass(frozen=True, slots=True)
class ScaleStatus:
    """How far a run has grown.

    Attributes:
        steps: the sizes of the plan.
        results: the latest result of each size that has one.
        next_ranks: the first size that has not passed, or None if all have.
    """

    steps: tuple[int, ...]
    results: Mapping[int, ScaleResult]
    next_ranks: int | None

    def check(self, ranks: int) -> None:
        """Check that a run may take this size.

        Raises:
            UsageError: it is not in the plan.
            ConflictError: a size before it has not passed all gates.
        """
        if ranks not in self.steps:
            sizes = ", ".join(f"{ranks:,}" for ranks in self.steps)
            raise UsageError(f"{ranks:,} ranks are not in the plan", hint=f"it has {sizes}")
        if self.next_ranks is None or ranks <= self.next_ranks:
            return
        result = self.results.get(self.next_ranks)
        if result is None:
            raise ConflictError(
                f"{ranks:,} ranks have to wait: nothing was judged on {self.next_ranks:,} yet",
                hint=f'"mvc scale gate --ranks {self.next_ranks} --measured FILE" judges them',
            )
        reasons = [f"at {verdict.gate}: {verdict.text}" for verdict in result.failed]
        reasons += [
            f"at {gate}: its note has no answer that can be read" for gate in result.missing
        ]
        raise ConflictError(
            f"{ranks:,} ranks have to wait: {self.next_ranks:,} failed {'; '.join(reasons)}",
            hint="mend it and measure again, or name the gate in `waive`",
        )


def plan_scale(context: Context, first: int, last: int, *, keep: bool = True) -> tuple[int, ...]:
    """Return the sizes of a run that grows, each at most twice the one before.

    Args:
        first: ranks at the start.
        last: ranks at the end.
        keep: make it the plan of this repository, in place of another; results stay.

    Raises:
        UsageError: it does not go from at least 1 rank to as many or more.
    """
    steps = plan_steps(first, last)
    if keep:
        context.history.config.set(_PLAN, f"{first} {last}")
    return steps


def _read_plan(context: Context) -> tuple[int, ...]:
    text = context.history.config.get(_PLAN)
    if text is None:
        raise NotFoundError("no plan to grow is kept here", hint=_NO_PLAN)
    ends = _ENDS.fullmatch(text)
    if ends is None or int(ends[1]) > int(ends[2]):
        raise FormatError(
            f"{_PLAN} is {text[:80]!r}, not the smallest and largest number of ranks", hint=_NO_PLAN
        )
    return plan_steps(int(ends[1]), int(ends[2]))


def scale_status(context: Context, revision: str = "HEAD") -> ScaleStatus:
    """Return which sizes of the plan have passed their gates in the history of a commit.

    Raises:
        NotFoundError: there is no plan, or no such revision.
    """
    steps, commit = _read_plan(context), context.history.find_commit(revision)
    if commit is None and revision != "HEAD":
        context.history.resolve_commit(revision)  # says what is wrong with it
    return _find_status(steps, () if commit is None else _list_results(context, commit))


def _find_status(steps: tuple[int, ...], results: Sequence[ScaleResult]) -> ScaleStatus:
    latest = {result.ranks: result for result in results}
    open_steps = (ranks for ranks in steps if ranks not in latest or not latest[ranks].ok)
    known = {ranks: latest[ranks] for ranks in steps if ranks in latest}
    return ScaleStatus(steps, known, next(open_steps, None))


def _list_results(context: Context, commit: GitId) -> list[ScaleResult]:
    """Return the results in the history of a commit, oldest first; a rollback leaves some behind."""
    history = context.history
    found = [
        one
        for noted, results in context.notebook(RESULTS).read().items()
        if history.has_object(noted) and history.is_ancestor(noted, commit)
        for one in results
    ]
    return sorted(found, key=lambda one: (one.time_s, one.number))


@holds_sweep_lock
def record_scale(
    context: Context,
    measured: Mapping[str, float | None],
    revision: str = "HEAD",
    *,
    ranks: int | None = None,
    limits: Mapping[str, float] | None = None,
    waive: Collection[str] = (),
) -> ScaleResult:
    """Judge what a run measured at a size, and note the result on a commit.

    Args:
        measured: ``sync_p99_s``, ``bandwidth_used``, ``deviation_max``, ``mismatches``, ``checks``,
            ``recovery_s``, ``loss`` and ``ranks``; None or left out is what was not measured, and
            fails its gate.
        revision: a commit of the run at this size.
        ranks: of the run, unless ``measured`` says so.
        limits: other limits than 1e-5 for ``deviation_max``, 0.05 for ``sync_p99_s``, 0.85 for
            ``bandwidth_used``, 30 for ``recovery_s`` and 0.05 for ``loss_rise``.
        waive: gates whose failure is not to count: ``bits``, ``deviation``, ``sync``, ``bandwidth``,
            ``recovery``, ``loss``.

    Raises:
        UsageError: a name or number makes no sense, or this size is not in the plan.
        ConflictError: a smaller size has not passed its gates; nothing was noted.
        NotFoundError: there is no plan, or no such revision.
    """
    values, allowed = parse_measured(measured, ranks), make_limits(limits or {})
    steps, commit = _read_plan(context), context.history.resolve_commit(revision)
    notes = context.notebook(RESULTS)
    with context.history.lock():
        status = _find_status(steps, _list_results(context, commit))
        status.check(values.ranks)
        before = [status.results[ranks] for ranks in steps if ranks < values.ranks]
        loss_before = before[-1].loss if before else None
        number = (
            max((result.number for some in notes.read().values() for result in some), default=0) + 1
        )
        result = ScaleResult(
            commit,
            values.ranks,
            judge_scale(values, allowed, loss_before, waive),
            int(time.time()),
            number,
        )
        paragraphs = [*notes.find_paragraphs(commit), encode_result(result)]
        text = f"gates of {values.ranks} ranks {'passed' if result.ok else 'failed'}"
        notes.write({commit: paragraphs}, message=text, stamp=context.stamp())
    return result

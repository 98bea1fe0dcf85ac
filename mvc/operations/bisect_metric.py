"""Where a stored metric went wrong: found from the commits alone, without a test."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, NotFoundError, UsageError
from mvc.workspace.bisection import find_doubtful
from mvc.workspace.health import find_value

if TYPE_CHECKING:
    from mvc.history.values import CommitInfo
    from mvc.ids import GitId
    from mvc.workspace.context import Context


@dataclass(frozen=True, slots=True)
class MetricBreak:
    """The start of the bad values of a metric that lead up to a commit.

    Attributes:
        metric: its name.
        commit: the first of the commits with bad values that lead to the bad one without a break.
        value: the metric there.
        before: the nearest commit before it that has the metric, or None.
        before_value: the metric there; it is good.
        unknown: commits between the two without the metric, newest first.
        others: where the bad values begin on other lines of history that were merged.
        earlier: the first commit of all with a bad value, if good ones came after it.
        tested: how many commits with the metric were looked at.
    """

    metric: str
    commit: GitId
    value: float
    before: GitId | None
    before_value: float | None
    unknown: tuple[GitId, ...]
    others: tuple[GitId, ...]
    earlier: GitId | None
    tested: int


@dataclass(slots=True)
class _Stretch:
    """What a walk from the bad commit has found: each commit with what it may begin."""

    open: dict[GitId, dict[GitId, None]] = field(
        default_factory=dict
    )  # → nearest bad ones after it
    begins: dict[GitId, GitId | None] = field(default_factory=dict)  # bad → the good one before it
    unknown: dict[GitId, list[GitId]] = field(default_factory=dict)  # bad → without the metric


def bisect_metric(
    context: Context,
    metric: str,
    *,
    above: float | None = None,
    below: float | None = None,
    bad: str = "HEAD",
    good: Sequence[str] = (),
) -> MetricBreak:
    """Return the start of the bad values of a stored metric that lead up to a commit.

    Args:
        metric: its name, or ``step``.
        above: larger values are bad; NaN always is.
        below: smaller values are bad.
        bad: the commit to look back from; if it lacks the metric, the ones before it count.
        good: commits that are not looked at, nor what comes before them.

    Raises:
        ConflictError: the commit is not bad.
        NotFoundError: no commit there has the metric.
        UsageError: both bounds, or none.
    """
    is_bad = _make_test(above, below)
    history = context.history
    start = history.resolve_commit(bad)
    hidden = [history.resolve_commit(revision) for revision in good]
    infos = find_doubtful(history, start, hidden)
    values = {info.id: find_value(info, metric) for info in infos}
    known = {commit: value for commit, value in values.items() if value is not None}
    if not known:
        raise NotFoundError(f"no commit has the metric {metric!r}", hint='"mvc log" shows metrics')
    stretch = _trace(infos, values, is_bad, start)
    bad_ones = [info.id for info in infos if info.id in known and is_bad(known[info.id])]
    if not stretch.begins:
        commit = next(info.id for info in infos if info.id in known)
        raise ConflictError(
            f"{metric} is {known[commit]:.6g} at commit {commit[:7]}, which is not bad",
            hint=f"the last bad commit is {bad_ones[0][:7]}: search back from there"
            if bad_ones
            else "none before it is: choose another bound",
        )
    first, *others = sorted(stretch.begins, key=lambda commit: stretch.begins[commit] is None)
    before = stretch.begins[first]
    return MetricBreak(
        metric,
        first,
        known[first],
        before,
        None if before is None else known[before],
        tuple(stretch.unknown.get(first, ())),
        tuple(others),
        bad_ones[-1] if bad_ones[-1] not in stretch.begins else None,
        len(known),
    )


def _make_test(above: float | None, below: float | None) -> Callable[[float], bool]:
    if (above is None) == (below is None):
        raise UsageError("give `above` or `below`, and not both")
    if math.isnan(above if above is not None else below or 0.0):
        raise UsageError("a bound must be a number")

    def is_bad(value: float) -> bool:
        if math.isnan(value):
            return True
        return value > above if above is not None else below is not None and value < below

    return is_bad


def _trace(
    infos: Sequence[CommitInfo],
    values: dict[GitId, float | None],
    is_bad: Callable[[float], bool],
    start: GitId,
) -> _Stretch:
    """Follow bad values, and commits without a value, back to where good ones were."""
    stretch = _Stretch({start: {}})
    for info in infos:  # children before parents
        after = stretch.open.pop(info.id, None)
        if after is None:
            continue
        value = values[info.id]
        if value is None:
            for bad in after:
                stretch.unknown.setdefault(bad, []).append(info.id)
        elif is_bad(value):
            for bad in after:  # its bad values began before it
                stretch.begins.pop(bad, None)
                stretch.unknown.pop(bad, None)
            stretch.begins[info.id] = None
            after = {info.id: None}
        else:
            stretch.begins |= dict.fromkeys(
                (bad for bad in after if bad in stretch.begins), info.id
            )
            continue
        for parent in info.parents:
            stretch.open.setdefault(parent, {}).update(after)
    return stretch

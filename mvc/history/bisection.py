"""Which commit to test next, so that either answer leaves half of what is in doubt.

As in Git: in doubt are the bad commit and its ancestors, without those of good ones. The *weight* of
one of them is how many it reaches, itself included. If it is bad, that many are left in doubt; if it
is good, all the others are. So the best is the one whose smaller half is largest. What is not
*counted* (commits that leave a path alone, say) is never tested and weighs nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from mvc.history.git import GitHistory
    from mvc.history.values import CommitInfo
    from mvc.ids import GitId

_RANDOM_RANGE = 32768


def find_doubtful(
    history: GitHistory, bad: GitId, good: Sequence[GitId], *, first_parent: bool = False
) -> list[CommitInfo]:
    """Return the commits that may be the first bad one, children before parents."""
    hidden = {info.id for info in history.walk(good)}
    walk = history.walk([bad], first_parent=first_parent)
    return [info for info in walk if info.id not in hidden]


def weigh(
    doubtful: Sequence[CommitInfo], counted: Collection[GitId], *, first_parent: bool = False
) -> dict[GitId, int]:
    """Return commit → how many counted ones it reaches; ``doubtful`` as ``find_doubtful`` gives it."""
    inside = {info.id for info in doubtful}
    parents = {
        info.id: [
            parent for parent in info.parents[: 1 if first_parent else None] if parent in inside
        ]
        for info in doubtful
    }
    weights: dict[GitId, int] = {}
    for info in reversed(doubtful):
        above = parents[info.id]
        if len(above) > 1:  # what both reach must not count twice
            weights[info.id] = sum(parent in counted for parent in _reach(info.id, parents))
        else:
            weights[info.id] = (info.id in counted) + sum(weights[parent] for parent in above)
    return weights


def _reach(start: GitId, parents: Mapping[GitId, Sequence[GitId]]) -> Iterator[GitId]:
    seen, pending = {start}, [start]
    while pending:
        commit = pending.pop()
        yield commit
        new = [parent for parent in parents[commit] if parent not in seen]
        seen.update(new)
        pending += new


def choose(
    weights: Mapping[GitId, int], counted: Collection[GitId], skipped: Collection[GitId]
) -> GitId | None:
    """Return the counted commit that halves best and is not skipped, or None.

    Where the best one was skipped, its neighbours often cannot be tested either: then, as in Git,
    it is one further away, chosen by a generator that gives the same each time.
    """
    total = len(counted)
    ranked = [
        commit for commit in weights if commit in counted
    ]  # in order, so that ties are decided alike
    ranked.sort(key=lambda commit: -min(weights[commit], total - weights[commit]))
    left = [commit for commit in ranked if commit not in skipped]
    if not left or left[0] == ranked[0]:
        return left[0] if left else None
    halves = [commit for commit in left if 0 < weights[commit] < total]
    if not halves:
        return left[0]
    drawn = ((len(halves) * 1103515245 + 12345) >> 16) % _RANDOM_RANGE / _RANDOM_RANGE
    return halves[int(len(halves) * drawn * math.sqrt(drawn))]


def steps_left(count: int) -> int:
    """Return about how many tests find the first bad one of ``count`` commits, as Git says it."""
    if count < 3:  # noqa: PLR2004  the bad one itself and one more
        return 0
    whole = count.bit_length() - 1
    return whole if 2**whole < 3 * (count - 2**whole) else whole - 1

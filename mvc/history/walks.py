"""Walks over the commit graph: children before parents, merge bases, ancestors.

``walk`` gives the order of ``git log --date-order``: a commit comes after all its children, and
among those that may come, the youngest first. Knowing all children of a commit means looking at
everything that could be one. Clocks are nearly right, so a child is not more than an hour older
than its parent: the walk looks one hour ahead of what it gives out, reads no more of the history
than that, and is exact unless clocks of different machines are further apart. Where history is one
line it looks at nothing ahead.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mvc.history.objects import ObjectStore
    from mvc.history.values import CommitInfo
    from mvc.ids import GitId

CLOCK_SLOP_S = 3600


def walk(
    source: ObjectStore,
    starts: Sequence[GitId],
    *,
    limit: int | None = None,
    first_parent: bool = False,
) -> Iterator[CommitInfo]:
    """Yield the commits that can be reached, children before parents, youngest first."""
    state = _Walk(source, first_parent=first_parent)
    state.start(starts)
    while limit is None or limit > 0:
        commit = state.next()
        if commit is None:
            return
        yield commit
        limit = None if limit is None else limit - 1


class _Walk:
    """Two heaps: commits seen but not looked at yet, and commits whose children are all out."""

    def __init__(self, source: ObjectStore, *, first_parent: bool) -> None:
        self._source = source
        self._first_parent = first_parent
        self._commits: dict[GitId, CommitInfo] = {}
        self._children: dict[GitId, int] = {}
        self._seen: set[GitId] = set()
        self._ahead: list[tuple[int, int, GitId]] = []
        self._ready: list[tuple[int, int, GitId]] = []
        self._count = 0

    def start(self, starts: Sequence[GitId]) -> None:
        for start in starts:
            self._see(start)
        if len(self._ahead) > 1:
            self._look_ahead(-self._ahead[0][0])
        for start in dict.fromkeys(starts):
            if not self._children.get(start):
                self._push_ready(start)

    def next(self) -> CommitInfo | None:
        while self._ready:
            if len(self._ahead) == 1 and self._ahead[0][2] == self._ready[0][2]:
                self._expand()  # all that is unseen are its ancestors: none can be its child
            else:
                self._look_ahead(-self._ready[0][0])
            _, _, commit_id = heapq.heappop(self._ready)
            if self._children.get(commit_id) or commit_id not in self._commits:
                continue  # a child turned up while looking ahead; it will come back after it
            commit = self._commits.pop(commit_id)
            for parent in self._parents(commit):
                self._children[parent] -= 1
                # Where clocks are far apart, a parent that is a start too may be out already.
                if not self._children[parent] and parent in self._commits:
                    self._push_ready(parent)
            return commit
        return None

    def _parents(self, commit: CommitInfo) -> tuple[GitId, ...]:
        parents = commit.parents[:1] if self._first_parent else commit.parents
        return tuple(dict.fromkeys(parents))

    def _see(self, commit_id: GitId) -> None:
        if commit_id in self._seen:
            return
        self._seen.add(commit_id)
        commit = self._commits[commit_id] = self._source.read_commit(commit_id)
        self._count += 1
        heapq.heappush(self._ahead, (-commit.commit_time_s, self._count, commit_id))

    def _look_ahead(self, time_s: int) -> None:
        """Count the children of everything that is not a slop older than ``time_s``."""
        while self._ahead and -self._ahead[0][0] >= time_s - CLOCK_SLOP_S:
            self._expand()

    def _expand(self) -> None:
        """Count the next commit as a child of its parents, and see those."""
        _, _, commit_id = heapq.heappop(self._ahead)
        for parent in self._parents(self._commits[commit_id]):
            self._children[parent] = self._children.get(parent, 0) + 1
            self._see(parent)

    def _push_ready(self, commit_id: GitId) -> None:
        self._count += 1
        time_s = self._commits[commit_id].commit_time_s
        heapq.heappush(self._ready, (-time_s, self._count, commit_id))


_LEFT, _RIGHT, _STALE, _RESULT = 1, 2, 4, 8


def find_merge_bases(source: ObjectStore, left: GitId, right: GitId) -> list[GitId]:
    """Return the best common ancestors, youngest first: none of them is an ancestor of another."""
    if left == right:
        return [left]
    candidates = _paint(source, left, right)
    if len(candidates) > 1:
        candidates = [
            commit
            for commit in candidates
            if not any(
                other != commit and is_ancestor(source, commit, other) for other in candidates
            )
        ]
    return candidates


def _paint(source: ObjectStore, left: GitId, right: GitId) -> list[GitId]:
    """Colour what each side reaches; the first commits with both colours are the candidates."""
    colours = {left: _LEFT, right: _RIGHT}
    times: dict[GitId, int] = {}
    heap: list[tuple[int, GitId]] = []
    parents: dict[GitId, tuple[GitId, ...]] = {}

    def push(commit_id: GitId) -> None:
        if commit_id not in times:
            commit = source.read_commit(commit_id)
            times[commit_id], parents[commit_id] = commit.commit_time_s, commit.parents
        heapq.heappush(heap, (-times[commit_id], commit_id))

    push(left)
    push(right)
    meetings: dict[GitId, int] = {}
    while any(not colours[commit_id] & _STALE for _, commit_id in heap):
        _, commit_id = heapq.heappop(heap)
        colour = colours[commit_id] & (_LEFT | _RIGHT | _STALE)
        if colour == _LEFT | _RIGHT:
            meetings.setdefault(commit_id, times[commit_id])
            colour |= _STALE
        for parent in parents[commit_id]:
            if colours.get(parent, 0) & colour != colour:
                colours[parent] = colours.get(parent, 0) | colour
                push(parent)
    kept = [commit_id for commit_id in meetings if not colours[commit_id] & _STALE]
    return sorted(kept, key=lambda commit_id: -meetings[commit_id])


def is_ancestor(source: ObjectStore, ancestor: GitId, descendant: GitId) -> bool:
    """Return whether one commit can be reached from another (a commit reaches itself)."""
    if ancestor == descendant:
        return True
    seen = {descendant}
    first = source.read_commit(descendant)
    heap = [(-first.commit_time_s, first.id, first.parents)]
    while heap:
        _, _, parents = heapq.heappop(heap)
        if ancestor in parents:
            return True
        for parent in parents:
            if parent not in seen:
                seen.add(parent)
                commit = source.read_commit(parent)
                heapq.heappush(heap, (-commit.commit_time_s, parent, commit.parents))
    return False

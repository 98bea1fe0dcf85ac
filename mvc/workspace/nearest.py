"""The nearest commit that still has content that another one released: the way out of an error."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from mvc.workspace.annotations import read_annotations
from mvc.workspace.manifests import is_complete
from mvc.workspace.releases import read_releases

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc.history.values import CommitInfo
    from mvc.ids import GitId
    from mvc.workspace.context import Context


def find_nearest(context: Context, lost: CommitInfo, paths: Sequence[str]) -> CommitInfo | None:
    """Return the nearest commit that has content at all of some paths, or None.

    Ancestors and descendants come before commits on other lines of history. Among them the
    nearest by step if both have one, else by the number of commits in between.
    """
    head = context.history.head().commit
    tips = [*([] if head is None else [head]), *context.ref_commits().values(), lost.id]
    commits = {info.id: info for info in context.history.walk(tips)}
    records = read_releases(context)
    for commit in _by_distance(lost, commits):
        gone = {path for release in records.get(commit.id, ()) for path in release.paths}
        if gone.isdisjoint(paths) and _has_content(context, commit.id, paths):
            return commit
    return None


def _has_content(context: Context, commit: GitId, paths: Sequence[str]) -> bool:
    tree = context.history.read_tree(commit)
    return all(path in tree and is_complete(context, tree[path].blob) for path in paths)


def _by_distance(lost: CommitInfo, commits: Mapping[GitId, CommitInfo]) -> list[CommitInfo]:
    up = {info.id: info.parents for info in commits.values()}
    down: dict[GitId, list[GitId]] = {}
    for info in commits.values():
        for parent in info.parents:
            down.setdefault(parent, []).append(info.id)
    both = {commit: (*up[commit], *down.get(commit, ())) for commit in commits}
    line = {*_distances(lost.id, up), *_distances(lost.id, down)}
    far = _distances(lost.id, both)
    step = read_annotations(lost).step
    ranked: list[tuple[bool, bool, int, int, int, CommitInfo]] = []
    for place, info in enumerate(commits.values()):
        if info.id == lost.id:
            continue
        other = None if step is None else read_annotations(info).step
        apart = 0 if step is None or other is None else abs(other - step)
        unknown = step is not None and other is None
        hops = far.get(info.id, len(commits))
        ranked.append((info.id not in line, unknown, apart, hops, place, info))
    return [found[-1] for found in sorted(ranked, key=lambda item: item[:-1])]


def _distances(start: GitId, links: Mapping[GitId, Sequence[GitId]]) -> dict[GitId, int]:
    found = {start: 0}
    pending = deque([start])
    while pending:
        commit = pending.popleft()
        for other in links.get(commit, ()):
            if other not in found:
                found[other] = found[commit] + 1
                pending.append(other)
    return found

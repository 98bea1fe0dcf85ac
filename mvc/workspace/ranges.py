"""Commits that revisions and ranges of revisions name, as in Git: ``A``, ``A..B``, ``A...B``, ``^A``.

``A..B`` is what B has and A lacks, ``A...B`` what only one of them has, ``^A`` excludes what A has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mvc.history.revisions import split_range

if TYPE_CHECKING:
    from mvc.history.values import CommitInfo
    from mvc.ids import GitId
    from mvc.workspace.context import Context


def walk_ranges(
    context: Context,
    revisions: Sequence[str],
    *,
    everything: bool = False,
    first_parent: bool = False,
) -> Iterator[CommitInfo]:
    """Yield the commits that ranges name, newest first; HEAD's if they name no start.

    A revision that does not exist raises on the first step of the iteration.
    """
    starts, excluded = _parse(context, revisions, everything=everything)
    hidden = {info.id for info in context.history.walk(excluded)} if excluded else set()
    for info in context.history.walk(starts, first_parent=first_parent):
        if info.id not in hidden:
            yield info


def list_commits(context: Context, revisions: Sequence[str]) -> list[GitId]:
    """Return the commits that are meant, each once: ``A`` is that one commit, ``A..B`` a range."""
    commits: dict[GitId, None] = {}
    for revision in revisions:
        if split_range(revision) is None:
            commits[context.history.resolve_commit(revision)] = None
        else:
            commits |= dict.fromkeys(info.id for info in walk_ranges(context, [revision]))
    return list(commits)


def _parse(
    context: Context, revisions: Sequence[str], *, everything: bool
) -> tuple[list[GitId], list[GitId]]:
    history = context.history
    starts: list[GitId] = []
    excluded: list[GitId] = []
    for revision in revisions:
        parts = split_range(revision)
        if parts is not None:
            old, dots, new = parts
            left, right = history.resolve_commit(old), history.resolve_commit(new)
            is_both = dots == "..."
            excluded.extend(history.find_merge_bases(left, right) if is_both else [left])
            starts.extend((left, right) if is_both else [right])
        elif revision.startswith("^"):
            excluded.append(history.resolve_commit(revision[1:]))
        else:
            starts.append(history.resolve_commit(revision))
    head = history.head().commit
    if everything:
        starts.extend(context.ref_commits().values())
    if head is not None and (everything or not starts):
        starts.insert(0, head)
    return starts, excluded

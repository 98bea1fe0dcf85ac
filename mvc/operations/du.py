"""du: what branches, commits, tags, files and tensors cost in the store, alone and shared.

*Alone* is what would be freed if only this one were gone: a branch deleted, a commit's content
released, and ``gc`` run. Nothing else that has a name may need it, neither directly nor because a
chunk of it is stored as a difference to it. *Shared* is the rest of what it needs. So the
``alone`` of two that share something leave that out, and add up to less than both together.

Reflogs do not count as users: what only they hold is listed separately, and so is what is kept only
as the base of something else. Bytes are those of chosen copies (``chunkstore.copies``), with their
record headers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import UsageError
from mvc.upkeep.survey import Survey
from mvc.workspace.ranges import walk_ranges

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from mvc.ids import GitId
    from mvc.upkeep.costs import DuEntry, DuTotals
    from mvc.workspace.context import Context

KINDS = ("branch", "tag", "commit", "file", "tensor")
USUAL_KINDS = KINDS[:-1]


@dataclass(frozen=True, slots=True)
class DuReport:
    """What everything costs; the largest ``alone`` first in every list.

    Attributes:
        totals: of the whole repository.
        selection: what the commits that were asked for cost together; None for all.
        branches: one entry each; empty if not asked for, like all that follow.
        tags: one entry each.
        commits: one entry each.
        files: one entry per path.
        tensors: one entry per path and name.
    """

    totals: DuTotals
    selection: DuEntry | None
    branches: tuple[DuEntry, ...]
    tags: tuple[DuEntry, ...]
    commits: tuple[DuEntry, ...]
    files: tuple[DuEntry, ...]
    tensors: tuple[DuEntry, ...]


def du(
    context: Context, revisions: Sequence[str] = (), *, by: Collection[str] = USUAL_KINDS
) -> DuReport:
    """Return what is stored, and for which users; nothing is changed.

    Raises:
        NotFoundError: no such revision.
        UsageError: no such kind.
        FormatError: the history or a manifest is damaged.
    """
    for kind in by:
        if kind not in KINDS:
            raise UsageError(f"cannot list by {kind!r}", hint=f"one of {', '.join(KINDS)}")
    chosen = _select(context, revisions)
    survey = Survey(context, chosen if revisions else None, with_tensors="tensor" in by)
    refs = list(survey.list_refs()) if "branch" in by or "tag" in by else []
    return DuReport(
        totals=survey.sum_up(),
        selection=survey.weigh_selection(" ".join(revisions)) if revisions else None,
        branches=_sorted(one for one in refs if one.kind == "branch" and "branch" in by),
        tags=_sorted(one for one in refs if one.kind == "tag" and "tag" in by),
        commits=_sorted(survey.list_commits() if "commit" in by else ()),
        files=_sorted(survey.list_files() if "file" in by else ()),
        tensors=_sorted(survey.list_tensors() if "tensor" in by else ()),
    )


def _select(context: Context, revisions: Sequence[str]) -> list[GitId]:
    """Return the commits that are meant: ``A`` is that one commit, ``A..B`` a range."""
    found: dict[GitId, None] = {}
    for revision in revisions:
        if ".." in revision:
            found.update(dict.fromkeys(info.id for info in walk_ranges(context, [revision])))
        else:
            found[context.history.resolve_commit(revision)] = None
    return list(found)


def _sorted(entries: Iterable[DuEntry]) -> tuple[DuEntry, ...]:
    """Sort by weight; what weighs the same keeps its order."""
    return tuple(
        sorted(entries, key=lambda one: (-one.alone_bytes, -one.shared_bytes, -one.raw_bytes))
    )

"""Released content that is committed again: a run that is repeated gives the same bits.

Equal manifests are equal content, and a commit whose content was released still has its manifests.
When such a manifest is committed again with its chunks, the content is back for every commit that
has it, and their release records are dropped.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import MvcError
from mvc.workspace.annotations import read_annotations
from mvc.workspace.manifests import is_complete
from mvc.workspace.released import check_content, releases_by_blob
from mvc.workspace.releases import RELEASED_REF, drop_releases

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mvc.history.values import TreeEntry
    from mvc.ids import GitId
    from mvc.workspace.context import Context


@dataclass(frozen=True, slots=True)
class ReleasedTwin:
    """A released commit whose content a new commit has brought back, bit for bit.

    Attributes:
        commit: the released commit.
        step: its training step, or None.
        subject: first line of its message.
        paths: its files that are the same in both.
    """

    commit: GitId
    step: int | None
    subject: str
    paths: tuple[str, ...]


def check_kept(context: Context, tree: Mapping[str, TreeEntry]) -> None:
    """Check that a new commit holds nothing that was released and is gone.

    A reset to a released commit puts such entries into the index.
    """
    if context.history.find_ref(RELEASED_REF) is None:
        return
    table = releases_by_blob(context)
    suspects = [(path, entry.blob) for path, entry in tree.items() if entry.blob in table]
    check_content(context, suspects, command="mvc restore --source {} --staged --worktree .")


def take_back(context: Context, new: GitId, tree: Mapping[str, TreeEntry]) -> ReleasedTwin | None:
    """Drop the release records of all content that a new commit has; return the closest twin.

    The commit already stands: a failure here leaves a needless record, which harms nothing.
    """
    if context.history.find_ref(RELEASED_REF) is None:
        return None
    with contextlib.suppress(MvcError):
        back = _find_back(context, new, tree)
        if back:
            drop_releases(context, back)
            return _describe(context, back)
    return None


def _find_back(
    context: Context, new: GitId, tree: Mapping[str, TreeEntry]
) -> dict[GitId, tuple[str, ...]]:
    """Return released commit → its released files whose content the new commit has."""
    table = releases_by_blob(context)
    blobs = {entry.blob for entry in tree.values() if entry.blob in table}
    here = {blob for blob in blobs if is_complete(context, blob)}
    found: dict[GitId, tuple[str, ...]] = {}
    releases = {id(one): one for blob in here for one in table[blob]}
    for release in releases.values():
        if release.commit == new or not context.history.has_object(release.commit):
            continue
        old = context.history.read_tree(release.commit)
        same = [path for path in release.paths if path in old and old[path].blob in here]
        if same:
            found[release.commit] = tuple(sorted({*found.get(release.commit, ()), *same}))
    return found


def _describe(context: Context, back: Mapping[GitId, tuple[str, ...]]) -> ReleasedTwin:
    infos = [context.history.read_commit(commit) for commit in back]
    best = max(infos, key=lambda info: (len(back[info.id]), info.commit_time_s, info.id))
    return ReleasedTwin(best.id, read_annotations(best).step, best.subject, back[best.id])

"""Is the content of a file version there? If it was released: since when, and what is near?

The chunks decide. A released version whose chunks are all in the store, because another commit
shares them or a run made them again, is read like any other. A verb that is about to read content
calls ``check_content`` first, before anything is changed; if nothing was ever released, that only
looks for a ref. Content that is missing without having been released is damage: reading reports it.

A run that is repeated gives the same bits, so released content may be committed again. Equal manifests
are equal content, and a commit whose content was released still has its manifests: when such a
manifest is committed again with its chunks, the content is back for every commit that has it, and
their release records are dropped.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from mvc.errors import MvcError, ReleasedError
from mvc.workspace.manifests import has_chunks, is_complete
from mvc.workspace.pathspec import list_paths
from mvc.workspace.releases import Release, drop_releases, join_releases, read_releases
from mvc.workspace.trailers import read_annotations

if TYPE_CHECKING:
    from mvc.history.values import CommitInfo, TreeEntry
    from mvc.ids import ChunkId, GitId
    from mvc.workspace.context import Context

    Version = tuple[str, GitId]
    """(path, blob) of a file of a commit"""

_SHOWN_PATHS = 3
_SHORT_ID = 10


def check_content(
    context: Context,
    versions: Iterable[Version],
    *,
    commit: GitId | None = None,
    command: str = "mvc checkout {}",
) -> None:
    """Check that the content of file versions (of ``commit``, if known) was not released.

    The hint shows ``command`` with the nearest commit that has the content put in for ``{}``.
    """
    if not context.has_releases:
        return
    lost = [version for version in versions if not is_complete(context, version[1])]
    if lost:
        _check_lost(context, lost, commit, command)


def check_chunks(
    context: Context,
    version: Version,
    chunks: Iterable[ChunkId],
    *,
    commit: GitId | None = None,
    command: str = "mvc checkout {}",
) -> None:
    """Check that some chunks of a file version were not released."""
    if not context.has_releases:
        return
    if not has_chunks(context, list(chunks)):
        _check_lost(context, [version], commit, command)


def command_text(start: str, words: Iterable[str]) -> str:
    """Return a command for ``check_content``: a start with ``{}`` in it, followed by words."""
    import shlex  # noqa: PLC0415  only for a hint

    quoted = " ".join(map(shlex.quote, words))
    return f"{start} {quoted.replace('{', '{{').replace('}', '}}')}"


def releases_by_blob(context: Context) -> dict[GitId, list[Release]]:
    """Return manifest → the acts of releasing that released it."""
    found: dict[GitId, list[Release]] = {}
    for releases in read_releases(context).values():
        for release in releases:
            for blob in released_blobs(context, release):
                found.setdefault(blob, []).append(release)
    return found


def released_blobs(context: Context, release: Release) -> tuple[GitId, ...]:
    """Return the manifests that an act of releasing released."""
    if release.blobs:
        return release.blobs
    if not context.history.has_object(release.commit):
        return ()
    tree = context.history.read_tree(release.commit)
    return tuple(tree[path].blob for path in release.paths if path in tree)


def _check_lost(
    context: Context, lost: Sequence[Version], commit: GitId | None, command: str
) -> None:
    table = releases_by_blob(context)
    found = [table.get(blob, []) for _, blob in lost]
    if not all(found):
        return  # something is missing that was not released: reading it will report where
    releases = [release for many in found for release in many]
    own = [release for release in releases if release.commit == commit]
    chosen = own or [release for release in releases if release.commit == releases[0].commit]
    _raise_released(context, join_releases(chosen) or releases[0], lost, command)


def _raise_released(
    context: Context, release: Release, lost: Sequence[Version], command: str
) -> NoReturn:
    info = context.history.read_commit(release.commit)
    paths = [path for path, _ in lost]
    nearest = _find_nearest(context, info, paths)
    day = time.strftime("%Y-%m-%d", time.gmtime(release.time_s))
    hint = "no commit of a branch or tag still has it; run the training again and commit the result"
    if nearest is not None:
        name = nearest.id[:_SHORT_ID]
        hint = f'{_describe(nearest)} is the nearest that still has it: "{command.format(name)}"'
    raise ReleasedError(
        f"content of {_describe(info)} was released on {day} by policy "
        f'"{release.policy}": {list_paths(paths, _SHOWN_PATHS)}',
        hint=hint,
        commit=info.id,
        policy=release.policy,
        time_s=release.time_s,
        nearest=None if nearest is None else nearest.id,
    )


def _find_nearest(context: Context, lost: CommitInfo, paths: Sequence[str]) -> CommitInfo | None:
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
        if gone.isdisjoint(paths):
            tree = context.history.read_tree(commit.id)
            if all(path in tree and is_complete(context, tree[path].blob) for path in paths):
                return commit
    return None


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
    distances = {start: 0}
    pending = deque([start])
    while pending:
        commit = pending.popleft()
        for other in links.get(commit, ()):
            if other not in distances:
                distances[other] = distances[commit] + 1
                pending.append(other)
    return distances


def _describe(info: CommitInfo) -> str:
    step = read_annotations(info).step
    place = "" if step is None else f" (step {step:,})"
    return f"commit {info.id[:_SHORT_ID]} {info.subject!r}{place}"


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
    table = releases_by_blob(context)
    suspects = [(path, entry.blob) for path, entry in tree.items() if entry.blob in table]
    check_content(context, suspects, command="mvc restore --source {} --staged --worktree .")


def take_back(context: Context, new: GitId, tree: Mapping[str, TreeEntry]) -> ReleasedTwin | None:
    """Drop the release records of all content that a new commit has; return the closest twin.

    The commit already stands: a failure here leaves a needless record, which harms nothing.
    """
    with contextlib.suppress(MvcError):
        back = _find_back(context, new, tree)
        if back:
            drop_releases(context, back)
            infos = [context.history.read_commit(commit) for commit in back]
            best = max(infos, key=lambda info: (len(back[info.id]), info.commit_time_s, info.id))
            return ReleasedTwin(best.id, read_annotations(best).step, best.subject, back[best.id])
    return None


def _find_back(
    context: Context, new: GitId, tree: Mapping[str, TreeEntry]
) -> dict[GitId, tuple[str, ...]]:
    """Return released commit → its released files whose content the new commit has."""
    table = releases_by_blob(context)
    blobs = {entry.blob for entry in tree.values() if entry.blob in table}
    here = {blob for blob in blobs if is_complete(context, blob)}
    back: dict[GitId, tuple[str, ...]] = {}
    releases = {id(one): one for blob in here for one in table[blob]}
    for release in releases.values():
        if release.commit == new or not context.history.has_object(release.commit):
            continue
        old = context.history.read_tree(release.commit)
        same = [path for path in release.paths if path in old and old[path].blob in here]
        if same:
            back[release.commit] = tuple(sorted({*back.get(release.commit, ()), *same}))
    return back

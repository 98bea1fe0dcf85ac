"""Is the content of a file version there? And where it was released: since when, and what is near.

The chunks decide. A released version whose chunks are all in the store, because another commit
shares them or a run made them again, is read like any other. Whoever is about to read content asks
``check_content`` first, before anything is changed; where nothing was ever released that is one
look for a ref. Content that is missing and that nobody released is damage, and the reader says so.
"""

from __future__ import annotations

import shlex
import time
from collections import deque
from typing import TYPE_CHECKING, NoReturn

from mvc.errors import ReleasedError
from mvc.workspace.annotations import read_annotations
from mvc.workspace.manifests import find_manifest
from mvc.workspace.releases import RELEASED_REF, join_releases, read_releases

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mvc.history.values import CommitInfo
    from mvc.ids import ChunkId, GitId
    from mvc.workspace.context import Context
    from mvc.workspace.releases import Release

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
    """Check that the content of file versions was not released.

    Args:
        context: the repository.
        versions: what is about to be read.
        commit: whose they are, where that is known.
        command: what the hint shows, with the nearest commit put in for ``{}``.

    Raises:
        ReleasedError: all that is missing of them was released.
    """
    if context.history.find_ref(RELEASED_REF) is None:
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
    """Check that some chunks of a file version were not released.

    Raises:
        ReleasedError: one of them is missing, and the version was released.
    """
    if context.history.find_ref(RELEASED_REF) is None:
        return
    if not _has_all(context, list(chunks)):
        _check_lost(context, [version], commit, command)


def is_complete(context: Context, blob: GitId) -> bool:
    """Tell whether all chunks that a stored file needs are in the store.

    Raises:
        FormatError: the blob is damaged.
    """
    manifest = find_manifest(context, blob)
    return manifest is None or _has_all(context, list(manifest.chunk_ids()))


def command_text(start: str, words: Iterable[str]) -> str:
    """Return a command for ``check_content``: a start with ``{}`` in it, and words behind it."""
    quoted = " ".join(map(shlex.quote, words))
    return f"{start} {quoted.replace('{', '{{').replace('}', '}}')}"


def _has_all(context: Context, chunks: list[ChunkId]) -> bool:
    store = context.store
    return store.contains_all(chunks) or (store.refresh() and store.contains_all(chunks))


def releases_by_blob(context: Context) -> dict[GitId, list[Release]]:
    """Return manifest → the acts of releasing that let it go; empty where there was none."""
    found: dict[GitId, list[Release]] = {}
    for releases in read_releases(context).values():
        for release in releases:
            for blob in released_blobs(context, release):
                found.setdefault(blob, []).append(release)
    return found


def released_blobs(context: Context, release: Release) -> tuple[GitId, ...]:
    """Return the manifests that an act of releasing let go."""
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
        return  # something is missing that nobody released: reading it will tell where
    releases = [release for many in found for release in many]
    own = [release for release in releases if release.commit == commit]
    chosen = own or [one for one in releases if one.commit == releases[0].commit]
    _raise_released(context, join_releases(chosen) or releases[0], lost, command)


def _raise_released(
    context: Context, release: Release, lost: Sequence[Version], command: str
) -> NoReturn:
    info = context.history.read_commit(release.commit)
    paths = [path for path, _ in lost]
    nearest = find_nearest(context, info, paths)
    day = time.strftime("%Y-%m-%d", time.gmtime(release.time_s))
    hint = "no commit of a branch or tag still has it; a run that makes it again can be committed"
    if nearest is not None:
        name = nearest.id[:_SHORT_ID]
        hint = f'{_describe(nearest)} is the nearest that still has it: "{command.format(name)}"'
    raise ReleasedError(
        f"content of {_describe(info)} was released on {day} by policy "
        f'"{release.policy}": {_shown(paths)}',
        hint=hint,
        commit=info.id,
        policy=release.policy,
        time_s=release.time_s,
        nearest=None if nearest is None else nearest.id,
    )


def _describe(info: CommitInfo) -> str:
    step = read_annotations(info).step
    place = "" if step is None else f" (step {step:,})"
    return f"commit {info.id[:_SHORT_ID]} {info.subject!r}{place}"


def _shown(paths: Sequence[str]) -> str:
    shown = ", ".join(repr(path) for path in paths[:_SHOWN_PATHS])
    more = len(paths) - _SHOWN_PATHS
    return shown if more <= 0 else f"{shown} and {more:,} more"


def find_nearest(context: Context, lost: CommitInfo, paths: Sequence[str]) -> CommitInfo | None:
    """Return the nearest commit that has content at all of some paths, or None.

    Ancestors and descendants come before commits on other lines of history. Among them the
    nearest by step where both have one, else by the number of commits in between.
    """
    commits = {info.id: info for info in context.history.walk([*_tips(context), lost.id])}
    records = read_releases(context)
    for commit in _by_distance(lost, commits):
        gone = {path for release in records.get(commit.id, ()) for path in release.paths}
        if gone.isdisjoint(paths) and _has_content(context, commit.id, paths):
            return commit
    return None


def _tips(context: Context) -> list[GitId]:
    head = context.history.head().commit
    return [*([] if head is None else [head]), *context.ref_commits().values()]


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

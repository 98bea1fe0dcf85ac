"""Is the content of a file version there? If it was released: since when, and what is near?

The chunks decide. A released version whose chunks are all in the store, because another commit
shares them or a run made them again, is read like any other. A verb that is about to read content
calls ``check_content`` first, before anything is changed; if nothing was ever released, that only
looks for a ref. Content that is missing without having been released is damage: reading reports it.
"""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, NoReturn

from mvc.errors import ReleasedError
from mvc.workspace.annotations import read_annotations
from mvc.workspace.manifests import has_chunks, is_complete
from mvc.workspace.releases import RELEASED_REF, join_releases, read_releases

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
    """Check that the content of file versions (of ``commit``, if known) was not released.

    The hint shows ``command`` with the nearest commit that has the content put in for ``{}``.
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
    """Check that some chunks of a file version were not released."""
    if context.history.find_ref(RELEASED_REF) is None:
        return
    if not has_chunks(context, list(chunks)):
        _check_lost(context, [version], commit, command)


def command_text(start: str, words: Iterable[str]) -> str:
    """Return a command for ``check_content``: a start with ``{}`` in it, followed by words."""
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
    chosen = own or [one for one in releases if one.commit == releases[0].commit]
    _raise_released(context, join_releases(chosen) or releases[0], lost, command)


def _raise_released(
    context: Context, release: Release, lost: Sequence[Version], command: str
) -> NoReturn:
    info = context.history.read_commit(release.commit)
    paths = [path for path, _ in lost]
    from mvc.workspace.nearest import find_nearest  # noqa: PLC0415  only an error needs it

    nearest = find_nearest(context, info, paths)
    day = time.strftime("%Y-%m-%d", time.gmtime(release.time_s))
    hint = "no commit of a branch or tag still has it; run the training again and commit the result"
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

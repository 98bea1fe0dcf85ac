"""Release records: which files of which commits were let go, when and by which policy.

They are Git notes below ``refs/notes/released``, one per commit, so that no commit changes its id
and ``git log --notes=released`` of a stock Git shows them. A note has one paragraph per act of
releasing; the path is a JSON string, behind it stands the manifest that was released:

    Released: 2026-11-20T16:00:00Z
    Policy: --keep-last 5 --keep-every 1000
    File: "model.safetensors" 9b1f6c0e8f0f2f0a9f5d6f7b1c0d2e3f4a5b6c7d

Paragraphs that begin otherwise are somebody's own and stay as they are. A record does not say that
the content is gone: another commit may need it still, or it came back. The chunks decide that.

This module is part of ``log`` and loads nothing heavy; where there is no such ref it reads nothing.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from mvc.errors import FormatError
from mvc.ids import GitId

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mvc.history.notes import NoteFinder
    from mvc.workspace.context import Context

RELEASED_REF = "refs/notes/released"
MAX_NOTE_BYTES = 16 * 2**20
_WEIGHTS_ONLY = "--weights-only"
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", re.ASCII)
_FILE = re.compile(r'("(?:[^"\\]|\\.)*")(?: ([0-9a-f]{40}))?', re.ASCII)
_RELEASED, _POLICY, _FILE_KEY = "Released: ", "Policy: ", "File: "


@dataclass(frozen=True, slots=True)
class Release:
    """One act of releasing content of a commit.

    Attributes:
        commit: whose content.
        paths: the files whose content was released.
        policy: by which policy, as on the command line.
        time_s: when, in seconds since 1970.
        blobs: the manifest of each of the paths, in their order; ``add_releases`` fills it in.
    """

    commit: GitId
    paths: tuple[str, ...]
    policy: str
    time_s: int
    blobs: tuple[GitId, ...] = ()

    @property
    def keeps_model(self) -> bool:
        """Whether the policy released only what is not the model."""
        return _WEIGHTS_ONLY in self.policy.split()


def read_releases(context: Context) -> dict[GitId, tuple[Release, ...]]:
    """Return commit → its acts of releasing, oldest first; damaged records are left out.

    To leave one out is safe: what nobody released is kept.

    Raises:
        FormatError: the notes cannot be listed.
    """
    tip = context.history.find_ref(RELEASED_REF)
    if tip is None:
        return {}
    known = context.releases_seen
    if known is None or known[0] != tip:
        found: dict[GitId, tuple[Release, ...]] = {}
        for commit, note in context.history.read_notes(RELEASED_REF).items():
            with contextlib.suppress(FormatError):
                releases = _read_note(context, commit, note)
                if releases:
                    found[commit] = releases
        known = context.releases_seen = (tip, found)
    return known[1]


def released_commits(context: Context) -> frozenset[GitId]:
    """Return the commits that have a release record, from the names of the notes alone.

    Raises:
        FormatError: the notes cannot be listed.
    """
    return frozenset(context.history.read_notes(RELEASED_REF))


def find_release(context: Context, commit: GitId) -> Release | None:
    """Return all that was released of a commit as one, dated by the latest act, or None."""
    try:
        notes = _find_notes(context)
        note = None if notes is None else notes.find(commit)
        releases = () if note is None else _read_note(context, commit, note)
    except FormatError:
        return None  # fsck tells of it; a log is not the place to fail
    return join_releases(releases)


def join_releases(releases: Sequence[Release]) -> Release | None:
    """Return several acts of releasing of one commit as one, with policy and time of the last."""
    if not releases:
        return None
    paths = tuple(sorted({path for release in releases for path in release.paths}))
    model_stays = all(release.keeps_model for release in releases)
    last = max(releases, key=lambda one: (one.keeps_model == model_stays, one.time_s))
    return replace(last, paths=paths, blobs=())


def check_releases(context: Context) -> Iterator[tuple[GitId, str]]:
    """Yield (commit, what is wrong) for every damaged release record."""
    for commit, note in context.history.read_notes(RELEASED_REF).items():
        try:
            _read_note(context, commit, note)
        except FormatError as error:
            yield commit, error.message


def add_releases(context: Context, releases: Iterable[Release]) -> None:
    """Record acts of releasing, durably; what was recorded before stays.

    Raises:
        FormatError: a commit is damaged.
    """
    added: dict[GitId, list[Release]] = defaultdict(list)
    for release in releases:
        if release.paths:
            added[release.commit].append(_with_blobs(context, release))
    if not added:
        return
    with context.history.no_sweep(), context.history.lock():
        notes = context.history.read_notes(RELEASED_REF)
        changes: dict[GitId, bytes | None] = {}
        for commit, many in added.items():
            old = _read_text(context, commit, notes[commit]) if commit in notes else ""
            parts = [*_paragraphs(old), *map(_encode_release, many)]
            changes[commit] = _join(parts)
        _write(context, changes, f"released content of {len(changes)} commits")


def drop_releases(context: Context, gone: Mapping[GitId, Iterable[str]]) -> None:
    """Take files out of the release records: their content is back.

    Args:
        context: the repository.
        gone: commit → paths.

    Raises:
        FormatError: the notes cannot be listed.
    """
    with context.history.no_sweep(), context.history.lock():
        notes = context.history.read_notes(RELEASED_REF)
        changes: dict[GitId, bytes | None] = {}
        for commit, paths in gone.items():
            if commit in notes:
                text = _read_text(context, commit, notes[commit])
                parts = _without(commit, text, frozenset(paths))
                changes[commit] = _join(parts) if parts else None
        if changes:
            _write(context, changes, f"content of {len(changes)} commits is back")


def _find_notes(context: Context) -> NoteFinder | None:
    tip = context.history.find_ref(RELEASED_REF)
    if tip is None:
        return None
    known = context.notes_seen
    if known is None or known[0] != tip:
        notes = context.history.find_notes(RELEASED_REF)
        if notes is None:
            return None
        known = context.notes_seen = (tip, notes)
    return known[1]


def _write(context: Context, changes: Mapping[GitId, bytes | None], message: str) -> None:
    context.history.write_notes(RELEASED_REF, changes, message=message, stamp=context.stamp())


def _with_blobs(context: Context, release: Release) -> Release:
    if len(release.blobs) == len(release.paths):
        return release
    tree = context.history.read_tree(release.commit)
    paths = tuple(path for path in release.paths if path in tree)
    return replace(release, paths=paths, blobs=tuple(tree[path].blob for path in paths))


def _read_note(context: Context, commit: GitId, note: GitId) -> tuple[Release, ...]:
    return parse_note(commit, _read_text(context, commit, note))


def _read_text(context: Context, commit: GitId, note: GitId) -> str:
    size_bytes = context.history.find_blob_size(note)
    if size_bytes is None or size_bytes > MAX_NOTE_BYTES:
        raise FormatError(f"release record of commit {commit} is missing or over the limit")
    try:
        return context.history.read_blob(note).decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"release record of commit {commit} is no text") from error


def encode_note(releases: Iterable[Release]) -> bytes:
    """Return the text of a note."""
    return _join(map(_encode_release, releases))


def parse_note(commit: GitId, text: str) -> tuple[Release, ...]:
    """Return the acts of releasing that a note tells of.

    Raises:
        FormatError: a paragraph that begins as one of ours and does not go on so.
    """
    found = (_parse_release(commit, part) for part in _paragraphs(text) if _is_ours(part))
    return tuple(release for release in found if release is not None)


def _join(parts: Iterable[str]) -> bytes:
    return ("\n\n".join(parts) + "\n").encode("utf-8", "surrogatepass")


def _paragraphs(text: str) -> list[str]:
    return [part.strip("\n") for part in re.split(r"\n[ \t]*\n", text) if part.strip()]


def _is_ours(paragraph: str) -> bool:
    return paragraph.startswith(_RELEASED)


def _encode_release(release: Release) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(release.time_s))
    blobs = release.blobs or ("",) * len(release.paths)
    files = (
        f"{_FILE_KEY}{json.dumps(path)} {blob}".rstrip()
        for path, blob in zip(release.paths, blobs, strict=True)
    )
    policy = " ".join(release.policy.split())
    return "\n".join((f"{_RELEASED}{moment}", f"{_POLICY}{policy}".rstrip(), *files))


def _parse_release(commit: GitId, paragraph: str) -> Release | None:
    first, *lines = paragraph.split("\n")
    time_s = _parse_date(commit, first.removeprefix(_RELEASED).strip())
    policy = ""
    files: dict[str, GitId] = {}
    for line in lines:
        if line.startswith(_POLICY):
            policy = line.removeprefix(_POLICY).strip()
        elif line.startswith(_FILE_KEY):
            path, blob = _parse_file(commit, line.removeprefix(_FILE_KEY).strip())
            files[path] = blob
    if not files:
        return None
    blobs = tuple(files.values()) if all(files.values()) else ()
    return Release(commit, tuple(files), policy, time_s, blobs)


def _parse_date(commit: GitId, text: str) -> int:
    try:
        if _DATE.fullmatch(text):
            return int(datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError):
        pass
    raise FormatError(f"release record of commit {commit} has no date")


def _parse_file(commit: GitId, text: str) -> tuple[str, GitId]:
    match = _FILE.fullmatch(text)
    try:
        path = json.loads(match[1]) if match else ""
    except ValueError:
        path = ""
    if match is None or not path:
        raise FormatError(f"release record of commit {commit} names a malformed path")
    return path, GitId(match[2] or "")


def _without(commit: GitId, text: str, paths: frozenset[str]) -> list[str]:
    parts: list[str] = []
    for part in _paragraphs(text):
        release = None
        if _is_ours(part):
            with contextlib.suppress(FormatError):
                release = _parse_release(commit, part)
        if release is None:
            parts.append(part)
            continue
        left = [place for place, path in enumerate(release.paths) if path not in paths]
        if left:
            kept = tuple(release.paths[place] for place in left)
            blobs = tuple(release.blobs[place] for place in left) if release.blobs else ()
            parts.append(_encode_release(replace(release, paths=kept, blobs=blobs)))
    return parts

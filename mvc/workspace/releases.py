"""Release records: which files of which commits were released, when, and by which policy.

They are notes below ``refs/notes/released``, one paragraph per act of releasing. The path is a JSON
string; after it comes the manifest that was released:

    Released: 2026-11-20T16:00:00Z
    Policy: --keep-last 5 --keep-every 1000
    File: "model.safetensors" 9b1f6c0e8f0f2f0a9f5d6f7b1c0d2e3f4a5b6c7d

A record does not say that the content is gone: another commit may still need it, or it came back.
The chunks decide that. This module is part of ``log`` and loads nothing heavy.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mvc.errors import FormatError
from mvc.ids import GitId
from mvc.workspace.context import RELEASED_REF, STORE_DIR_NAME, Context
from mvc.workspace.notebook import Notebook, NoteKind, find_time, split_paragraphs, time_text

_WEIGHTS_ONLY = "--weights-only"
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
        blobs: the manifest of each path, in the same order; ``add_releases`` fills it in.
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


def encode_release(release: Release) -> str:
    """Return the paragraph of one act of releasing."""
    import json  # noqa: PLC0415  as below

    blobs = release.blobs or ("",) * len(release.paths)
    files = (
        f"{_FILE_KEY}{json.dumps(path)} {blob}".rstrip()
        for path, blob in zip(release.paths, blobs, strict=True)
    )
    policy = " ".join(release.policy.split())
    first = f"{_RELEASED}{time_text(release.time_s)}"
    return "\n".join((first, f"{_POLICY}{policy}".rstrip(), *files))


def parse_releases(commit: GitId, text: str) -> tuple[Release, ...]:
    """Return the acts of releasing in a note."""
    parts = (part for part in split_paragraphs(text) if part.startswith(_RELEASED))
    found = (_parse_release(commit, part) for part in parts)
    return tuple(release for release in found if release is not None)


RELEASES = NoteKind(
    RELEASED_REF, "release record", parse_releases, max_bytes=16 * 2**20, is_utf8=True
)


def _parse_release(commit: GitId, paragraph: str) -> Release | None:
    first, *lines = paragraph.split("\n")
    time_s = find_time(first.removeprefix(_RELEASED).strip())
    if time_s is None:
        raise FormatError(f"release record of commit {commit} has no date")
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


def _parse_file(commit: GitId, text: str) -> tuple[str, GitId]:
    import json  # noqa: PLC0415  most histories have released nothing

    match = _FILE.fullmatch(text)
    try:
        path = json.loads(match[1]) if match else ""
    except ValueError:
        path = ""
    if match is None or not path:
        raise FormatError(f"release record of commit {commit} names a malformed path")
    return path, GitId(match[2] or "")


def release_notes(context: Context) -> Notebook[Release]:
    """Return the release records of a repository."""
    return context.notebook(RELEASES)


def read_releases(context: Context) -> Mapping[GitId, tuple[Release, ...]]:
    """Return commit → its acts of releasing, oldest first; damaged records are left out.

    Leaving one out is safe: what was not released is kept.
    """
    return release_notes(context).read()


def find_release(context: Context, commit: GitId) -> Release | None:
    """Return all that was released of a commit as one, dated by the latest act, or None."""
    with contextlib.suppress(FormatError):  # fsck reports it; a log is not the place to fail
        return join_releases(release_notes(context).find(commit))
    return None


def join_releases(releases: Sequence[Release]) -> Release | None:
    """Return several acts of releasing of one commit as one, with policy and time of the last."""
    if not releases:
        return None
    paths = tuple(sorted({path for release in releases for path in release.paths}))
    model_stays = all(release.keeps_model for release in releases)
    last = max(releases, key=lambda release: (release.keeps_model == model_stays, release.time_s))
    return replace(last, paths=paths, blobs=())


def add_releases(context: Context, releases: Iterable[Release]) -> None:
    """Record acts of releasing, durably; what was recorded before stays."""
    added: dict[GitId, list[str]] = defaultdict(list)
    for release in releases:
        if len(release.blobs) < len(release.paths):
            tree = context.history.read_tree(release.commit)
            paths = tuple(path for path in release.paths if path in tree)
            release = replace(release, paths=paths, blobs=tuple(tree[path].blob for path in paths))  # noqa: PLW2901  completed
        if release.paths:
            added[release.commit].append(encode_release(release))
    if not added:
        return
    notes = release_notes(context)
    with context.history.no_sweep(), context.history.lock():
        changes = {commit: [*notes.find_paragraphs(commit), *new] for commit, new in added.items()}
        message = f"released content of {len(changes)} commits"
        notes.write(changes, message=message, stamp=context.stamp())


def drop_releases(context: Context, gone: Mapping[GitId, Iterable[str]]) -> None:
    """Take files (commit → paths) out of the release records: their content is back."""
    notes = release_notes(context)
    with context.history.no_sweep(), context.history.lock():
        changes = {
            commit: _without(commit, notes.find_paragraphs(commit), frozenset(paths))
            for commit, paths in gone.items()
            if notes.find_note(commit) is not None
        }
        if changes:
            message = f"content of {len(changes)} commits is back"
            notes.write(changes, message=message, stamp=context.stamp())


def _without(commit: GitId, paragraphs: Iterable[str], paths: frozenset[str]) -> list[str]:
    parts: list[str] = []
    for part in paragraphs:
        release = None
        if part.startswith(_RELEASED):
            with contextlib.suppress(FormatError):
                release = _parse_release(commit, part)
        if release is None:
            parts.append(part)
            continue
        left = [place for place, path in enumerate(release.paths) if path not in paths]
        if left:
            kept = tuple(release.paths[place] for place in left)
            blobs = tuple(release.blobs[place] for place in left) if release.blobs else ()
            parts.append(encode_release(replace(release, paths=kept, blobs=blobs)))
    return parts


def find_clone_fault(context: Context) -> tuple[str, str] | None:
    """Return what a clone by stock Git left behind that may explain missing content, and what to do.

    Git clones neither notes, which say what was released, nor anything that is not its own.
    """
    if (context.git_dir / "remotes").is_dir():
        return None  # not by stock Git
    config = context.history.config.read()
    remotes = [key.split(".")[1:-1] for key in config if re.fullmatch(r"remote\..+\.url", key)]
    if not remotes:
        return None
    name = ".".join(remotes[0])
    url = config[f"remote.{name}.url"]
    if not context.here.packs():
        return (
            f"this is a clone of {url}, and Git clones no chunks",
            f"copy the folder {url}/{STORE_DIR_NAME} to {context.git_dir}",
        )
    if context.history.find_ref(RELEASED_REF) is None:
        return (
            f"this is a clone of {url} without its Git notes: what was pruned there looks lost",
            f"git --git-dir={context.git_dir} fetch {name} '+refs/notes/*:refs/notes/*'",
        )
    return None

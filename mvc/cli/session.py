"""Opening the repository, and telling revisions from paths."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from mvc.cli.output import say_last, warn
from mvc.cli.parameters import CommandUsageError
from mvc.errors import NotFoundError, UsageError
from mvc.history.revisions import split_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.repo import Repo

_DASHES = 'write "--" before a path that is not in the worktree'


def open_repo() -> Repo:
    """Open the current folder's repository."""
    from mvc.repo import Repo

    def warn_interrupted() -> None:
        if repo.is_interrupted:  # nothing has finished it meanwhile
            warn('a checkout was interrupted and is not finished yet: "mvc status" finishes it')

    repo = Repo.open()
    if repo.is_interrupted:
        say_last(warn_interrupted)
    return repo


def to_paths(names: Sequence[str]) -> list[str]:
    """Return paths as the user wrote them, seen from the current folder, as absolute paths."""
    if "" in names:
        raise UsageError("a path must not be empty", hint='"." is the current folder')
    folder = os.getcwd()
    return [os.path.join(folder, name) for name in names]


def shown_path(repo: Repo, path: str) -> str:
    """Return a repository path as seen from the current folder."""
    return os.path.relpath(repo.worktree / path)


def check_revision(repo: Repo, text: str) -> None:
    """Check that everything in a revision, ``A..B``, ``A...B`` or ``^A`` exists."""
    for revision in _ends_of(text):
        repo.resolve(revision)


def _ends_of(text: str) -> Sequence[str]:
    parts = split_range(text)
    return (parts[0], parts[2]) if parts else (text.removeprefix("^"),)


def split_revision(
    repo: Repo, names: list[str] | None, *, prefer_revision: bool = False
) -> tuple[str | None, list[str]]:
    """Return (revision or None, absolute paths) of arguments with at most one revision.

    ``prefer_revision`` takes a single name that is a path as well for the revision.
    """
    if prefer_revision and names and len(names) == 1:
        names = [*names, "--"] if is_revision(repo, names[0]) else names
    revisions, paths = split_revisions(repo, names)
    if len(revisions) > 1:
        raise CommandUsageError(f"expected one revision, not {len(revisions)}")
    return revisions[0] if revisions else None, paths


def split_revisions(repo: Repo, names: list[str] | None) -> tuple[list[str], list[str]]:
    """Return (revisions, absolute paths) of arguments, with or without ``--``, as Git does."""
    names = names or []
    if "--" in names:
        position = names.index("--")
        for name in names[:position]:
            check_revision(repo, name)
        return names[:position], to_paths(names[position + 1 :])
    for position, name in enumerate(names):
        try:
            check_revision(repo, name)
        except NotFoundError as error:
            rest = names[position:]
            _check_paths(repo, names[:position], rest, error)
            return names[:position], to_paths(rest)
        if os.path.lexists(name):
            raise UsageError(
                f"{name!r} is both a revision and a path",
                hint=f'write "{name} --" for the revision, "-- {name}" for the path',
            )
    return names, []


def is_revision(repo: Repo, name: str) -> bool:
    """Return whether everything in a revision or range exists."""
    try:
        check_revision(repo, name)
    except NotFoundError:
        return False
    return True


def _check_paths(
    repo: Repo, revisions: Sequence[str], names: Sequence[str], error: NotFoundError
) -> None:
    """Check that names are paths here, or in one of the revisions before them."""
    for name in names:
        if _is_path(repo, revisions, name):
            continue
        if name is not names[0]:
            hint = "revisions come before paths" if is_revision(repo, name) else _DASHES
            raise NotFoundError(f"path {name!r} does not exist", hint=hint) from error
        if error.message != f"revision {name!r} does not exist":
            raise error
        known = error.hint or 'see "mvc branch", "mvc tag" and "mvc log";'
        raise NotFoundError(
            f"{name!r} is neither a revision nor a path", hint=f"{known} {_DASHES}"
        ) from error


def _is_path(repo: Repo, revisions: Sequence[str], name: str) -> bool:
    import glob

    if os.path.lexists(name) or glob.has_magic(name):
        return True
    paths = to_paths([name])
    if repo.diff(paths=paths, with_tensors=False):
        return True  # tracked, but removed from the worktree
    for text in revisions:
        for revision in _ends_of(text):
            with contextlib.suppress(NotFoundError):
                return bool(repo.ls(revision, paths=paths))
    return False


def parse_place(repo: Repo, text: str) -> tuple[str, str]:
    """Return (revision, path) of ``REV:PATH``, or HEAD and the path if there is no revision.

    As in Git, the path after a revision starts at the top of the worktree unless it begins with
    ``./`` or ``../``.
    """
    revision, colon, path = text.partition(":")
    if not colon or os.path.lexists(text):
        return "HEAD", to_paths([text])[0]
    if not path:
        raise UsageError(f"{text!r} names no path", hint='"mvc ls REV" lists the paths')
    repo.resolve(revision or "HEAD")
    is_relative = path.startswith(("./", "../"))
    return revision or "HEAD", to_paths([path])[0] if is_relative else path


def find_previous(repo: Repo) -> str:
    """Return the branch or commit that HEAD was on before the last switch: ``-``."""
    # The reflog is where Git remembers it too, so a switch by stock Git counts.
    for entry in repo.reflog("HEAD"):
        if entry.switch is not None:
            return entry.switch[0]
    raise NotFoundError("there is no previous branch", hint="HEAD has not been switched yet")

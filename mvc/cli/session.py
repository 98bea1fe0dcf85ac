"""Opening the repository, who acts on it, and telling revisions from paths."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import TYPE_CHECKING

from mvc.cli.options import CommandUsageError
from mvc.errors import MvcError, NotFoundError, UsageError
from mvc.history.revisions import split_range

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc.history.values import Identity
    from mvc.repo import Repo


def open_repo(*, writes: bool = False) -> Repo:
    """Open the current folder's repository; a command that ``writes`` needs the user's name."""
    from mvc.repo import Repo

    repo = Repo.open()
    if writes:
        repo.identity, _ = find_identity(repo.config())
    return repo


def find_identity(
    settings: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> tuple[Identity, bool]:
    """Return who acts, in Git's order of places, and whether it was guessed from the login name.

    The library never looks at the environment or the home folder; it takes an Identity.
    """
    import socket

    from mvc.history.values import Identity

    name = environment.get("GIT_AUTHOR_NAME") or settings.get("user.name")
    email = environment.get("GIT_AUTHOR_EMAIL") or settings.get("user.email")
    if not name or not email:
        user_name, user_email = _read_user_config(environment)
        name, email = name or user_name, email or user_email or environment.get("EMAIL")
    is_guessed = not name or not email
    login = _login() if is_guessed else ""
    return Identity(name or login, email or f"{login}@{socket.gethostname()}"), is_guessed


def _read_user_config(environment: Mapping[str, str]) -> tuple[str | None, str | None]:
    from mvc.history.config import read_user

    try:
        return read_user(config_paths(environment))
    except MvcError:
        return None, None  # another program's broken file must not keep anyone from committing


def config_paths(environment: Mapping[str, str]) -> list[Path]:
    """Return the user's Git config files in the order in which Git reads them; later ones win."""
    if environment.get("GIT_CONFIG_GLOBAL"):
        return [Path(environment["GIT_CONFIG_GLOBAL"])]
    home = environment.get("HOME")
    config_home = environment.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else None)
    paths = [Path(config_home, "git", "config")] if config_home else []
    if home:
        paths.append(Path(home, ".gitconfig"))
    return paths


def _login() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "nobody"  # in a container, the user may have no name


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
    parts = split_range(text)
    for revision in (parts[0], parts[2]) if parts else (text.removeprefix("^"),):
        repo.resolve(revision)


def split_revision(repo: Repo, names: list[str] | None) -> tuple[str | None, list[str]]:
    """Return (revision or None, absolute paths) of arguments with at most one revision."""
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
            _check_paths(repo, rest, error)
            return names[:position], to_paths(rest)
    return names, []


def _check_paths(repo: Repo, names: Sequence[str], error: NotFoundError) -> None:
    for name in names:
        if os.path.lexists(name) or glob.has_magic(name):
            continue
        if repo.diff(paths=to_paths([name]), with_tensors=False):
            continue  # tracked, but removed from the worktree
        if name is not names[0]:
            raise NotFoundError(f"path {name!r} does not exist") from error
        if error.message != f"revision {name!r} does not exist":
            raise error
        raise NotFoundError(
            f"{name!r} is neither a revision nor a path",
            hint=error.hint or 'see "mvc branch", "mvc tag" and "mvc log"',
        ) from error


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

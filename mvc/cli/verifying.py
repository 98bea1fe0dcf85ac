"""Which two models a line of verify names."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from mvc.cli.comparing import open_repo_or_say
from mvc.cli.parameters import CommandUsageError
from mvc.cli.session import is_revision, to_paths
from mvc.errors import MvcError, RepositoryNotFoundError
from mvc.history.revisions import split_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.repo import Repo

    Operand = str | None


def find_models(
    names: Sequence[str], *, insist: bool, alone: bool
) -> tuple[Repo | None, Operand, Operand] | None:
    """Return the repository and the two models that a line names; None is the worktree.

    Return None if the line is of the form ``REV PATH...`` and nothing in it asks for more.
    """
    parts = split_range(names[0]) if len(names) == 1 else None
    if parts is not None and parts[1] == ".." and not os.path.lexists(names[0]):
        names = [parts[0], parts[2]]
    most = 1 if alone else 2
    try:
        repo = open_repo_or_say()
    except RepositoryNotFoundError:
        if len(names) != most:
            raise
        return None, names[0], names[1] if len(names) > 1 else None
    if "--" in names or len(names) > most:
        if insist:
            what = "one model is run in several ways" if alone else "two models are compared"
            raise CommandUsageError(f"{what}; name a file as REV:PATH")
        return None
    if len(names) > 1:
        return _find_pair(repo, *names, insist=insist)
    if names:
        return _find_partner(repo, names[0], insist=insist)
    return (repo, "HEAD", None) if insist else None


def _find_pair(
    repo: Repo, old: str, new: str, *, insist: bool
) -> tuple[Repo, Operand, Operand] | None:
    if is_revision(repo, old) and _is_stored(repo, old, new):
        return (repo, f"{old}:{_place(repo, new)}", _as_path(new)) if insist else None
    if not insist and all(_is_stored(repo, "HEAD", name) for name in (old, new)):
        return None
    return repo, old, new


def _find_partner(repo: Repo, name: str, *, insist: bool) -> tuple[Repo, Operand, Operand] | None:
    """Return what one model is compared with: the same file, or all, of the worktree or HEAD."""
    revision, colon, path = name.partition(":")
    if is_revision(repo, name):
        return (repo, name, None) if insist else None
    if os.path.lexists(name):
        if not insist:
            return None
        if _is_stored(repo, "HEAD", name):
            return repo, f"HEAD:{_place(repo, name)}", _as_path(name)
        return repo, name, None
    if colon and is_revision(repo, revision or "HEAD"):
        live = repo.worktree / path
        return repo, name, _as_path(os.path.relpath(live)) if live.exists() else None
    return (repo, name, None) if insist else None


def _is_stored(repo: Repo, revision: str, name: str) -> bool:
    """Return whether a revision holds a path of the current folder."""
    with suppress(MvcError):
        return bool(repo.ls(revision, paths=to_paths([name])))
    return False


def _place(repo: Repo, name: str) -> str:
    return os.path.relpath(to_paths([name])[0], repo.worktree)


def _as_path(name: str) -> str:
    """Return a path so that nobody takes it for a revision."""
    return name if os.path.isabs(name) else os.path.join(".", name)

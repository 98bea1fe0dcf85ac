"""What a ``checkpoint_id`` means: a repository, a revision or branch in it, or the name of a save."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from mvc import NotFoundError, Repo, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc import Identity

    StrPath: TypeAlias = str | os.PathLike[str]

_STEP = re.compile(r"(?:.*[^0-9A-Za-z]|.*step)?([0-9]{1,18})", re.IGNORECASE | re.DOTALL)
_GIT_DIR = ".mvc"


@dataclass(frozen=True, slots=True)
class Target:
    """Where to save to or load from; ``place`` is the branch or revision, ``name`` that of the save."""

    repository: str | None
    identity: Identity | None = None
    place: str | None = None
    name: str | None = None

    @classmethod
    def of(cls, repository: StrPath | Repo | None, place: str | None) -> Target:
        """Return the target that a user named."""
        if isinstance(repository, Repo):
            return cls(os.fspath(repository.worktree), repository.identity, place)
        found = None if repository is None else os.path.abspath(os.fspath(repository))
        return cls(found, None, place)

    def point(self, checkpoint_id: StrPath | int | None) -> Target:
        """Return the target after a ``checkpoint_id``: ``REPOSITORY``, ``REPOSITORY@PLACE`` or a name."""
        if checkpoint_id is None or checkpoint_id == "":
            return self
        text = checkpoint_id if isinstance(checkpoint_id, int) else os.fspath(checkpoint_id)
        path, at, place = str(text).rpartition("@")
        if at and _is_repository(path):
            return replace(self, repository=os.path.abspath(path), place=place, name=None)
        if _is_repository(str(text)):
            return replace(self, repository=os.path.abspath(str(text)), name=None)
        if self.repository is None:
            raise UsageError(
                f"checkpoint_id {str(text)!r} is no repository",
                hint='name one: MvcWriter("runs/gpt"), or make it: mvc init runs/gpt',
            )
        return replace(self, name=str(text))

    @property
    def step(self) -> int | None:
        """The number at the end of the name."""
        found = None if self.name is None else _STEP.fullmatch(self.name)
        return None if found is None else int(found[1])

    @property
    def path(self) -> str:
        """The folder of the repository; UsageError if none is named."""
        if self.repository is None:
            raise UsageError(
                "no repository is named",
                hint='MvcWriter("runs/gpt"), or a checkpoint_id that is one',
            )
        return self.repository

    def open(self, *, is_made: bool = False) -> Repo:
        """Open the repository; if it ``is_made``, one that is missing is."""
        if is_made:
            with self.in_turn():
                if not _is_repository(self.path):
                    Repo.init(self.path).close()
        return Repo.open(self.path, identity=self.identity)

    @contextlib.contextmanager
    def in_turn(self) -> Iterator[None]:
        """Have the ranks of one machine make and change their repository one after the other."""
        try:
            os.makedirs(self.path, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be a folder: {error.strerror}") from error
        try:
            with contextlib.suppress(OSError):  # NFS locks only files that are open for writing
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def resolve(self, repo: Repo) -> str:
        """Return the commit that a target to load from means: its name as a revision, or its step."""
        place = self.place or "HEAD"
        if self.name is None:
            return repo.resolve(place)
        try:
            return repo.resolve(self.name)
        except NotFoundError:
            if self.step is None:
                raise
        return repo.resolve(f"{place}@{self.step}")

    def __str__(self) -> str:
        """Return it as a checkpoint_id."""
        parts = (self.repository or "", self.name or self.place)
        return "@".join(part for part in parts if part)


def _is_repository(path: str) -> bool:
    return os.path.isdir(os.path.join(path, _GIT_DIR))


def is_target(checkpoint_id: object) -> bool:
    """Return whether something may be a ``checkpoint_id``: a line of text, or a path."""
    if not isinstance(checkpoint_id, (str, os.PathLike)):
        return False
    text = os.fspath(checkpoint_id)
    return isinstance(text, str) and bool(text.strip()) and not {"\0", "\n"} & set(text)

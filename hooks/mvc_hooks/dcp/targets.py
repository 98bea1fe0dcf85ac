"""What a ``checkpoint_id`` means: a repository, a revision or branch in it, or the name of a save.

The ranks have one folder that all of them see, or one on each machine, with a store in common. Rank 0 leaves a
mark in its repository and says so along with its plan; a rank that sees the mark shares the folder, and one that
does not sends what it stores to the store of both. A rank without a repository gets one for that store,
also before a load, for which rank 0 says in the store of the process group which it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from torch import distributed

from mvc import NotFoundError, Repo, RepositoryNotFoundError, UsageError
from mvc.training import RunStore, Whereabouts, choose_senders
from mvc_hooks.ranks.repositories import STORE, CommonStore, catch_up, look, make_repository

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc import Identity

    StrPath: TypeAlias = str | os.PathLike[str]

_STEP = re.compile(r"(?:.*[^0-9A-Za-z]|.*step)?([0-9]{1,18})", re.IGNORECASE | re.DOTALL)
_GIT_DIR = ".mvc"
_BRANCH = re.compile("[@~^:]")
_COMMIT = re.compile("[0-9a-f]{40}")
_TOLD = "mvc/dcp/"
_NOWHERE = Whereabouts(sees_mark=False, store=None)
_PATIENCE = timedelta(seconds=60)  # ranks begin a load together


@dataclass(frozen=True, slots=True)
class SaveTarget:
    """Where to save to or load from; ``place`` is the branch or revision, ``name`` that of the save."""

    repository: str | None
    identity: Identity | None = None
    place: str | None = None
    name: str | None = None

    @classmethod
    def of(cls, repository: StrPath | Repo | None, place: str | None) -> SaveTarget:
        """Return the target that a user named."""
        if isinstance(repository, Repo):
            return cls(os.fspath(repository.worktree), repository.identity, place)
        folder = None if repository is None else os.path.abspath(os.fspath(repository))
        return cls(folder, None, place)

    def point(self, checkpoint_id: StrPath | int | None) -> SaveTarget:
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
                f"checkpoint_id {str(text)!r} is not a repository",
                hint='name one: MvcWriter("runs/gpt"), or make it: mvc init runs/gpt',
            )
        return replace(self, name=str(text))

    @property
    def step(self) -> int | None:
        """The number at the end of the name."""
        match = None if self.name is None else _STEP.fullmatch(self.name)
        return None if match is None else int(match[1])

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
        """Let the ranks of one machine make and change their repository one after the other."""
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


class Home(msgspec.Struct, frozen=True, array_like=True):
    """What rank 0 says of its repository: the mark in it, and the store that has its content."""

    mark: str
    place: str | None
    store: CommonStore | None


class RepositoryMarks:
    """Marks that this process has left in repositories, one in each, until its end."""

    def __init__(self) -> None:
        self._held = contextlib.ExitStack()
        self._marks: dict[tuple[str, str | None], str] = {}

    def describe(self, target: SaveTarget) -> Home:
        """Return what the other ranks need to know of the repository that rank 0 saves to."""
        with target.open(is_made=True) as repo:
            key = str(repo.worktree), target.place
            mark = self._marks.get(key, "")
            whereabouts = RunStore(repo).look_for_mark(mark) if mark else _NOWHERE
            if not whereabouts.sees_mark:
                follow_store(repo, target)
                mark = self._marks[key] = self._held.enter_context(RunStore(repo).leave_mark())
                whereabouts = RunStore(repo).look_for_mark(mark)
        return Home(mark, whereabouts.store, look(target.path).store)

    def close(self) -> None:
        """Remove them."""
        self._marks.clear()
        with contextlib.suppress(OSError):
            self._held.close()


def open_home(target: SaveTarget, rank: int, home: Home | None) -> tuple[Repo, bool]:
    """Open the repository of a rank; return it, and whether the rank sends what it stores.

    Raises:
        UsageError: it has neither the folder nor the store of rank 0.
    """
    if rank == 0 or home is None:
        return target.open(), False
    whereabouts = _find(target, home.mark)
    if not whereabouts.sees_mark:
        with target.in_turn():
            make_repository(target.path, home.store)
        whereabouts = _find(target, home.mark)
    first = Whereabouts(sees_mark=True, store=home.place)
    sends = choose_senders([*[first] * rank, whereabouts])[rank]
    return target.open(), sends


def _find(target: SaveTarget, mark: str) -> Whereabouts:
    try:
        with target.open() as repo:
            return RunStore(repo).look_for_mark(mark)
    except RepositoryNotFoundError:
        return _NOWHERE


def prepare_load(target: SaveTarget) -> None:
    """Make a repository to load from, and take its branch to where the machines of a run have left it.

    A process by itself reads what is here. A rank waits for rank 0 only if it has no repository, and for what
    rank 0 says of the same path: the process group keeps what was said of others.
    """
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return
    group_store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001  the only way to reach it
    mine, key = look(target.path), _TOLD + os.path.relpath(target.path)
    if distributed.get_rank() == 0:
        group_store.set(key, msgspec.json.encode(mine.store).decode())
    elif mine.is_new:
        with contextlib.suppress(distributed.DistStoreError):  # rank 0 does not load
            group_store.wait([key], _PATIENCE)
            store = msgspec.json.decode(group_store.get(key), type=CommonStore | None)
            with target.in_turn():
                make_repository(target.path, store)
    with contextlib.suppress(RepositoryNotFoundError), target.open() as repo:
        follow_store(repo, target)


def follow_store(repo: Repo, target: SaveTarget) -> None:
    """Take the branch of a target to where the store has it, and bring the commit that it names."""
    if STORE not in repo.config():
        return
    names = [_BRANCH.split(text, 1)[0] for text in (target.place, target.name) if text is not None]
    commits = [name for name in names if _COMMIT.fullmatch(name)]
    branch = repo.head.branch if target.place is None or names[0] in ("", "HEAD") else names[0]
    with target.in_turn():
        if branch is not None and branch not in commits:
            catch_up(repo, branch)
        for commit in commits:
            with contextlib.suppress(NotFoundError):  # who resolves it says so
                RunStore(repo).bring_commit(commit)

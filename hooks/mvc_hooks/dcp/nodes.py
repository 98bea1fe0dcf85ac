"""The repositories of the ranks: one folder that all of them see, or one on each machine, with a store in common.

Rank 0 leaves a mark in its repository and says so along with its plan; who sees it shares its folder, and who
does not sends what it stores to the store of both. A rank without a repository gets one for that store,
also before a load, for which rank 0 says in the store of the process group which it is.
"""

from __future__ import annotations

import contextlib
import os
import re
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
from torch import distributed

from mvc import NotFoundError, RepositoryNotFoundError
from mvc.training import RunStore, Whereabouts, choose_senders
from mvc_hooks.ranks.repositories import STORE, Store, catch_up, look, make_repository

if TYPE_CHECKING:
    from mvc import Repo
    from mvc_hooks.dcp.targets import Target

_BRANCH = re.compile("[@~^:]")
_COMMIT = re.compile("[0-9a-f]{40}")
_TOLD = "mvc/dcp/"
_NOWHERE = Whereabouts(sees_mark=False, store=None)
_PATIENCE = timedelta(seconds=60)
"""Ranks begin a load together."""


class Home(msgspec.Struct, frozen=True, array_like=True):
    """What rank 0 says of its repository: the mark in it, and the store that has its content."""

    mark: str
    place: str | None
    store: Store | None


class Marks:
    """Marks that this process has left in repositories, one in each, until its end."""

    def __init__(self) -> None:
        self._held = contextlib.ExitStack()
        self._marks: dict[tuple[str, str | None], str] = {}

    def describe(self, target: Target) -> Home:
        """Return what the other ranks need to know of the repository that rank 0 saves to."""
        with target.open(is_made=True) as repo:
            key = str(repo.worktree), target.place
            mark = self._marks.get(key, "")
            found = RunStore(repo).look_for_mark(mark) if mark else _NOWHERE
            if not found.sees_mark:
                follow_store(repo, target)
                mark = self._marks[key] = self._held.enter_context(RunStore(repo).leave_mark())
                found = RunStore(repo).look_for_mark(mark)
        return Home(mark, found.store, look(target.path).store)

    def close(self) -> None:
        """Remove them."""
        self._marks.clear()
        with contextlib.suppress(OSError):
            self._held.close()


def open_home(target: Target, rank: int, home: Home | None) -> tuple[Repo, bool]:
    """Open the repository of a rank; return it, and whether the rank sends what it stores.

    Raises:
        UsageError: it has neither the folder nor the store of rank 0.
    """
    if rank == 0 or home is None:
        return target.open(), False
    found = _find(target, home.mark)
    if not found.sees_mark:
        with target.in_turn():
            make_repository(target.path, home.store)
        found = _find(target, home.mark)
    first = Whereabouts(sees_mark=True, store=home.place)
    sends = choose_senders([*[first] * rank, found])[rank]
    return target.open(), sends


def _find(target: Target, mark: str) -> Whereabouts:
    try:
        with target.open() as repo:
            return RunStore(repo).look_for_mark(mark)
    except RepositoryNotFoundError:
        return _NOWHERE


def prepare_load(target: Target) -> None:
    """Have a repository here to load from, and its branch where the machines of a run have left it.

    A process by itself reads what is here. A rank waits for rank 0 only if it has no repository, and for what
    rank 0 says of the same path: the process group keeps what was said of others.
    """
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return
    told = distributed.distributed_c10d._get_default_store()  # noqa: SLF001  the only way to reach it
    mine, key = look(target.path), _TOLD + os.path.relpath(target.path)
    if distributed.get_rank() == 0:
        told.set(key, msgspec.json.encode(mine.store).decode())
    elif mine.is_new:
        with contextlib.suppress(distributed.DistStoreError):  # rank 0 does not load
            told.wait([key], _PATIENCE)
            store = msgspec.json.decode(told.get(key), type=Store | None)
            with target.in_turn():
                make_repository(target.path, store)
    with contextlib.suppress(RepositoryNotFoundError), target.open() as repo:
        follow_store(repo, target)


def follow_store(repo: Repo, target: Target) -> None:
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

"""The repositories of the ranks: one folder that all of them see, or one on each machine, and a store in common.

A rank that finds no repository, or one without anything in it, gets one for the store that rank 0 keeps its
content on, and rank 0 for that of the others: so a machine whose disk was replaced joins in again.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mvc import Repo, RepositoryNotFoundError, StorageError
from mvc.training import RunStore, choose_senders

if TYPE_CHECKING:
    import os

    from mvc.training import Whereabouts
    from mvc_hooks.ranks.group import Ranks

log = logging.getLogger("mvc_hooks")

STORE, _CHUNK_BYTES = "mvc.store", "mvc.chunkbytes"
_MADE = ("url", "content", "fetch")  # settings of a remote that are there as soon as it is


@dataclass(frozen=True, slots=True)
class CommonStore:
    """The store that has the content of a repository, and the settings that another one needs for it."""

    name: str
    url: str
    content_url: str | None
    settings: dict[str, str]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a rank finds at its path; ``is_new``: nothing, or a repository without anything in it."""

    is_new: bool
    store: CommonStore | None = None


def open_repository(path: str | os.PathLike[str], ranks: Ranks) -> tuple[Repo, bool]:
    """Open or create the repository of each rank; return it, and whether its writer sends what it stores.

    Raises:
        UsageError: a rank shares neither the folder nor the store of rank 0, or the path is not a folder.
        StorageError: the machine failed, or the store cannot be reached.
    """
    if ranks.is_alone:
        return Repo.init(path), False
    seen = ranks.ask_all(lambda: look(path))
    # If rank 0 has nothing itself, it goes on with the store of another rank.
    known = next((answer.store for answer in seen if answer.store is not None), None)
    known = known if seen[0].is_new else None
    first, store = ranks.ask_first(lambda: (make_repository(path, known), look(path).store))
    made = [first if ranks.is_first else None]
    if store is not None:  # by now those that share rank 0's folder see it
        seen = ranks.ask_all(lambda: look(path))
        made += [
            ranks.together(partial(make_repository, path, store if rank == ranks.rank else None))
            for rank in range(1, ranks.size)  # in turn, for several may be on one machine
            if seen[rank].is_new
        ]
        for line in ranks.merge(filter(None, made)):
            log.info("%s", line)

    def open_there(mark: str) -> tuple[Repo, Whereabouts]:
        repo = Repo.init(path)
        return repo, RunStore(repo).look_for_mark(mark)

    with contextlib.ExitStack() as until:
        mark = ranks.ask_first(lambda: until.enter_context(RunStore(Repo.init(path)).leave_mark()))
        repo, whereabouts = ranks.meet(lambda: open_there(mark))
    return repo, choose_senders(whereabouts)[ranks.rank]


def look(path: str | os.PathLike[str]) -> Seen:
    """Return what is at a path."""
    try:
        repo = Repo.open(path)
    except RepositoryNotFoundError:
        return Seen(is_new=True)
    if repo.worktree != Path(path).resolve():  # the repository of a folder above
        return Seen(is_new=True)
    config, remotes = repo.config(), repo.remotes.list()
    name = config.get(STORE)
    if name is None or name not in remotes:
        return Seen(not remotes and not repo.branches.list())
    url, content = remotes[name].url, remotes[name].content
    start = f"remote.{name}."
    settings = {
        key: value
        for key, value in config.items()
        if key == _CHUNK_BYTES or (key.startswith(start) and key.removeprefix(start) not in _MADE)
    }
    store = CommonStore(name, str(url), None if content is None else str(content), settings)
    return Seen(is_new=False, store=store)


def make_repository(path: str | os.PathLike[str], store: CommonStore | None) -> str | None:
    """Create a repository for a store, unless there is one with anything in it; return what was done."""
    if store is None or not look(path).is_new:
        return None
    repo = Repo.init(path)
    repo.remotes.add(store.name, store.url, store.content_url)
    for key, value in store.settings.items():
        repo.set_config(key, value)
    repo.set_config(STORE, store.name)
    return f"a new repository in {repo.worktree}, for what is on {store.url}"


def catch_up(repo: Repo, branch: str) -> None:
    """Take a branch to where other machines have left it on the store."""
    try:
        tip = RunStore(repo).catch_up(branch)
    except StorageError as error:
        log.warning("the run goes on from what is here, since its store is away: %s", error.message)
        return
    if tip is not None:
        log.info("branch %r goes on from %s, where the store has it", branch, tip[:10])

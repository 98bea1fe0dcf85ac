"""Where new files wait until they are renamed into place: scratch folders that die with their process.

Every process that prepares files for the worktree has its own folder below ``.mvc/tmp`` and holds a
lock on it. The kernel drops the lock when the process ends, however it ends, so a folder whose lock
is free is garbage, unless a journal still needs what is in it. Folders are made and swept only under
the repository's lock, so neither sees the other half-done.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mvc.chunkstore.parallel import for_each
from mvc.errors import ConflictError, CorruptionError, StorageError
from mvc.fs import (
    TEMP_SUFFIX,
    exclusive_lock,
    find_stat,
    folder_bytes,
    fsync_dir,
    fsync_file,
    is_locked,
    make_dirs,
)
from mvc.history.values import MODE_SYMLINK
from mvc.ids import GitId
from mvc.workspace.content import stage_file
from mvc.workspace.context import JOURNAL_NAME, Context
from mvc.workspace.journal import FileWrite, Was
from mvc.workspace.worktree import find_obstacle, walk_folders

if TYPE_CHECKING:
    from mvc.fs import FileStat


FOLDER = "tmp"
_LOCK = "lock"
_SYNC_THREADS = 8
_NAME = re.compile("[0-9a-f]{16}")


@contextlib.contextmanager
def staging_folder(git_dir: Path) -> Iterator[Path]:
    """Yield a new folder on the repository's file system; enter under the repository's lock.

    It is removed at the end, unless a journal may need it: ``sweep`` removes it then.
    """
    root = find_stat(git_dir / FOLDER)
    if root is not None and not root.is_directory:
        raise CorruptionError(f"{git_dir / FOLDER} is not a folder", hint="remove it")
    folder = git_dir / FOLDER / os.urandom(8).hex()
    make_dirs(folder)
    try:
        with exclusive_lock(folder / _LOCK):
            yield folder
    finally:
        if find_stat(git_dir / JOURNAL_NAME) is None:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def scratch_folder(context: Context) -> Iterator[Path]:
    """Yield a new folder for work that no journal knows; it is removed at the end."""
    with contextlib.ExitStack() as held:
        with context.history.lock():
            folder = held.enter_context(staging_folder(context.git_dir))
        held.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def sweep(git_dir: Path) -> None:
    """Remove the folders of dead processes; only under the lock."""
    for folder in find_dead(git_dir):
        with (
            contextlib.suppress(ConflictError, StorageError, OSError),
            exclusive_lock(folder / _LOCK, wait=False),
        ):
            shutil.rmtree(folder, ignore_errors=True)


def find_dead(git_dir: Path) -> list[Path]:
    """Return the scratch folders that no process holds and no journal may need."""
    root = git_dir / FOLDER
    stat = find_stat(root)  # what a link leads to is not ours to remove
    if stat is None or not stat.is_directory or find_stat(git_dir / JOURNAL_NAME) is not None:
        return []
    with os.scandir(root) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    ours = (root / name for name in names if _NAME.fullmatch(name))
    return [folder for folder in ours if not is_locked(folder / _LOCK)]


def stage_all(
    context: Context,
    writes: Sequence[FileWrite],
    folder: Path,
    stack: contextlib.ExitStack | None = None,
) -> tuple[FileWrite, ...]:
    """Stage the files to write, durably, and return the writes with their places.

    Files go next to their targets if those are not on the file system of ``folder``; ``stack`` removes
    these again, unless a journal needs them by then.
    """
    staged: list[FileWrite] = []
    for write in writes:
        place = _find_place(context, write.path, folder)
        path = stage_file(context, write.path, write.mode, GitId(write.blob), place, synced=False)
        # Relative, so that a repository that was moved after a crash still finds it.
        name, mark = os.path.relpath(path, context.worktree), stat_mark(find_stat(path))
        staged.append(msgspec.structs.replace(write, staged=name, staged_mark=mark))
        if place != folder and stack is not None:
            stack.callback(_forget, context, staged[-1])
    files = [context.worktree / write.staged for write in staged if write.mode != MODE_SYMLINK]
    # Once all is written, and several at a time: then a file system writes its own journal once
    # for many.
    for_each(files, object, _sync, threads=_SYNC_THREADS)
    for place in sorted({folder, *(path.parent for path in files)}):
        fsync_dir(place)
    return tuple(staged)


def _sync(path: Path, _: object) -> int:
    fsync_file(path)
    return 0


def _find_place(context: Context, path: str, folder: Path) -> Path:
    """Return the staging folder, or one next to the target if that is on another file system."""
    parent = (context.worktree / path).parent
    while find_obstacle(context.worktree, path) is not None or not parent.is_dir():
        parent, path = parent.parent, path.rpartition("/")[0]
    same_device = parent.stat().st_dev == folder.stat().st_dev
    return folder if same_device else parent


def _forget(context: Context, write: FileWrite) -> None:
    if find_stat(context.git_dir / JOURNAL_NAME) is None:
        (context.worktree / write.staged).unlink(missing_ok=True)


def stat_mark(stat: FileStat | None) -> Was | None:
    """Return what is remembered of a file before it is replaced; None for a folder."""
    return None if stat is None or stat.is_directory else Was(stat.size_bytes, stat.mtime_ns)


_LEFTOVER = re.compile(rf"([0-9a-f]{{16}}|reserve){TEMP_SUFFIX}")


@dataclass(frozen=True, slots=True)
class Leftover:
    """A temporary file or scratch folder of a process that is gone."""

    path: Path
    size_bytes: int


def list_leftovers(context: Context) -> list[Leftover]:
    """Return what may go; without the sweep lock, perhaps more than that. Nothing is changed."""
    git_dir = context.git_dir
    found = [Leftover(folder, folder_bytes(folder)) for folder in find_dead(git_dir)]
    places = [git_dir, *(context.store_folder / name for name in ("packs", "damaged"))]
    places += [Path(place) for place, _, _ in os.walk(git_dir / "logs")]
    if find_stat(git_dir / JOURNAL_NAME) is None:
        places += walk_folders(context.worktree)
    return found + [item for place in places for item in _list_files(place)]


def remove_leftovers(context: Context) -> Sequence[Leftover]:
    """Remove them and return what is gone; only under ``sweep_alone()``."""
    with context.history.lock():
        leftovers = list_leftovers(context)
        sweep(context.git_dir)
        for item in leftovers:
            with contextlib.suppress(OSError):  # another user's, or a folder: gone already
                item.path.unlink()
    return [item for item in leftovers if find_stat(item.path) is None]


def _list_files(folder: Path) -> Iterator[Leftover]:
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):
            stat = find_stat(folder / name) if _LEFTOVER.fullmatch(name) else None
            if stat is None or stat.is_directory or is_locked(folder / name):
                continue
            yield Leftover(folder / name, stat.size_bytes)

"""Scratch folders that die with their process.

Every process that prepares files for the worktree works in a folder of its own below
``.mvc/tmp`` and holds a lock on it. The kernel drops the lock when the process ends, however it
ends, so a folder whose lock can be had is garbage, unless a journal still needs what is in it.
Folders are made and swept under the repository's lock only, so neither sees the other half-done.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, CorruptionError, StorageError
from mvc.fs import exclusive_lock, find_stat, fsync_dir, make_dirs
from mvc.workspace.journal import JOURNAL_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FOLDER = "tmp"
_LOCK = "lock"
_NAME = re.compile("[0-9a-f]{16}")


@contextlib.contextmanager
def staging_folder(git_dir: Path) -> Iterator[Path]:
    """Yield a fresh folder on the repository's file system; begin it under the lock.

    It is removed at the end, but for what a journal may need: ``sweep`` removes that.
    """
    root = find_stat(git_dir / _FOLDER)
    if root is not None and not root.is_directory:
        raise CorruptionError(f"{git_dir / _FOLDER} is no folder", hint="remove it")
    folder = git_dir / _FOLDER / os.urandom(8).hex()
    make_dirs(folder)
    try:
        with exclusive_lock(folder / _LOCK):
            yield folder
    finally:
        if find_stat(git_dir / JOURNAL_NAME) is None:
            shutil.rmtree(folder, ignore_errors=True)


def sweep(git_dir: Path) -> None:
    """Remove the folders of dead processes; only under the lock, and without a journal."""
    root = git_dir / _FOLDER
    found = find_stat(root)  # what lies behind a link is not ours to remove
    entries = list(os.scandir(root)) if found is not None and found.is_directory else []
    for entry in entries:
        name = entry.name
        if not _NAME.fullmatch(name) or not entry.is_dir(follow_symlinks=False):
            continue
        with (
            contextlib.suppress(ConflictError, StorageError, OSError),
            exclusive_lock(root / name / _LOCK, wait=False),
        ):
            shutil.rmtree(root / name, ignore_errors=True)


def sync_staged(folder: Path) -> None:
    """Make the names of all staged files durable."""
    fsync_dir(folder)


__all__ = ["staging_folder", "sweep", "sync_staged"]

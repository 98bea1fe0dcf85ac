"""Scratch folders that die with their process.

Every process that prepares files for the worktree works in a folder of its own below
``.mvc/tmp`` and holds a lock on it. The kernel drops the lock when the process ends, however it
ends, so a folder whose lock can be had is garbage and is removed by whoever comes next.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from typing import TYPE_CHECKING

from mvc.errors import ConflictError
from mvc.fs import exclusive_lock, fsync_dir, make_dirs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FOLDER = "tmp"
_LOCK = "lock"


@contextlib.contextmanager
def staging_folder(git_dir: Path) -> Iterator[Path]:
    """Yield a fresh folder on the repository's file system; it is removed at the end."""
    root = git_dir / _FOLDER
    make_dirs(root)
    _sweep(root)
    folder = root / secrets.token_hex(8)
    make_dirs(folder)
    try:
        with exclusive_lock(folder / _LOCK):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(root: Path) -> None:
    for folder in root.iterdir():
        # A folder made a moment ago may not have its lock file yet; creating it here only makes
        # its owner wait, and an empty folder holds nothing to lose.
        with (
            contextlib.suppress(ConflictError, FileNotFoundError, NotADirectoryError),
            exclusive_lock(folder / _LOCK, wait=False),
        ):
            if any(path.name != _LOCK for path in folder.iterdir()):
                shutil.rmtree(folder, ignore_errors=True)


def sync_staged(folder: Path) -> None:
    """Make the names of all staged files durable."""
    fsync_dir(folder)


__all__ = ["staging_folder", "sync_staged"]

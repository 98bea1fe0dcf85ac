"""What killed processes left behind: scratch folders and temporary files that nobody will rename.

Nothing that a live process uses is among them. A scratch folder and a file that is being written are
locked by their process, and the kernel drops that lock when it ends; whoever has staged files next to their
targets holds the sweep lock. What a journal waits for is not a leftover either.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mvc.fs import TEMP_SUFFIX, find_stat, is_locked
from mvc.workspace.context import JOURNAL_NAME, STORE_DIR_NAME
from mvc.workspace.staging import find_dead, sweep
from mvc.workspace.worktree import walk_folders

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mvc.workspace.context import Context

_NAME = re.compile(rf"([0-9a-f]{{16}}|reserve){TEMP_SUFFIX}")


@dataclass(frozen=True, slots=True)
class Leftover:
    """A temporary file or scratch folder of a process that is gone."""

    path: Path
    size_bytes: int


def list_leftovers(context: Context) -> list[Leftover]:
    """Return what may go; without the sweep lock, perhaps more than that. Nothing is changed."""
    git_dir = context.git_dir
    found = [_measure(folder) for folder in find_dead(git_dir)]
    places = [git_dir, *(git_dir / STORE_DIR_NAME / name for name in ("packs", "damaged"))]
    places += [Path(place) for place, _, _ in os.walk(git_dir / "logs")]
    if find_stat(git_dir / JOURNAL_NAME) is None:
        places += walk_folders(context.worktree)
    return found + [item for place in places for item in _list_files(place)]


def remove_leftovers(context: Context) -> Sequence[Leftover]:
    """Remove them and return what is gone; only under ``sweep_alone()``."""
    with context.history.lock():
        found = list_leftovers(context)
        sweep(context.git_dir)
        for item in found:
            with contextlib.suppress(OSError):  # somebody else's, or a folder: gone already
                item.path.unlink()
    return [item for item in found if find_stat(item.path) is None]


def _measure(folder: Path) -> Leftover:
    inside = (
        find_stat(os.path.join(place, name))
        for place, _, names in os.walk(folder)
        for name in names
    )
    return Leftover(folder, sum(stat.size_bytes for stat in inside if stat is not None))


def _list_files(folder: Path) -> Iterator[Leftover]:
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):
            stat = find_stat(folder / name) if _NAME.fullmatch(name) else None
            if stat is None or stat.is_directory or is_locked(folder / name):
                continue
            yield Leftover(folder / name, stat.size_bytes)

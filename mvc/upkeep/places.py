"""What stands in the repository where a file or folder of its own should be, and stops commands.

A folder, link or pipe in place of a lock, log or pack index stops every command that needs it,
though nothing is lost. What refs and Git objects hold is left to the check of the history. Nothing is thrown
away: folders and files that are in the way go to ``damaged/``; only links, pipes and the like,
which hold nothing, are removed. So are old lock files: a Git that was killed leaves them.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import MvcError, translate_os_errors
from mvc.fs import KINDS, find_stat, fsync_dir, make_dirs, remove_file, replace_staged
from mvc.history.locks import (
    LOCK_NAME,
    SWEEP_GATE_NAME,
    SWEEP_LOCK_NAME,
    TOP_FILES,
    find_lock_names,
    lock_path,
)
from mvc.history.refs import HEAD
from mvc.ids import ID_BYTES, is_hex_id
from mvc.upkeep import sweep
from mvc.upkeep.repacked import NOTE_NAME
from mvc.workspace.context import JOURNAL_NAME, STORE_DIR_NAME, Context
from mvc.workspace.kept import FILE_NAME

if TYPE_CHECKING:
    from pathlib import Path


_ASIDE = "damaged"
_LOCKS = (LOCK_NAME, SWEEP_LOCK_NAME, SWEEP_GATE_NAME, sweep.LOCK_NAME)
_FILES = ("index", "packed-refs", NOTE_NAME, JOURNAL_NAME, FILE_NAME)
_GIT_LOCKS = tuple(f"{name}.lock" for name in TOP_FILES)
_PACKS = f"{STORE_DIR_NAME}/packs"
_FOLDERS = (STORE_DIR_NAME, _PACKS, "logs", "runs")
_STALE_S = 3600
"""Git holds its locks for moments, and while an editor is open."""


@dataclass(frozen=True, slots=True)
class Intruder:
    """Something of another kind than belongs at its place; ``name`` is relative to ``.mvc``."""

    name: str
    found: str
    wanted: str

    @property
    def fact(self) -> str:
        """What is wrong, in words."""
        return f"{self.name} is {self.found}, not {self.wanted}"


def find_intruders(context: Context) -> Iterator[Intruder]:
    """Yield what stands where another kind of thing belongs; only kinds are looked at."""
    git_dir = context.git_dir
    for name in (*_LOCKS, *_GIT_LOCKS):
        yield from _look(git_dir, name, stat.S_IFREG, may_link=False)
    for name in _FILES:
        yield from _look(git_dir, name, stat.S_IFREG, may_link=True)
    yield from _look(git_dir, "tmp", stat.S_IFDIR, may_link=False)
    for name in _FOLDERS:
        yield from _look(git_dir, name, stat.S_IFDIR, may_link=True)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for file in sorted(os.listdir(git_dir / _PACKS)):
            stem, _, suffix = file.partition(".")
            if is_hex_id(stem, 2 * ID_BYTES) and suffix in ("idx", "pack"):
                yield from _look(git_dir, f"{_PACKS}/{file}", stat.S_IFREG, may_link=False)
    yield from _find_in_logs(context)
    for folder, _, files in os.walk(git_dir / "refs"):
        for file in sorted(files):
            name = f"{os.path.relpath(folder, git_dir)}/{file}"
            yield from _look(git_dir, name, stat.S_IFREG, may_link=True)


def _find_in_logs(context: Context) -> Iterator[Intruder]:
    """A folder is wrong only where a ref has its log: it may be of a ref that is gone."""
    refs = {HEAD}
    with contextlib.suppress(MvcError):  # the history check has reported it
        refs.update(context.history.refs.names())
    for folder, folders, files in os.walk(context.git_dir / "logs"):
        base = os.path.relpath(folder, context.git_dir)
        logs = [*files, *(file for file in folders if f"{base}/{file}"[len("logs/") :] in refs)]
        for file in sorted(logs):
            yield from _look(context.git_dir, f"{base}/{file}", stat.S_IFREG, may_link=False)


def _look(git_dir: Path, name: str, wanted: int, *, may_link: bool) -> Iterator[Intruder]:
    path = git_dir / name
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        kind = stat.S_IFMT(os.lstat(path).st_mode)
        if kind == stat.S_IFLNK and may_link:
            with contextlib.suppress(OSError):  # one that leads nowhere stays a link
                kind = stat.S_IFMT(os.stat(path).st_mode)
        if kind != wanted:
            yield Intruder(name, KINDS[kind], KINDS[wanted])


def find_stale_locks(context: Context) -> Iterator[Path]:
    """Yield Git's lock files that are older than any Git holds one."""
    for name in find_lock_names(context.git_dir):
        path = lock_path(context.git_dir / name)
        found_stat = find_stat(path)
        if found_stat is not None and time.time() - found_stat.mtime_ns / 1e9 > _STALE_S:
            yield path


def clear_way(context: Context) -> list[str]:
    """Remove or set aside all intruders and stale locks; return a line on each."""
    done = [_clear(context.git_dir, intruder) for intruder in list(find_intruders(context))]
    for path in list(find_stale_locks(context)):
        remove_file(path)
        done.append(f"{path.relative_to(context.git_dir)} was left by a Git that ended: removed")
    return done


def _clear(git_dir: Path, intruder: Intruder) -> str:
    path = git_dir / intruder.name
    with translate_os_errors(f"remove {path}"):
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
            done = set_aside(git_dir, path)
        else:
            path.unlink()
            done = "removed"
    fsync_dir(path.parent)
    return f"{intruder.fact}: {done}"


def set_aside(git_dir: Path, path: Path) -> str:
    """Move a file or folder of a repository to ``damaged/``; return where it is now, in words."""
    name, number = str(path.relative_to(git_dir)).replace("/", "-"), 1
    aside = git_dir / _ASIDE / name
    while os.path.lexists(aside):
        number += 1
        aside = git_dir / _ASIDE / f"{name}.{number}"
    make_dirs(aside.parent)
    replace_staged(path, aside)
    fsync_dir(aside.parent)
    return f"now {aside.relative_to(git_dir)}"

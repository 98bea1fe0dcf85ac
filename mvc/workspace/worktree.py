"""The user's files: which there are, which path a name means, and where it is safe to write.

Paths inside a repository are relative, ``/``-separated text. No function here follows a symbolic
link of the user's: a link is a file whose content is its text.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, UsageError, translate_os_errors
from mvc.fs import TEMP_SUFFIX, FileStat, RealFolders, find_stat
from mvc.history.values import MODE_EXECUTABLE, MODE_FILE, MODE_SYMLINK
from mvc.workspace.context import GIT_DIR_NAME, Context

if TYPE_CHECKING:
    from mvc.history.ignore import IgnoreRules

    StrPath = str | os.PathLike[str]
    Paths = StrPath | Iterable[StrPath]


def git_mode(stat: FileStat) -> int:
    """Return the mode Git stores for a file: link, executable or plain."""
    if stat.is_symlink:
        return MODE_SYMLINK
    return MODE_EXECUTABLE if stat.is_executable else MODE_FILE


def relative_path(worktree: Path, cwd: Path, name: str) -> str:
    """Return a user's path as a repository path (``""`` for the worktree itself)."""
    if "\0" in name:
        raise UsageError("a path cannot hold a NUL character")
    # Text, because a Path costs as much to make as a small tensor to read.
    absolute = os.path.normpath(os.path.join(cwd, name))
    root = os.path.normpath(worktree)
    start = root.rstrip(os.sep) + os.sep
    if absolute == root:
        return ""
    if not absolute.startswith(start):
        # The user may have reached the worktree through a link: compare the real folders too,
        # but never resolve the last component, which may itself be a tracked link.
        folder, last = os.path.split(absolute)
        absolute = os.path.join(Path(folder).resolve(), last)
    if absolute == root:
        return ""
    if not absolute.startswith(start):
        raise UsageError(f"{name!r} is outside the repository at {worktree}")
    path = absolute.removeprefix(start)
    if path.split("/")[0].casefold() == GIT_DIR_NAME:
        raise UsageError(f"{name!r} is inside {GIT_DIR_NAME}, the repository itself")
    return path


def relative_paths(context: Context, paths: Paths) -> list[str]:
    """Return what a user of Python calls paths, relative to the worktree, as repository paths."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    return [relative_path(context.worktree, context.worktree, os.fspath(path)) for path in given]


def scan_files(worktree: Path, ignore: IgnoreRules | None, under: str = "") -> Iterator[str]:
    """Yield every file and link below a folder of the worktree, sorted, ignored ones left out."""
    # A stack, not recursion: a path may be two thousand folders deep.
    pending = list(_list_folder(worktree, under))
    while pending:
        path, entry = pending.pop()
        is_dir = entry.is_dir(follow_symlinks=False)
        if ignore is not None and ignore.is_ignored(path, is_dir):
            continue
        if is_dir:
            if not os.path.isdir(f"{entry.path}/{GIT_DIR_NAME}"):
                pending.extend(_list_folder(worktree, path))
        elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
            yield path


def scan_ignored(worktree: Path, ignore: IgnoreRules) -> Iterator[str]:
    """Yield what is ignored in a worktree, sorted; ``/`` ends the name of a whole folder."""
    pending = list(_list_folder(worktree, ""))
    while pending:
        path, entry = pending.pop()
        is_dir = entry.is_dir(follow_symlinks=False)
        if ignore.is_ignored(path, is_dir):
            yield f"{path}/" if is_dir else path
        elif is_dir and not os.path.isdir(f"{entry.path}/{GIT_DIR_NAME}"):
            pending.extend(_list_folder(worktree, path))


def _list_folder(worktree: Path, under: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield (path, entry) of what may be the user's in a folder, in reverse order."""
    folder = f"{worktree}/{under}" if under else str(worktree)
    try:
        with translate_os_errors(f"list {folder}"):
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name, reverse=True)
    except (FileNotFoundError, NotADirectoryError):
        return  # removed or replaced since its name was read
    for entry in entries:
        if entry.name.casefold() in {GIT_DIR_NAME, ".git"} or entry.name.endswith(TEMP_SUFFIX):
            continue
        yield f"{under}/{entry.name}" if under else entry.name, entry


def walk_folders(worktree: Path) -> Iterator[Path]:
    """Yield the worktree and every folder below it; what belongs to another repository is not."""
    for folder, names, _ in os.walk(worktree):
        yield Path(folder)
        names[:] = [
            name
            for name in names
            if name.casefold() not in {GIT_DIR_NAME, ".git"}
            and not os.path.isdir(f"{folder}/{name}/{GIT_DIR_NAME}")
        ]


def find_file_stat(
    worktree: Path, path: str, folders: RealFolders | None = None
) -> FileStat | None:
    """Return the stat of a repository path, or None if nothing of the worktree is there.

    What is beyond a link is not in the worktree: below a folder that was replaced by a link,
    there is nothing, as in Git. Everything that looks at a tracked path looks at it through here.
    ``folders`` remembers the folders above, for a pass over many files.
    """
    folders = RealFolders(worktree) if folders is None else folders
    # Text, because a Path costs more to make than the look at the file.
    return find_stat(f"{worktree}/{path}") if path.rpartition("/")[0] in folders else None


def read_link(worktree: Path, path: str) -> bytes:
    """Return the text of a link."""
    with translate_os_errors(f"read link {path}"):
        return os.readlink(os.fsencode(worktree / path))


def find_obstacle(worktree: Path, path: str) -> str | None:
    """Return the first name above a path that exists but is not a real folder, or None."""
    for folder in folders_above(path):
        stat = find_stat(worktree / folder)
        if stat is None:
            return None
        if not stat.is_directory:
            return folder
    return None


def find_inner_repository(worktree: Path, path: str) -> str | None:
    """Return the folder of another repository that a path is, or is in, or None."""
    for folder in (*folders_above(path), path):
        if os.path.isdir(worktree / folder / GIT_DIR_NAME):
            return folder
    return None


def folders_above(path: str) -> Iterator[str]:
    """Yield the folders above a path, the outermost first."""
    end = path.find("/")
    while end >= 0:
        yield path[:end]
        end = path.find("/", end + 1)


def check_parents(worktree: Path, path: str) -> None:
    """Check that no folder above a path is a link or a file: writing there stays inside."""
    obstacle = find_obstacle(worktree, path)
    if obstacle is not None:
        raise ConflictError(
            f"cannot write {path!r}: {obstacle!r} is not a folder", hint="move it out of the way"
        )

"""status: HEAD against index against worktree; unchanged files are not read."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, StorageError
from mvc.fs import RealFolders
from mvc.history.ignore import IgnoreRules
from mvc.history.names import folders_of
from mvc.history.object_formats import write_tree
from mvc.ids import GitId, hash_git_object
from mvc.remotes.tracking import Upstream, find_upstream
from mvc.workspace.pending import Pending, find_pending, is_bisecting
from mvc.workspace.recorded import is_clean, make_entry, pair_renames, staged_tree, tree_of
from mvc.workspace.recovery import recover
from mvc.workspace.worktree import find_file_stat, git_mode, scan_files, scan_ignored

if TYPE_CHECKING:
    from mvc.history.values import Head, Index, IndexEntry, Stages, TreeEntry
    from mvc.merging.files import Conflict
    from mvc.workspace.context import Context


@dataclass(frozen=True, slots=True)
class FileStatus:
    """One path that differs between HEAD, index and worktree.

    Attributes:
        path: repository path.
        staged: HEAD → index: ``added``, ``modified``, ``removed``, ``renamed``, ``unmodified`` or
            ``unmerged``: a merge has left it undecided.
        worktree: index → worktree: ``modified``, ``removed``, ``untracked``, ``ignored`` or
            ``unmodified``.
        old_path: the former path of a renamed file.
        stages: what ours and theirs did to an unmerged file, in Git's two letters.
    """

    path: str
    staged: str
    worktree: str
    old_path: str | None = None
    stages: str | None = None

    @property
    def code(self) -> str:
        """The two letters of ``git status --short``."""
        if self.stages is not None:
            return self.stages
        if self.worktree == "untracked":
            return "??"
        if self.worktree == "ignored":
            return "!!"
        return _STAGED_CODES[self.staged] + _WORKTREE_CODES[self.worktree]


_STAGED_CODES = {
    "added": "A", "modified": "M", "removed": "D", "renamed": "R", "unmodified": " ",
}  # fmt: skip
_WORKTREE_CODES = {"modified": "M", "removed": "D", "unmodified": " "}


@dataclass(frozen=True, slots=True)
class Status:
    """Where the repository stands: what differs somewhere is in ``files``, by path.

    ``branch`` is None if HEAD is detached, ``commit`` is None before the first one, and
    ``recovered`` is true if an interrupted checkout was finished first. ``untracked`` are the paths
    that are not tracked; a folder without any tracked file is one of them, ``runs/``. ``pending``
    is the merge, cherry-pick or revert that is under way, ``conflicts`` what it has left to decide;
    ``bisecting`` is true while a bisection is going on. ``left_out`` are tracked files that the
    worktree lacks on purpose: those of a clone without content, or of a sparse checkout.
    ``upstream`` is what the branch follows, if that was asked for.
    """

    branch: str | None
    commit: GitId | None
    files: tuple[FileStatus, ...]
    recovered: bool = False
    untracked: tuple[str, ...] = ()
    pending: Pending | None = None
    conflicts: tuple[Conflict, ...] = ()
    bisecting: bool = False
    left_out: tuple[str, ...] = ()
    upstream: Upstream | None = None

    @property
    def is_clean(self) -> bool:
        """Whether nothing but untracked and ignored files differs."""
        return all(file.worktree in ("untracked", "ignored") for file in self.files)


def status(
    context: Context, *, untracked: bool = True, ignored: bool = False, upstream: bool = False
) -> Status:
    """Compare HEAD, index and worktree; unchanged files are not read.

    Args:
        untracked: list files that are not tracked, too.
        ignored: list what ``.mvcignore`` names; ``/`` ends the name of a whole folder.
        upstream: also say what the branch follows, and how far the two are apart.

    Raises:
        CorruptionError: HEAD's tree or the index is damaged.
    """
    recovered = recover(context)
    head = context.history.head()
    index = context.history.read_index()
    staged = _staged_changes(context, head, index)
    changed, refreshed, left_out = _worktree_changes(context, index)
    if refreshed:
        _refresh(context, index, refreshed)
    files = [
        FileStatus(path, "unmerged", "unmodified", stages=_stage_code(stages))
        for path, stages in index.unmerged.items()
    ]
    for path in sorted({*staged, *changed}.difference(index.unmerged)):
        kind, old_path = staged.get(path, ("unmodified", None))
        files.append(FileStatus(path, kind, changed.get(path, "unmodified"), old_path))
    ignore = IgnoreRules(context.worktree)
    scans = [("untracked", scan_files)] * untracked + [("ignored", scan_ignored)] * ignored
    for kind, scan in scans:
        files.extend(
            FileStatus(path, "unmodified", kind)
            for path in scan(context.worktree, ignore)
            if path not in index.entries and path not in index.unmerged
        )
    folders = folders_of([*index.entries, *index.unmerged])
    new = dict.fromkeys(_outermost(one.path, folders) for one in files if one.code == "??")
    pending = find_pending(context)
    conflicts = _find_conflicts(context, index, pending)
    return Status(
        head.branch, head.commit, tuple(files), recovered, tuple(new), pending, conflicts,
        is_bisecting(context), left_out, find_upstream(context, head.branch) if upstream else None,
    )  # fmt: skip


def _stage_code(stages: Stages) -> str:
    base, ours, theirs = stages
    if base is None:
        return {(True, True): "AA", (True, False): "AU"}.get((bool(ours), bool(theirs)), "UA")
    return {(True, True): "UU", (True, False): "UD", (False, True): "DU"}.get(
        (bool(ours), bool(theirs)), "DD"
    )


def _find_conflicts(
    context: Context, index: Index, pending: Pending | None
) -> tuple[Conflict, ...]:
    if not index.unmerged:
        return ()
    from mvc.merging.strategies import read_choices  # noqa: PLC0415  brings NumPy
    from mvc.merging.trees import find_conflicts  # noqa: PLC0415  as above

    return find_conflicts(context, index, read_choices(pending.message if pending else ""))


def _outermost(path: str, tracked_folders: Container[str]) -> str:
    """Return the outermost folder of a path that holds no tracked file, or the path itself."""
    end = path.find("/")
    while end >= 0 and path[:end] in tracked_folders:
        end = path.find("/", end + 1)
    return path[: end + 1] or path


def _staged_changes(
    context: Context, head: Head, index: Index
) -> dict[str, tuple[str, str | None]]:
    """Return what differs between HEAD and the index; HEAD's trees are read only if some do."""
    if head.commit is not None:
        tree = context.history.read_commit(head.commit).tree
        if write_tree(staged_tree(index), hash_git_object) == tree:
            return {}
    return staged_changes(tree_of(context, head.commit), index)


def staged_changes(
    tree: Mapping[str, TreeEntry], index: Index
) -> dict[str, tuple[str, str | None]]:
    """Return path → (status, old path) of what differs between a tree and the index."""
    gone = {path: tree[path] for path in sorted(tree.keys() - index.entries.keys())}
    staged = sorted(staged_tree(index).items())
    renamed = pair_renames(gone, ((path, key) for path, key in staged if path not in tree))
    changes: dict[str, tuple[str, str | None]] = {}
    for path, entry in staged:
        known = tree.get(path)
        if known is None:
            old_path = renamed.get(path)
            changes[path] = ("added" if old_path is None else "renamed", old_path)
        elif known != entry:
            changes[path] = ("modified", None)
    changes |= dict.fromkeys(gone.keys() - renamed.values(), ("removed", None))
    return changes


def _worktree_changes(
    context: Context, index: Index
) -> tuple[dict[str, str], dict[str, IndexEntry], tuple[str, ...]]:
    """Return path → status of changed files, entries with new stat data, and what is left out."""
    changed: dict[str, str] = {}
    left_out: list[str] = []
    refreshed: dict[str, IndexEntry] = {}
    folders = RealFolders(context.worktree)
    for path, entry in index.entries.items():
        stat = find_file_stat(context.worktree, path, folders)
        if stat is None or not (stat.is_regular or stat.is_symlink):
            if entry.skip_worktree:
                left_out.append(path)
            else:
                changed[path] = "removed"
        elif entry.matches(stat) and not index.is_racy(entry):
            continue
        elif git_mode(stat) == entry.mode and is_clean(context, index, entry, stat):
            refreshed[path] = make_entry(path, entry.mode, entry.blob, stat)
        else:
            changed[path] = "modified"
    return changed, refreshed, tuple(left_out)


def _refresh(context: Context, seen: Index, refreshed: Mapping[str, IndexEntry]) -> None:
    """Update stat data; a repository that cannot be written is not a reason to fail."""
    try:
        with context.history.lock():
            current = context.history.read_index()
            entries = dict(current.entries)
            for path, entry in refreshed.items():
                if entries.get(path) == seen.entries[path]:
                    entries[path] = entry
            context.history.write_index(replace(current, entries=entries))
    except (ConflictError, StorageError):
        return

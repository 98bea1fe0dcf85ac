"""restore and reset: paths, index and branch back to what a commit has.

As in Git, ``restore`` overwrites the paths it is given whatever they hold: the call names them.
But a file that would be removed, because the source lacks it, stays if its content is stored
nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, CorruptionError, UnsupportedError, UsageError
from mvc.history.values import Index, TreeEntry
from mvc.workspace.checkout_plan import (
    CheckoutPlan,
    CheckoutResult,
    execute,
    find_blockers,
    plan_checkout,
)
from mvc.workspace.context import Context, holds_sweep_lock
from mvc.workspace.journal import ENDED, EntryChange
from mvc.workspace.pathspec import select_paths
from mvc.workspace.pending import check_decided, is_marked
from mvc.workspace.recorded import head_tree, holds, is_clean, staged_tree
from mvc.workspace.recovery import recover
from mvc.workspace.released import command_text
from mvc.workspace.transition import plan_head_move
from mvc.workspace.worktree import find_file_stat, relative_paths

if TYPE_CHECKING:
    from mvc.ids import GitId
    from mvc.workspace.worktree import Paths


def restore_paths(
    context: Context,
    paths: Paths,
    *,
    source: str | None = None,
    staged: bool = False,
    worktree: bool = True,
) -> CheckoutResult:
    """Bring paths back from the index or ``source``, whatever they hold now.

    Tracked files that the source lacks are removed.

    Args:
        paths: files, folders or wildcards.
        source: revision to take from; defaults to the index (HEAD with ``staged``).
        staged: restore the index entries as well.
        worktree: restore the files.

    Raises:
        ConflictError: a file to remove holds content that is stored nowhere else.
    """
    patterns = relative_paths(context, paths)
    if not patterns:
        raise UsageError("no path to restore", hint='"mvc restore ." restores everything')
    if not (staged or worktree):
        raise UsageError("nothing to restore: neither the index nor the worktree")
    return bring_back(context, patterns, source, staged=staged, worktree=worktree)


@holds_sweep_lock
def bring_back(
    context: Context,
    patterns: Sequence[str],
    source: str | None,
    *,
    staged: bool,
    worktree: bool = True,
    removes: bool = True,
) -> CheckoutResult:
    """Restore repository paths; unless ``removes``, tracked files that the source lacks stay."""
    recover(context)
    index = context.history.read_index()
    commit, tree = _read_source(context, index, source, staged=staged)
    lacking = {path for path in index.entries if path not in tree} if removes else set()
    chosen = set(select_paths(patterns, sorted({*tree, *lacking})))
    write = {
        path: tree[path]
        for path in sorted(chosen & tree.keys() if worktree else ())
        if not holds(context, index, path, tree[path].mode, tree[path].blob)
    }
    remove = _find_removable(context, index, chosen & lacking) if worktree else []
    touched = {*write, *remove}
    changes = _entry_changes(index, tree, chosen - touched) if staged else ()
    plan = CheckoutPlan(
        tuple(write.items()),
        tuple(remove),
        changes,
        blockers=find_blockers(context.worktree, write, remove),
        into_index=staged or source is None,
    )
    command = command_text("mvc restore --source {} --", patterns if all(patterns) else ["."])
    return execute(context, plan, index, None, source=commit, command=command)


def _read_source(
    context: Context, index: Index, source: str | None, *, staged: bool
) -> tuple[GitId | None, Mapping[str, TreeEntry]]:
    """Return the files to restore from, and the commit they are of, if it is one."""
    history = context.history
    if source is not None:
        resolved = history.resolve(source)
        return history.find_commit(resolved), history.read_tree(resolved)
    if staged:
        return None, head_tree(context)
    return None, staged_tree(index)


def _find_removable(context: Context, index: Index, paths: Iterable[str]) -> list[str]:
    """Return those of the paths that are files whose content the index holds."""
    removable: list[str] = []
    for path in sorted(paths):
        stat = find_file_stat(context.worktree, path)
        if stat is None or stat.is_directory:
            continue
        if not is_clean(context, index, index.entries[path], stat):
            raise ConflictError(
                f"{path!r} is not in the source, and its changes are stored nowhere else",
                hint="add it, or delete it yourself",
            )
        removable.append(path)
    return removable


def _entry_changes(
    index: Index, tree: Mapping[str, TreeEntry], paths: Iterable[str]
) -> tuple[EntryChange, ...]:
    """Return what makes the index entries of ``paths`` those of a tree."""
    changes: list[EntryChange] = []
    for path in sorted(paths):
        wanted, entry = tree.get(path), index.entries.get(path)
        if wanted is None:
            changes.append(EntryChange(path))
        elif entry is None or entry.version != wanted:
            skip = entry is not None and entry.skip_worktree
            changes.append(EntryChange(path, wanted.mode, wanted.blob, skip))
    return tuple(changes)


def reset(
    context: Context, revision: str = "HEAD", *, mode: str = "mixed", paths: Paths = ()
) -> CheckoutResult:
    """Move the current branch, or a detached HEAD, to a commit.

    Args:
        revision: where to.
        mode: ``soft`` moves the branch only, ``mixed`` also sets the index, ``hard`` also the
            files: local changes to tracked files are lost.
        paths: set only the index entries of these paths; the branch stays.

    Raises:
        UsageError: another mode, or ``paths`` and not ``mixed``.
    """
    chosen = relative_paths(context, paths)
    if not chosen:
        return _reset_branch(context, revision, mode=mode)
    if mode != "mixed":
        raise UsageError(f"a {mode} reset takes no paths")
    return reset_paths(context, chosen, revision)


@holds_sweep_lock
def _reset_branch(context: Context, revision: str, *, mode: str = "mixed") -> CheckoutResult:
    """Move the current branch (or detached HEAD) to a commit.

    Unless ``soft``, a damaged index is replaced. Before the first commit, HEAD means no files.
    """
    if mode not in ("soft", "mixed", "hard"):
        raise UsageError(f"a reset is soft, mixed or hard, not {mode!r}")
    recover(context)
    history = context.history
    head = history.head()
    if head.commit is None and revision in ("HEAD", "@"):
        commit, tree = None, dict[str, TreeEntry]()
    else:
        commit = context.history.resolve_commit(revision)
        tree = history.read_tree(commit)
    index = history.read_index() if mode == "soft" else _read_or_make_index(context)
    if mode == "soft":
        check_decided(index)
    marks = ENDED if mode != "soft" and is_marked(context) else ()
    plan = CheckoutPlan()
    if mode == "hard":
        plan = plan_checkout(context, index, {}, tree, force=True, materialise=False)
    elif mode == "mixed":
        touched = {*tree, *index.entries, *index.unmerged}
        plan = CheckoutPlan(entries=_entry_changes(index, tree, touched))
    move = None
    if commit is not None:
        message = f"reset: moving to {revision}"
        move = plan_head_move("move", commit, head, message, context.stamp())
    command = "mvc reset --hard {}"
    return execute(context, plan, index, move, source=commit, command=command, marks=marks)


def _read_or_make_index(context: Context) -> Index:
    """Return the index; one that cannot be read is replaced by an empty one."""
    try:
        return context.history.read_index()
    except (CorruptionError, UnsupportedError):
        with context.history.lock():
            context.history.write_index(Index())
        return context.history.read_index()


@holds_sweep_lock
def reset_paths(
    context: Context, patterns: Sequence[str], revision: str = "HEAD"
) -> CheckoutResult:
    """Unstage paths: their index entries become those of a revision; files stay as they are."""
    if context.history.head().commit is None and revision in ("HEAD", "@"):
        recover(context)
        index = context.history.read_index()
        chosen = select_paths(patterns, list(index.entries))
        plan = CheckoutPlan(entries=tuple(EntryChange(path) for path in chosen))
        return execute(context, plan, index, None)
    return bring_back(context, patterns, revision, staged=True, worktree=False)

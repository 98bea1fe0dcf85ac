"""checkout, switch, restore and reset: plan first, then one transition.

A plan compares three things per path: what the target has, what the index has, what lies in the
worktree. Nothing of the user's is overwritten unless the worktree file equals the index (clean),
or the call says ``force``, or the call names the very path (``restore PATH``, as in Git).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, UsageError
from mvc.history.values import TreeEntry
from mvc.operations.files import stored_size
from mvc.operations.journal import EntryChange, FileRemoval, FileWrite, HeadMove, Transition, Was
from mvc.operations.recorded import head_tree, holds, is_clean
from mvc.operations.transition import plan_head_move, recover, run, stat_mark
from mvc.operations.worktree import find_file_stat, scan_files, select_paths
from mvc.progress import announce

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mvc.fs import FileStat
    from mvc.history.values import Identity, Index, IndexEntry
    from mvc.ids import GitId
    from mvc.operations.context import Context

    ByteProgress = Callable[[int], None] | None


@dataclass(frozen=True, slots=True)
class CheckoutPlan:
    """What a checkout would do.

    Attributes:
        write: paths to write, with what.
        remove: paths to take away.
        entries: index entries to set without touching a file.
        conflicts: paths whose content would be lost; the plan can only run by force.
        seen: what lay at the paths to write or remove when that was decided: it alone may go.
        into_index: whether the written files are also what the index has from then on.
    """

    write: tuple[tuple[str, TreeEntry], ...] = ()
    remove: tuple[str, ...] = ()
    entries: tuple[EntryChange, ...] = ()
    conflicts: tuple[str, ...] = ()
    seen: Mapping[str, Was | None] = field(default_factory=dict)
    into_index: bool = True


@dataclass(frozen=True, slots=True)
class CheckoutResult:
    """What a checkout did.

    Attributes:
        commit: where HEAD is now, or None before the first commit.
        branch: the current branch, or None where HEAD is detached.
        written: paths written.
        removed: paths taken away.
    """

    commit: GitId | None
    branch: str | None
    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class _Planner:
    """Collects the plan of one checkout; one method per state a path can be in."""

    def __init__(
        self,
        context: Context,
        index: Index,
        target: Mapping[str, TreeEntry],
        *,
        force: bool,
        materialise: bool,
    ) -> None:
        self._context = context
        self._index = index
        self._target = target
        self._force = force
        self._materialise = materialise
        self.write: list[tuple[str, TreeEntry]] = []
        self.remove: list[str] = []
        self.entries: list[EntryChange] = []
        self.conflicts: list[str] = []
        self.seen: dict[str, Was | None] = {}

    def plan(self) -> CheckoutPlan:
        for path in sorted({*self._target, *self._index.entries}):
            entry, wanted = self._index.entries.get(path), self._target.get(path)
            if wanted is None:
                assert entry is not None
                self._plan_removal(entry)
            elif entry is not None and self._is_sleeping(entry):
                self._plan_sleeping(entry, wanted)
            elif entry is not None and (entry.mode, entry.blob) == (wanted.mode, wanted.blob):
                self._plan_same(entry, wanted)
            else:
                self._plan_change(path, entry, wanted)
        self._check_folders()
        return CheckoutPlan(
            tuple(self.write),
            tuple(self.remove),
            tuple(self.entries),
            tuple(self.conflicts),
            self.seen,
        )

    def _look(self, path: str) -> FileStat | None:
        """Return the stat of a path, and remember it: what changes from now on is not ours."""
        stat = find_file_stat(self._context.worktree, path)
        self.seen[path] = _mark(stat)
        return stat

    def _is_sleeping(self, entry: IndexEntry) -> bool:
        """Whether the file was committed from memory and never made."""
        return entry.skip_worktree and self._look(entry.path) is None

    def _plan_sleeping(self, entry: IndexEntry, wanted: TreeEntry) -> None:
        if self._materialise:
            self.write.append((entry.path, wanted))
        elif (entry.mode, entry.blob) != (wanted.mode, wanted.blob):
            self.entries.append(
                EntryChange(entry.path, wanted.mode, wanted.blob, skip_worktree=True)
            )

    def _plan_removal(self, entry: IndexEntry) -> None:
        stat = self._look(entry.path)
        if stat is None or stat.is_directory:
            self.entries.append(EntryChange(entry.path))
        elif self._force or is_clean(self._context, self._index, entry, stat):
            self.remove.append(entry.path)
        else:
            self.conflicts.append(entry.path)

    def _plan_same(self, entry: IndexEntry, wanted: TreeEntry) -> None:
        """The target changes nothing here: local changes stay, as in Git; force undoes them."""
        if not self._force:
            return
        stat = self._look(entry.path)
        if stat is None or not is_clean(self._context, self._index, entry, stat):
            self.write.append((entry.path, wanted))

    def _plan_change(self, path: str, entry: IndexEntry | None, wanted: TreeEntry) -> None:
        stat = self._look(path)
        is_free = stat is None or stat.is_directory or self._force
        if is_free or self._is_clean(entry, stat):
            self.write.append((path, wanted))
        elif holds(self._context, self._index, path, wanted.mode, wanted.blob):
            # Already there: only the index has to learn of it.
            self.entries.append(EntryChange(path, wanted.mode, wanted.blob))
        else:
            self.conflicts.append(path)

    def _is_clean(self, entry: IndexEntry | None, stat: FileStat | None) -> bool:
        if entry is None or stat is None:
            return False
        return is_clean(self._context, self._index, entry, stat)

    def _check_folders(self) -> None:
        """A folder in the way of a file must hold nothing but what the plan removes."""
        gone = set(self.remove)
        for path, _ in self.write:
            stat = find_file_stat(self._context.worktree, path)
            if stat is not None and stat.is_directory:
                self.conflicts.extend(
                    found
                    for found in scan_files(self._context.worktree, None, path)
                    if found not in gone
                )


def plan_checkout(
    context: Context,
    index: Index,
    target: Mapping[str, TreeEntry],
    *,
    force: bool = False,
    materialise: bool = True,
) -> CheckoutPlan:
    """Return what it takes to turn index and worktree into ``target``.

    Args:
        context: the repository.
        index: the index as it stands.
        target: path → entry of the tree to reach.
        force: overwrite local changes.
        materialise: also make files that were committed from memory and never written.
    """
    return _Planner(context, index, target, force=force, materialise=materialise).plan()


def execute(
    context: Context,
    plan: CheckoutPlan,
    index: Index,
    head: HeadMove | None,
    progress: ByteProgress = None,
) -> CheckoutResult:
    """Carry out a plan.

    Raises:
        ConflictError: the plan has conflicts, or the world moved since it was made.
    """
    if plan.conflicts:
        raise _overwrite_error(plan.conflicts)
    transition = Transition(
        writes=tuple(
            FileWrite(
                path,
                entry.mode,
                entry.blob,
                into_index=plan.into_index,
                was=_was(context, plan, path),
            )
            for path, entry in plan.write
        ),
        removals=tuple(FileRemoval(path, _was(context, plan, path)) for path in plan.remove),
        entries=plan.entries,
        head=head,
    )
    if transition.writes or transition.removals or transition.entries or head is not None:
        if progress is not None:
            announce(progress, sum(stored_size(context, entry.blob) for _, entry in plan.write))
        run(context, transition, index, progress)
    now = context.history.head()
    written = tuple(path for path, _ in plan.write)
    return CheckoutResult(now.commit, now.branch, written, plan.remove)


def _was(context: Context, plan: CheckoutPlan, path: str) -> Was | None:
    if path in plan.seen:
        return plan.seen[path]
    return _mark(find_file_stat(context.worktree, path))


def _mark(stat: FileStat | None) -> Was | None:
    return None if stat is None or stat.is_directory else stat_mark(stat)


def _overwrite_error(paths: Sequence[str]) -> ConflictError:
    shown = ", ".join(repr(path) for path in paths[:5])
    more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""  # noqa: PLR2004  as shown
    return ConflictError(
        f"local changes would be overwritten: {shown}{more}",
        hint='commit them, or run it again with "-f" to throw them away',
    )


def checkout_revision(
    context: Context,
    revision: str,
    *,
    force: bool = False,
    detach: bool = False,
    who: Identity | None = None,
    progress: ByteProgress = None,
) -> CheckoutResult:
    """Go to a branch (HEAD follows it) or to any other revision (HEAD is detached there).

    Raises:
        NotFoundError: no such revision.
        ConflictError: local changes would be lost.
    """
    recover(context)
    history = context.history
    branch = None if detach else _branch_name(context, revision)
    if branch is not None and history.find_ref(f"refs/heads/{branch}") is None:
        return CheckoutResult(None, branch)
    commit = history.resolve(revision)
    index = history.read_index()
    plan = plan_checkout(context, index, history.read_tree(commit), force=force)
    move = _head_move(context, branch, commit, revision, who)
    return execute(context, plan, index, move, progress)


def _branch_name(context: Context, revision: str) -> str | None:
    """Return the branch that a revision names, or None where it names a commit."""
    head = context.history.head()
    if revision in ("HEAD", "@"):
        return head.branch
    name = context.history.resolve_ref_name(revision)
    if name is not None and name.startswith("refs/heads/"):
        return name.removeprefix("refs/heads/")
    return revision if revision == head.branch and head.commit is None else None


def _head_move(
    context: Context, branch: str | None, commit: GitId, revision: str, who: Identity | None
) -> HeadMove | None:
    head = context.history.head()
    if branch is not None and branch == head.branch:
        return None
    if branch is None and head.branch is None and head.commit == commit:
        return None
    source = head.branch or head.commit or "nothing"
    target = branch if branch is not None else revision
    message = f"checkout: moving from {source} to {target}"
    kind = "branch" if branch is not None else "detach"
    return plan_head_move(kind, branch or commit, head, message, context.who(who))


def create_and_switch(
    context: Context,
    branch: str,
    start: str | None,
    *,
    force: bool = False,
    who: Identity | None = None,
    progress: ByteProgress = None,
) -> CheckoutResult:
    """Make a branch at ``start`` (HEAD where None; no file is touched then) and go there.

    Raises:
        ConflictError: the branch exists, or local changes would be lost.
    """
    recover(context)
    history, identity = context.history, context.who(who)
    head = history.head()
    ref = f"refs/heads/{branch}"
    history.check_branch_name(branch)
    if history.find_ref(ref) is not None:
        raise ConflictError(
            f"branch {branch!r} already exists", hint=f'"mvc switch {branch}" goes there'
        )
    if start is None and head.commit is None:
        with history.lock():
            history.set_head_branch(
                branch, message=f"checkout: moving from {head.branch} to {branch}", who=identity
            )
        return CheckoutResult(None, branch)
    commit = history.resolve(start or "HEAD")
    index = history.read_index()
    plan = CheckoutPlan()
    if start is not None and commit != head.commit:
        plan = plan_checkout(context, index, history.read_tree(commit), force=force)
    if plan.conflicts:
        raise _overwrite_error(plan.conflicts)
    history.update_ref(
        ref, commit, expected=None, message=f"branch: Created from {start or 'HEAD'}", who=identity
    )
    move = _head_move(context, branch, commit, branch, who)
    return execute(context, plan, index, move, progress)


def restore_paths(
    context: Context,
    patterns: Sequence[str],
    *,
    source: str | None = None,
    staged: bool = False,
    worktree: bool = True,
    progress: ByteProgress = None,
) -> CheckoutResult:
    """Bring paths back from the index, or from a revision, whatever lies there now (as in Git).

    Args:
        context: the repository.
        patterns: paths, folders or wildcards; ``""`` for everything.
        source: revision to take from; None is the index (HEAD where only ``staged``).
        staged: set the index entries.
        worktree: write the files.
        progress: called with bytes written.

    Raises:
        NotFoundError: a pattern names nothing in the source.
    """
    if not patterns:
        raise UsageError("no path to restore", hint='"mvc restore ." restores everything')
    recover(context)
    index = context.history.read_index()
    if source is not None:
        tree = context.history.read_tree(context.history.resolve(source))
    elif staged:
        tree = head_tree(context)
    else:
        tree = {path: TreeEntry(entry.mode, entry.blob) for path, entry in index.entries.items()}
    gone = [path for path in index.entries if path not in tree] if staged else []
    chosen = set(select_paths(patterns, sorted({*tree, *gone})))
    write = [(path, tree[path]) for path in sorted(chosen) if path in tree] if worktree else []
    write = [
        pair for pair in write if not holds(context, index, pair[0], pair[1].mode, pair[1].blob)
    ]
    changes = _entry_changes(index, tree, chosen - {path for path, _ in write}) if staged else ()
    blocked = [path for path, _ in write if _is_folder(context, path)]
    into_index = staged or source is None
    plan = CheckoutPlan(tuple(write), (), changes, tuple(blocked), into_index=into_index)
    return execute(context, plan, index, None, progress)


def _is_folder(context: Context, path: str) -> bool:
    stat = find_file_stat(context.worktree, path)
    return stat is not None and stat.is_directory


def _entry_changes(
    index: Index, tree: Mapping[str, TreeEntry], paths: Iterable[str]
) -> tuple[EntryChange, ...]:
    """Return what makes the index entries of ``paths`` those of a tree."""
    changes: list[EntryChange] = []
    for path in sorted(paths):
        wanted, entry = tree.get(path), index.entries.get(path)
        if wanted is None:
            changes.append(EntryChange(path))
        elif entry is None or (entry.mode, entry.blob) != (wanted.mode, wanted.blob):
            skip = entry is not None and entry.skip_worktree
            changes.append(EntryChange(path, wanted.mode, wanted.blob, skip))
    return tuple(changes)


def reset(
    context: Context,
    revision: str,
    *,
    mode: str = "mixed",
    who: Identity | None = None,
    progress: ByteProgress = None,
) -> CheckoutResult:
    """Move the current branch (or detached HEAD) to a commit.

    Args:
        context: the repository.
        revision: where to.
        mode: ``soft`` moves the branch only, ``mixed`` also the index, ``hard`` also the files,
            local changes to tracked files are lost.
        who: for the reflog.
        progress: called with bytes written.
    """
    if mode not in ("soft", "mixed", "hard"):
        raise UsageError(f"reset knows soft, mixed and hard, not {mode!r}")
    recover(context)
    history = context.history
    head, commit = history.head(), history.resolve(revision)
    index = history.read_index()
    tree = history.read_tree(commit)
    plan = CheckoutPlan()
    if mode == "hard":
        plan = plan_checkout(context, index, tree, force=True, materialise=False)
    elif mode == "mixed":
        plan = CheckoutPlan(entries=_entry_changes(index, tree, {*tree, *index.entries}))
    message = f"reset: moving to {revision}"
    move = plan_head_move("move", commit, head, message, context.who(who))
    return execute(context, plan, index, move, progress)


def reset_paths(
    context: Context, patterns: Sequence[str], revision: str = "HEAD"
) -> CheckoutResult:
    """Unstage paths: their index entries become those of a revision; files stay as they are."""
    recover(context)
    source = revision
    if context.history.head().commit is None and revision == "HEAD":
        index = context.history.read_index()
        chosen = select_paths(patterns, list(index.entries))
        plan = CheckoutPlan(entries=tuple(EntryChange(path) for path in chosen))
        return execute(context, plan, index, None)
    return restore_paths(context, patterns, source=source, staged=True, worktree=False)

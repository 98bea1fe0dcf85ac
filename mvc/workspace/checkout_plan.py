"""What a checkout has to write, remove and refuse; and how such a plan is carried out.

Four things are compared per path: what HEAD has, what the index has, what the target has, and
what is in the worktree. The rules are those of Git's two-way merge (``git help read-tree``):

    HEAD → target   the index has      then
    unchanged       anything           index and file stay as they are, staged or edited
    changed         what the target    index and file stay: that was done before
    changed         what HEAD has      the target's, if the file is clean: as the index has it,
                                       gone, or by chance what the target has; else a conflict
    changed         something else     a conflict: what is staged would be lost

"Has nothing" is a state like any other in this table. With ``force``, HEAD does not count, and the
target replaces whatever the index and tracked files have. Untracked files in a folder that must
become a file, and files where a folder must be, are never removed: no one named them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from mvc.errors import ConflictError
from mvc.progress import announce, current_progress
from mvc.workspace.journal import (
    EntryChange,
    FileRemoval,
    FileWrite,
    HeadMove,
    Mark,
    Transition,
    Undecided,
    Was,
)
from mvc.workspace.manifests import stored_size
from mvc.workspace.pathspec import list_paths
from mvc.workspace.pending import check_decided
from mvc.workspace.recorded import holds, is_clean, tree_of
from mvc.workspace.released import check_content
from mvc.workspace.staging import stat_mark
from mvc.workspace.transition import run
from mvc.workspace.worktree import find_file_stat, find_obstacle, folders_above

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.fs import FileStat
    from mvc.history.values import Index, IndexEntry, TreeEntry
    from mvc.ids import GitId
    from mvc.workspace.context import Context


STASH_THEM = 'commit them, or "mvc stash" them away'
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class CheckoutPlan:
    """What a checkout would do; ``entries`` are set without touching a file.

    Content at ``conflicts`` would be lost without force, and not even force removes ``blockers``.
    ``seen`` is what was at the paths when planning: nothing else may be replaced.
    """

    write: tuple[tuple[str, TreeEntry], ...] = ()
    remove: tuple[str, ...] = ()
    entries: tuple[EntryChange, ...] = ()
    conflicts: tuple[str, ...] = ()
    blockers: tuple[str, ...] = ()
    seen: Mapping[str, Was | None] = field(default_factory=dict)
    into_index: bool = True
    undecided: tuple[Undecided, ...] = ()
    unstaged: frozenset[str] = frozenset()  # the index keeps what it has at these paths

    def check(self, hint: str = "commit them, or discard them with `force`") -> None:
        """Check that the plan can run; ``hint`` is what to do about local changes."""
        if self.conflicts:
            raise ConflictError(
                f"local changes would be overwritten: {list_paths(self.conflicts, _SHOWN)}",
                hint=hint,
            )
        if self.blockers:
            raise ConflictError(
                f"in the way: {list_paths(self.blockers, _SHOWN)}", hint="move them elsewhere"
            )


@dataclass(frozen=True, slots=True)
class CheckoutResult:
    """What a checkout did.

    Attributes:
        commit: where HEAD is now, or None before the first commit.
        branch: the current branch, or None if HEAD is detached.
        written: paths written.
        removed: paths removed.
    """

    commit: GitId | None
    branch: str | None
    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def plan_checkout(
    context: Context,
    index: Index,
    base: Mapping[str, TreeEntry],
    target: Mapping[str, TreeEntry],
    *,
    force: bool = False,
    materialise: bool = True,
) -> CheckoutPlan:
    """Return what it takes to turn index and worktree from HEAD's tree (``base``) into ``target``.

    ``materialise`` also writes files that were committed from memory and never written.
    """
    planner = _Planner(context, index, materialise=materialise)
    if force:
        for path in sorted({*target, *index.entries, *index.unmerged}):
            planner.force(path, target.get(path))
    else:
        check_decided(index)
        # Without an index file nothing was staged, and so nothing was removed from it either.
        known = base if index.timestamp_ns or index.entries else {}
        for path in sorted({*known, *target, *index.entries}):
            planner.merge(path, known.get(path), target.get(path))
        planner.check_names()
    return planner.plan()


def plan_return(context: Context, index: Index, target: Mapping[str, TreeEntry]) -> CheckoutPlan:
    """Return what it takes to go from a merge that is under way back to HEAD's tree (``target``).

    What the merge changed becomes as it was, undecided files too whatever they hold; files that it
    left alone keep their changes.
    """
    planner = _Planner(context, index, materialise=False)
    for path in sorted({*target, *index.entries, *index.unmerged}):
        entry = index.entries.get(path)
        if path in index.unmerged:
            planner.give_up(path, target.get(path))
        else:
            staged = None if entry is None else entry.version
            planner.merge(path, staged, target.get(path))
    return planner.plan()


def plan_move(
    context: Context,
    index: Index,
    source: GitId | None,
    target: GitId,
    *,
    force: bool = False,
    materialise: bool = True,
) -> CheckoutPlan:
    """Return what it takes to go from HEAD's commit (``source``) to another."""
    # With force a damaged commit can be left: its tree is not read.
    base = {} if force else tree_of(context, source)
    tree = context.history.read_tree(target)
    return plan_checkout(context, index, base, tree, force=force, materialise=materialise)


class _Planner:
    """Collects the plan of one checkout, path by path."""

    def __init__(self, context: Context, index: Index, *, materialise: bool) -> None:
        self._context = context
        self._index = index
        self._materialise = materialise
        self._write: dict[str, TreeEntry] = {}
        self._remove: list[str] = []
        self._entries: list[EntryChange] = []
        self._conflicts: list[str] = []
        self._seen: dict[str, Was | None] = {}

    def merge(self, path: str, old: TreeEntry | None, wanted: TreeEntry | None) -> None:
        """Plan one path by the rules of the two-way merge."""
        entry = self._index.entries.get(path)
        staged = None if entry is None else entry.version
        if wanted in (old, staged):
            if entry is not None and self._materialise and self._is_sleeping(entry):
                self._write[entry.path] = entry.version
        elif staged != old:
            self._conflicts.append(path)
        elif entry is not None and self._is_sleeping(entry):
            self._wake(entry, wanted)
        elif wanted is None:
            assert entry is not None
            self._drop(entry)
        else:
            self._take(path, entry, wanted)

    def force(self, path: str, wanted: TreeEntry | None) -> None:
        """Plan one path that becomes the target's, whatever it is now."""
        entry = self._index.entries.get(path)
        if entry is not None and self._is_sleeping(entry):
            self._wake(entry, wanted)
            return
        stat = self._look(path)
        is_file = stat is not None and not stat.is_directory
        if wanted is None:
            if is_file:
                self._remove.append(path)
            else:
                self._entries.append(EntryChange(path))
        elif entry is None or entry.version != wanted or not self._is_clean(entry, stat):
            self._write[path] = wanted

    def give_up(self, path: str, wanted: TreeEntry | None) -> None:
        """Plan one undecided path that becomes the target's."""
        if wanted is None:
            self.force(path, None)
            return
        is_asleep = path in self._index.asleep and self._look(path) is None
        if is_asleep or holds(self._context, self._index, path, wanted.mode, wanted.blob):
            self._entries.append(EntryChange(path, wanted.mode, wanted.blob, is_asleep))
        else:
            self._look(path)
            self._write[path] = wanted

    def _look(self, path: str) -> FileStat | None:
        """Return the stat of a path and remember it: a file that changes from now on stays."""
        stat = find_file_stat(self._context.worktree, path)
        self._seen[path] = stat_mark(stat)
        return stat

    def _is_clean(self, entry: IndexEntry | None, stat: FileStat | None) -> bool:
        """Return whether a tracked file is there and holds what the index says."""
        if entry is None or stat is None:
            return False
        return is_clean(self._context, self._index, entry, stat)

    def _is_sleeping(self, entry: IndexEntry) -> bool:
        """Return whether a file was committed from memory and never written."""
        return entry.skip_worktree and self._look(entry.path) is None

    def _wake(self, entry: IndexEntry, wanted: TreeEntry | None) -> None:
        if wanted is None:
            self._entries.append(EntryChange(entry.path))
        elif self._materialise:
            self._write[entry.path] = wanted
        elif entry.version != wanted:
            self._entries.append(
                EntryChange(entry.path, wanted.mode, wanted.blob, skip_worktree=True)
            )

    def _drop(self, entry: IndexEntry) -> None:
        stat = self._look(entry.path)
        if stat is None or stat.is_directory:
            self._entries.append(EntryChange(entry.path))
        elif self._is_clean(entry, stat):
            self._remove.append(entry.path)
        else:
            self._conflicts.append(entry.path)

    def _take(self, path: str, entry: IndexEntry | None, wanted: TreeEntry) -> None:
        stat = self._look(path)
        if stat is None or stat.is_directory or self._is_clean(entry, stat):
            self._write[path] = wanted
        elif holds(self._context, self._index, path, wanted.mode, wanted.blob):
            # Already there: only the index has to change.
            self._entries.append(EntryChange(path, wanted.mode, wanted.blob))
        else:
            self._conflicts.append(path)

    def check_names(self) -> None:
        """Find staged files that stay although the target needs their name for a folder or file."""
        dropped = {change.path for change in self._entries if change.blob is None}
        kept = {*self._index.entries}.difference(dropped, self._remove)
        paths = kept.union(self._write, (change.path for change in self._entries if change.blob))
        for path in sorted(paths):
            for above in folders_above(path):
                if above in paths:
                    self._conflicts.append(above if above in kept else path)

    def plan(self) -> CheckoutPlan:
        return CheckoutPlan(
            tuple(self._write.items()),
            tuple(self._remove),
            tuple(self._entries),
            tuple(dict.fromkeys(self._conflicts)),
            find_blockers(self._context.worktree, self._write, self._remove),
            self._seen,
        )


def find_blockers(
    worktree: Path, write: Collection[str], remove: Collection[str]
) -> tuple[str, ...]:
    """Return the files that are in the way of those to write and will not be removed first."""
    gone, found = set(remove), dict[str, None]()
    for path in write:
        obstacle = find_obstacle(worktree, path)
        if obstacle is not None:
            if obstacle not in gone:
                found[obstacle] = None
            continue
        stat = find_file_stat(worktree, path)
        if stat is not None and stat.is_directory:
            # Everything that is not a folder: ignored files, other repositories', pipes.
            inside = (
                os.path.relpath(place, worktree)
                for root, folders, names in os.walk(worktree / path)
                for place in (
                    *(os.path.join(root, name) for name in names),
                    *filter(os.path.islink, (os.path.join(root, name) for name in folders)),
                )
            )
            staying = (name for name in inside if name not in gone)
            found.update(dict.fromkeys(islice(staying, _SHOWN + 1)))
    return tuple(found)


def execute(
    context: Context,
    plan: CheckoutPlan,
    index: Index,
    head: HeadMove | None,
    *,
    source: GitId | None = None,
    command: str = "mvc checkout {}",
    before: Callable[[], None] | None = None,
    marks: tuple[Mark, ...] = (),
) -> CheckoutResult:
    """Carry out a plan that was made against ``index``; a refusal changes nothing.

    ``marks`` are the files beside HEAD that say what is under way.
    ``command`` is what to do instead if content of ``source`` was released. ``before`` is called as
    in ``transition.run``, but not if there is nothing to do.
    """
    plan.check()
    versions = [(path, entry.blob) for path, entry in plan.write]
    check_content(context, versions, commit=source, command=command)
    unstaged = plan.unstaged.union(entry.path for entry in plan.undecided)
    transition = Transition(
        writes=tuple(
            FileWrite(
                path,
                entry.mode,
                entry.blob,
                into_index=plan.into_index and path not in unstaged,
                was=_was(context, plan, path),
            )
            for path, entry in plan.write
        ),
        removals=tuple(
            FileRemoval(
                path, _was(context, plan, path), from_index=plan.into_index and path not in unstaged
            )
            for path in plan.remove
        ),
        entries=plan.entries,
        head=head,
        undecided=plan.undecided,
        marks=marks,
    )
    moves_head = head is not None and head.kind != "stay"
    if transition.paths() or moves_head or marks:
        if current_progress() is not None:
            announce(sum(stored_size(context, entry.blob) for _, entry in plan.write))
        run(context, transition, index, before=before)
    now = context.history.head()
    written = tuple(path for path, _ in plan.write)
    return CheckoutResult(now.commit, now.branch, written, plan.remove)


def _was(context: Context, plan: CheckoutPlan, path: str) -> Was | None:
    if path in plan.seen:
        return plan.seen[path]
    return stat_mark(find_file_stat(context.worktree, path))

"""stash: local changes saved as Git saves them, and restored by a merge.

A stash is a commit of the files as they were, on top of HEAD then; its other parents are the index
and, if they were taken too, the untracked files. ``refs/stash`` is the newest, and its log is the
stack. What is put aside is durable before a file is touched.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, NotFoundError
from mvc.history.values import CommitInfo, Head, Index, TreeEntry
from mvc.ids import GitId
from mvc.merging.files import Sides, plan_files
from mvc.merging.rules import Rules
from mvc.merging.strategies import Methods, make_choices
from mvc.merging.trees import write_merge
from mvc.operations.add import AddResult, plan_add, store_planned
from mvc.operations.merge import MergeResult, check_rules, make_result
from mvc.workspace.checkout_plan import STASH_THEM, CheckoutPlan, execute, plan_checkout
from mvc.workspace.context import Context, holds_sweep_lock
from mvc.workspace.journal import EntryChange, HeadMove
from mvc.workspace.pathspec import list_paths, select_paths
from mvc.workspace.pending import check_decided, check_nothing_pending
from mvc.workspace.recorded import holds, staged_tree
from mvc.workspace.recovery import recover
from mvc.workspace.staging import stat_mark
from mvc.workspace.transition import plan_head_move
from mvc.workspace.worktree import find_file_stat, relative_paths

if TYPE_CHECKING:
    from mvc.workspace.worktree import Paths

    Tree = Mapping[str, TreeEntry]

_REF = "refs/stash"
_SHORT = 7
_WITH_UNTRACKED = 3  # parents
_TWO = 2  # what is there, and what was put aside


@dataclass(frozen=True, slots=True)
class StashEntry:
    """One stash.

    Attributes:
        number: its place in the stack, 0 the newest.
        commit: the commit that keeps it.
        message: what it is called.
        time_s: when it was made, seconds since 1970.
    """

    number: int
    commit: GitId
    message: str
    time_s: int


@holds_sweep_lock
def push(
    context: Context,
    message: str | None = None,
    *,
    paths: Paths = (),
    untracked: bool = False,
    keep_index: bool = False,
) -> StashEntry | None:
    """Save local changes, and restore index and files to HEAD.

    Args:
        message: what to call it; defaults to the branch and its last commit.
        paths: only the changes of these files, folders or wildcards.
        untracked: take files that are not tracked too, but not ignored ones.
        keep_index: leave what is staged, in the index and in the files.

    Returns:
        The stash, or None if there is nothing to put aside.

    Raises:
        ConflictError: a merge is under way, a file changes meanwhile, or there is no commit.
        NotFoundError: a path that names nothing.
    """
    patterns = relative_paths(context, paths)
    recover(context)
    check_nothing_pending(context)
    history = context.history
    head, index = history.head(), history.read_index()
    check_decided(index)
    if head.commit is None:
        raise ConflictError("there is no commit yet", hint="a stash is on top of one")
    info = history.read_commit(head.commit)
    base, staged = history.read_tree(head.commit), staged_tree(index)
    plan = plan_add(context, [""], tracked_only=not untracked)
    chosen = set(select_paths(patterns, {*base, *index.entries, *plan.read}))
    read, dropped = (
        tuple(path for path in some if path in chosen) for some in (plan.read, plan.drop)
    )
    added = store_planned(context, replace(plan, read=read, drop=dropped))
    files = {path: entry.version for path, entry in added.merge_into(index).items()}
    extra = {path: files.pop(path) for path in list(files) if path not in index.entries}
    files, staged = (_mix(base, tree, chosen) for tree in (files, staged))
    if files == base and staged == base and not extra:
        return None
    name = f"{head.branch or '(no branch)'}: {info.id[:_SHORT]} {info.subject}"
    text = f"WIP on {name}" if message is None else f"On {head.branch or '(no branch)'}: {message}"
    stash = _record(context, info, text, name, (files, staged, extra))
    target = staged if keep_index else base
    back = _plan_back(
        context, index, _mix(staged_tree(index), target, chosen), added, extra, chosen
    )
    old, stamp = history.find_ref(_REF), context.stamp()
    execute(
        context,
        back,
        index,
        _stay(context, head),
        before=lambda: history.update_ref(_REF, stash, expected=old, message=text, stamp=stamp),
    )
    return StashEntry(0, stash, text, stamp.time_s)


def _record(
    context: Context,
    head: CommitInfo,
    text: str,
    name: str,
    trees: tuple[Tree, Tree, Tree],
) -> GitId:
    """Write the commits of a stash, durable, and return the one that stands for it."""
    history, stamp = context.history, context.stamp()
    files, staged, extra = trees

    def write(tree: Tree, parents: list[GitId], message: str) -> GitId:
        made = history.write_tree(tree)
        return history.write_commit(tree=made, parents=parents, message=message, author=stamp)

    parents = [head.id, write(staged, [head.id], f"index on {name}\n")]
    if extra:
        parents.append(write(extra, [], f"untracked files on {name}\n"))
    stash = write(files, parents, text + "\n")
    history.sync_objects()
    return stash


def _mix(base: Tree, other: Tree, chosen: Collection[str]) -> dict[str, TreeEntry]:
    """Return a tree with some paths as another has them."""
    kept = {path: entry for path, entry in base.items() if path not in chosen}
    return kept | {path: entry for path, entry in other.items() if path in chosen}


def _plan_back(
    context: Context,
    index: Index,
    target: Tree,
    added: AddResult,
    extra: Tree,
    chosen: Collection[str],
) -> CheckoutPlan:
    """Return what brings index and files back, and takes the untracked files away."""
    plan = plan_checkout(context, index, {}, target, force=True, materialise=False)
    plan = replace(
        plan,
        write=tuple(file for file in plan.write if file[0] in chosen),
        remove=tuple(path for path in plan.remove if path in chosen),
        entries=tuple(change for change in plan.entries if change.path in chosen),
    )
    # What changed after it was stored is in no stash: it must not be replaced.
    stored = {file.path: stat_mark(file.stat) for file in added.added}
    seen = {path: stored.get(path, was) for path, was in plan.seen.items()} | {
        path: stored[path] for path in extra
    }
    return replace(plan, remove=(*plan.remove, *extra), seen=seen)


def list_stashes(context: Context) -> list[StashEntry]:
    """Return what was put aside, the newest first."""
    return [
        StashEntry(number, entry.new, entry.message, entry.time_s)
        for number, entry in enumerate(context.history.read_reflog(_REF))
        if entry.new is not None
    ]


def pick_stash(stashes: Sequence[StashEntry], number: int) -> StashEntry:
    """Return one stash of the stack."""
    if not 0 <= number < len(stashes):
        raise NotFoundError(
            f"there is no stash {number}" if stashes else "there is no stash",
            hint='"mvc stash list" lists them' if stashes else '"mvc stash" makes one',
        )
    return stashes[number]


@holds_sweep_lock
def apply(
    context: Context,
    number: int = 0,
    *,
    pop: bool = False,
    index: bool = False,
    strategy: str | None = None,
    rules: Sequence[tuple[str, str]] = (),
) -> MergeResult:
    """Merge what was put aside into the files; the index keeps what it has.

    Args:
        number: which stash, 0 the newest.
        pop: forget it then, unless there are conflicts.
        index: stage what was staged then.
        strategy: what decides conflicts, as in ``merge``; ``theirs`` is the stash.
        rules: (pattern, strategy).

    Returns:
        What was done; files with conflicts wait to be added.

    Raises:
        NotFoundError: there is no such stash.
        ConflictError: local changes or untracked files are in the way, or what was staged is.
    """
    recover(context)
    check_nothing_pending(context)
    choices = make_choices(strategy, rules, {}, 0)
    history, entry = context.history, pick_stash(list_stashes(context), number)
    info = history.read_commit(entry.commit)
    head, now = history.head(), history.read_index()
    check_decided(now)
    ours = staged_tree(now)
    sides = Sides(
        history.read_tree(info.parents[0]),
        [ours, history.read_tree(info.id)],
        ("Updated upstream", "Stashed changes"),
    )
    staged = _merge_index(context, sides, info.parents[1]) if index else None
    merges = plan_files(context, sides, choices.rules, choices.methods(context, 2).resolve)
    check_rules(context, choices.rules, sides)
    merged = write_merge(context, merges, ours)
    plan = plan_checkout(context, now, ours, merged.entries, materialise=False)
    plan = _keep_index(plan, ours)
    if staged is not None and not merged.conflicts:
        plan = _set_index(plan, ours, staged)
    plan = replace(plan, undecided=merged.undecided(()))
    plan = _with_untracked(context, now, plan, info)
    plan.check(STASH_THEM)
    done = execute(context, plan, now, _stay(context, head), source=info.id)
    result = make_result("conflicts" if merged.conflicts else "staged", done, (info.id,), merges)
    if pop and not merged.conflicts:
        drop(context, number)
    return result


def _merge_index(context: Context, sides: Sides, staged: GitId) -> Tree:
    """Return what is staged now and was staged then; refused where these are in each other's way."""
    both = replace(sides, trees=[sides.trees[0], context.history.read_tree(staged)])
    merged = write_merge(
        context, plan_files(context, both, Rules(), Methods(_TWO, {}).resolve), both.trees[0]
    )
    if merged.conflicts:
        paths = list(dict.fromkeys(conflict.path for conflict in merged.conflicts))
        raise ConflictError(
            f"the stashed index conflicts with the index: {list_paths(paths, 5)}",
            hint="apply the stash without its index",
        )
    return merged.entries


def _set_index(plan: CheckoutPlan, ours: Tree, staged: Tree) -> CheckoutPlan:
    """Return a plan after which the index has what is in ``staged``, whatever the files have."""
    changed = [path for path in {**ours, **staged} if ours.get(path) != staged.get(path)]
    entries = tuple(
        EntryChange(path, staged[path].mode, staged[path].blob)
        if path in staged
        else EntryChange(path)
        for path in changed
    )
    return replace(plan, entries=entries, unstaged=plan.unstaged.union(staged))


def _stay(context: Context, head: Head) -> HeadMove:
    return plan_head_move("stay", str(head.commit), head, "", context.stamp())


def _keep_index(plan: CheckoutPlan, ours: Tree) -> CheckoutPlan:
    """Return a plan that changes files, and adds to the index only what it has not."""
    known = [change for change in plan.entries if change.path in ours]
    asleep = {
        change.path: TreeEntry(change.mode, GitId(change.blob))
        for change in known
        if change.blob is not None and change.skip_worktree
    }
    entries = tuple(change for change in plan.entries if change.path not in ours)
    write = (*plan.write, *asleep.items())
    return replace(plan, write=write, entries=entries, unstaged=frozenset(ours))


def _with_untracked(
    context: Context, index: Index, plan: CheckoutPlan, info: CommitInfo
) -> CheckoutPlan:
    """Return a plan that also brings the untracked files back; those in the way are refused."""
    if len(info.parents) < _WITH_UNTRACKED:
        return plan
    extra = context.history.read_tree(info.parents[2])
    missing = {
        path: entry
        for path, entry in extra.items()
        if not holds(context, index, path, entry.mode, entry.blob)
    }
    clashing = [path for path in missing if find_file_stat(context.worktree, path) is not None]
    if clashing:
        raise ConflictError(
            f"untracked files are in the way: {list_paths(clashing, 5)}",
            hint="move them elsewhere",
        )
    return replace(
        plan,
        write=(*plan.write, *missing.items()),
        unstaged=plan.unstaged.union(missing),
    )


def drop(context: Context, number: int = 0) -> StashEntry:
    """Forget a stash, 0 the newest; return what it was.

    Raises:
        NotFoundError: there is no such stash.
    """
    with context.history.lock():
        entry = pick_stash(list_stashes(context), number)
        context.history.drop_reflog_entry(_REF, number, stamp=context.stamp())
    return entry


def clear(context: Context) -> int:
    """Drop all stashes; return how many there were."""
    with context.history.lock():
        count, held = len(list_stashes(context)), context.history.find_ref(_REF)
        if held is not None:
            context.history.delete_ref(_REF, expected=held, stamp=context.stamp())
    return count

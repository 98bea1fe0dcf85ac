"""Ends a merge, cherry-pick or revert under way: aborts, decides, concludes.

All that is known of it is in the index, in the marks beside HEAD and in the worktree; so what the
merge had left is computed anew, to tell what a person has changed since.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from mvc.errors import ConflictError
from mvc.merging.files import FileMerge, Sides, plan_files
from mvc.merging.rules import Rules
from mvc.merging.shards import find_models
from mvc.merging.strategies import MergeChoices, read_choices
from mvc.merging.text import MAX_TEXT_BYTES
from mvc.merging.trees import find_conflicts, undecided_sides, write_merge
from mvc.operations.merge import MergeResult, check_rules, count_tensors
from mvc.workspace.checkout_plan import CheckoutPlan, CheckoutResult, execute, plan_return
from mvc.workspace.context import Context, holds_sweep_lock
from mvc.workspace.journal import ENDED, EntryChange, Mark, Undecided, make_marks
from mvc.workspace.pathspec import list_paths
from mvc.workspace.pending import Pending, find_pending
from mvc.workspace.recorded import holds, staged_tree, tree_of
from mvc.workspace.recovery import recover
from mvc.workspace.transition import plan_head_move
from mvc.workspace.worktree import find_file_stat

if TYPE_CHECKING:
    from mvc.history.values import Index, TreeEntry
    from mvc.ids import GitId

_SHOWN = 5
_TWO = 2  # ours and theirs
_THEIRS = b">>>>>>> "


@holds_sweep_lock
def abort(
    context: Context, kind: Literal["merge", "cherry-pick", "revert"] = "merge"
) -> CheckoutResult:
    """Abort a merge, cherry-pick or revert, and restore index and files.

    Raises:
        ConflictError: nothing of that kind is under way, or a file that it brought was changed.
    """
    recover(context)
    pending = get_pending(context, kind)
    return go_back(context, pending.origin, ENDED)


def go_back(context: Context, commit: GitId | None, marks: tuple[Mark, ...]) -> CheckoutResult:
    """Undo what is under way, back to a commit or (None) to HEAD."""
    index, head = context.history.read_index(), context.history.head()
    kind, target = ("stay", head.commit) if commit in (None, head.commit) else ("move", commit)
    plan = plan_return(context, index, tree_of(context, target))
    message = f"reset: moving to {target}"
    move = plan_head_move(kind, str(target), head, message, context.stamp())
    return execute(context, plan, index, move, marks=marks)


def get_pending(context: Context, kind: str) -> Pending:
    """Return what is under way, which must be of that kind."""
    pending = find_pending(context)
    if pending is None or pending.kind != kind:
        other = "" if pending is None else f', but a {pending.kind} is: "mvc {pending.kind}"'
        raise ConflictError(f"no {kind} is under way{other}")
    return pending


@holds_sweep_lock
def decide(context: Context, kind: str, choices: MergeChoices | None = None) -> list[FileMerge]:
    """Resolve by rules what a merge left undecided, or raise ConflictError; return the result."""
    recover(context)
    pending = get_pending(context, kind)
    earlier = read_choices(pending.message)
    choices = (choices or MergeChoices()).after(earlier)
    index = context.history.read_index()
    done: list[FileMerge] = []
    if index.unmerged and choices != earlier:
        done = _decide(context, index, choices, pending)
        index = context.history.read_index()
    if index.unmerged:
        conflicts = find_conflicts(context, index, choices)
        names = [
            conflict.path if conflict.tensor is None else conflict.tensor for conflict in conflicts
        ]
        raise ConflictError(
            f"still undecided: {list_paths(names, _SHOWN)}",
            hint='"mvc add" the files as they should be, or give rules',
        )
    return done


def _decide(
    context: Context, index: Index, choices: MergeChoices, pending: Pending
) -> list[FileMerge]:
    """Write the files that rules resolved to index and worktree."""
    sides, methods = undecided_sides(context, index, choices), choices.methods(context, _TWO)
    earlier = read_choices(pending.message)
    new = [rule for rule in choices.rules.rules if rule not in earlier.rules.rules]
    # One about what is decided already is no mistake: it had nothing to decide.
    everything = replace(sides, trees=[*sides.trees, staged_tree(index)])
    check_rules(context, Rules(tuple(new)), everything)
    plan, left = CheckoutPlan(), list[str]()
    done: list[FileMerge] = []
    models = find_models(index.unmerged)  # the files of a model are decided together
    joined = {path for paths in models for path in paths}
    for paths in [*models, *([path] for path in index.unmerged if path not in joined)]:
        part = replace(
            sides,
            base=_only(sides.base, paths),
            trees=[_only(tree, paths) for tree in sides.trees],
            labels=("HEAD", _find_label(context, paths[-1])),
        )
        merges = plan_files(context, part, choices.rules, methods.resolve)
        merged = write_merge(context, merges, part.trees[0])
        _check_untouched(context, index, paths, part, earlier)
        undecided = {file.path: file for file in merged.undecided(())}
        for path in paths:
            plan = _plan_decided(
                context, index, plan, path, merged.entries.get(path), undecided.get(path)
            )
        left += undecided
        done += merges
    head = context.history.head()
    stay = plan_head_move("stay", str(head.commit), head, "", context.stamp())
    # What was said counts from now on, for what is still to be decided and for the commit.
    marks = make_marks(replace(pending, message=choices.sign(pending.message)), None, left)
    execute(context, plan, index, stay, marks=marks)
    return done


def _plan_decided(
    context: Context,
    index: Index,
    plan: CheckoutPlan,
    path: str,
    wanted: TreeEntry | None,
    undecided: Undecided | None,
) -> CheckoutPlan:
    """Add one file to a plan: as it is now decided, or as far as it is."""
    if _is_asleep(context, index, path):
        if undecided is not None:
            return plan
        mode, blob = (wanted.mode, wanted.blob) if wanted else (0, None)
        change = EntryChange(path, mode, blob, skip_worktree=wanted is not None)
        return replace(plan, entries=(*plan.entries, change))
    plan = replace(plan, undecided=(*plan.undecided, *([undecided] if undecided else [])))
    if wanted is None:
        return replace(plan, remove=(*plan.remove, path))
    return replace(plan, write=(*plan.write, (path, wanted)))


def _is_asleep(context: Context, index: Index, path: str) -> bool:
    """Return whether an undecided file was never written to the worktree."""
    return path in index.asleep and find_file_stat(context.worktree, path) is None


def _only(tree: Mapping[str, TreeEntry], paths: Sequence[str]) -> dict[str, TreeEntry]:
    return {path: tree[path] for path in paths if path in tree}


def _check_untouched(
    context: Context, index: Index, paths: Sequence[str], sides: Sides, choices: MergeChoices
) -> None:
    """Check that files of the worktree are as the merge left them."""
    merges = plan_files(context, sides, choices.rules, choices.methods(context, _TWO).resolve)
    entries = write_merge(context, merges, sides.trees[0]).entries
    for path in paths:
        left = None if _is_asleep(context, index, path) else entries.get(path)
        if left is not None and not holds(context, index, path, left.mode, left.blob):
            raise ConflictError(
                f"{path!r} has changed since, and a rule would overwrite it",
                hint=f'"mvc add {path}" accepts it as it is',
            )


def _find_label(context: Context, path: str) -> str:
    """Return what the markers in a file of the worktree call their side."""
    with contextlib.suppress(OSError), open(context.worktree / path, "rb") as file:
        for line in file.read(MAX_TEXT_BYTES).splitlines():
            if line.startswith(_THEIRS):
                return line.removeprefix(_THEIRS).decode("utf-8", "replace")
    return "theirs"


@holds_sweep_lock
def conclude(
    context: Context,
    kind: str,
    *,
    choices: MergeChoices | None = None,
    message: str | None = None,
    no_gate: bool = False,
) -> MergeResult:
    """Resolve the rest by rules and make the commit."""
    from mvc.operations.commit import commit  # noqa: PLC0415  a merge that goes well needs none

    merges = decide(context, kind, choices)
    pending = get_pending(context, kind)
    choices = (choices or MergeChoices()).after(read_choices(pending.message))
    done = commit(context, choices.sign(message or pending.message), no_gate=no_gate)
    tensors, size = count_tensors(merges)
    return MergeResult(
        "merged", done.commit, done.branch, pending.heads, tensors=tensors, bytes_computed=size
    )

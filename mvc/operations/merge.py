"""merge: combine the changes of other branches since they diverged, as Git does.

What is decided is computed from trees and manifests; then new bytes are stored, the commit is made, and
index, files and HEAD follow in one transition. Where something is not decided, the same transition
leaves a merge under way: the index has the versions, ``MERGE_HEAD`` what is merged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from mvc.checkpoints.safetensors import METADATA_KEY
from mvc.errors import ConflictError, UsageError
from mvc.history.names import HEADS, REMOTES, TAGS
from mvc.merging.files import Conflict, FileMerge, Sides, plan_files
from mvc.merging.strategies import MergeChoices, make_choices
from mvc.merging.trees import MergedTree, find_base, write_merge
from mvc.operations.status import staged_changes
from mvc.workspace.checkout_plan import (
    STASH_THEM,
    CheckoutPlan,
    execute,
    plan_checkout,
    plan_move,
)
from mvc.workspace.commits import record
from mvc.workspace.context import Context, holds_sweep_lock
from mvc.workspace.journal import make_marks, mark_done, mark_origin
from mvc.workspace.manifests import find_manifest
from mvc.workspace.pathspec import list_paths
from mvc.workspace.pending import Pending, check_decided, check_nothing_pending
from mvc.workspace.recovery import recover
from mvc.workspace.released import check_kept
from mvc.workspace.transition import plan_head_move
from mvc.workspace.worktree import find_file_stat

if TYPE_CHECKING:
    from mvc.history.values import Head, Index, Stamp, TreeEntry
    from mvc.ids import GitId
    from mvc.merging.rules import Rules
    from mvc.workspace.checkout_plan import CheckoutResult

    FastForward = Literal["allowed", "only", "never"]

_SHOWN = 5
_TWO = 2  # ours and theirs
_MAIN = ("main", "master")
_KINDS = {HEADS: "branch", TAGS: "tag", REMOTES: "remote-tracking branch"}


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The result of a merge, cherry-pick or revert.

    Attributes:
        kind: ``up-to-date``, ``fast-forward``, ``merged`` (a commit was made), ``staged`` (it waits for
            one) or ``conflicts`` (it waits for decisions).
        commit: where HEAD is now, or None before the first commit.
        branch: the current branch, or None if HEAD is detached.
        heads: the commits that were merged.
        written: paths written.
        removed: paths removed.
        conflicts: what has to be decided.
        tensors: how many tensors of files that both sides changed came from ``ours``, from
            ``theirs``, from ``base`` or were ``merged``; also ``kept`` and ``conflict``.
        bytes_computed: bytes of tensors that were computed.
    """

    kind: Literal["up-to-date", "fast-forward", "merged", "staged", "conflicts"]
    commit: GitId | None
    branch: str | None
    heads: tuple[GitId, ...] = ()
    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    tensors: Mapping[str, int] = field(default_factory=dict)
    bytes_computed: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """A change to merge into HEAD.

    Attributes:
        pending: what it is, as it will be marked if it cannot be finished.
        sides: what is merged; HEAD's files come first.
        parents: parents of the commit.
        reflog: what the reflog says of it.
        is_committed: whether a commit is made if nothing is left to decide.
        author: who wrote it, and when; by default who merges.
        may_be_empty: whether a commit that changes nothing is made, too.
        no_gate: whether it is made even if it fails a gate.
    """

    pending: Pending
    sides: Sides
    parents: tuple[GitId, ...]
    reflog: str
    is_committed: bool = True
    author: Stamp | None = None
    may_be_empty: bool = True
    no_gate: bool = False


@holds_sweep_lock
def merge(
    context: Context,
    *revisions: str,
    strategy: str | None = None,
    rules: Sequence[tuple[str, str]] = (),
    parameters: Mapping[str, Any] | None = None,
    seed: int = 0,
    tokenizer: str | None = None,
    message: str | None = None,
    fast_forward: Literal["allowed", "only", "never"] = "allowed",
    allow_unrelated: bool = False,
    commit: bool = True,
    no_gate: bool = False,
) -> MergeResult:
    """Merge branches into the current one, tensor by tensor.

    A change on one side is taken without reading the tensor. A change on both sides is a
    conflict, unless a strategy resolves it: ``ours``, ``theirs``, ``base``, or a merge method
    such as ``linear``. After a conflict the merge is under way until ``conclude`` or ``abort``.

    Args:
        revisions: branches or other revisions, at least one.
        strategy: what decides by default; a method only over weights, never over the optimizer
            and other state of a training run.
        rules: (pattern, strategy), for tensors or files that the pattern fits; the first that
            fits decides.
        parameters: of the methods; a sequence has one value for each side, ours first.
        seed: of methods that draw random numbers.
        tokenizer: align embeddings and heads by token, and take the tokenizer that is the
            ``union``, of the ``base``, ``ours``, ``theirs``, or a branch.
        message: of the commit; defaults to Git's words.
        fast_forward: whether the branch may simply move on; ``never`` makes a commit even then.
        allow_unrelated: merge histories without a common commit, too.
        commit: make the commit if there are no conflicts.
        no_gate: as for ``commit``.

    Raises:
        ConflictError: local changes would be lost, a merge is under way, the histories are not
            related, or several branches conflict.
        NotFoundError: no such revision or method; a rule that matches nothing.
        GateError: the result fails a gate.
        UsageError: a parameter out of range, shapes or vocabularies that do not fit.
    """
    choices = make_choices(strategy, rules, parameters or {}, seed, tokenizer)
    recover(context)
    choices.methods(context, 1 + len(revisions))
    check_nothing_pending(context)
    if not revisions:
        raise UsageError("nothing to merge: name a branch or another revision")
    head = context.history.head()
    heads = leave_out_known(
        context, head, [context.history.resolve_commit(revision) for revision in revisions]
    )
    if not heads:
        return MergeResult("up-to-date", head.commit, head.branch)
    if len(heads) == 1 and fast_forward != "never" and is_behind(context, head, heads[0]):
        return _fast_forward(context, head, heads[0], revisions)
    if fast_forward == "only":
        raise ConflictError(
            "not possible to fast-forward: the branches have diverged",
            hint="merge without that condition, which makes a merge commit",
        )
    assert head.commit is not None
    commits = (head.commit, *heads)
    choices = choices.name_tokenizer(context, commits)
    base = find_base(context, commits)
    if base is None and not allow_unrelated:
        raise ConflictError(
            "unrelated histories: no commit in common",
            hint="`allow_unrelated` merges them anyway",
        )
    text = message or _describe(context, head, revisions)
    pending = Pending("merge", tuple(heads), choices.sign(text))
    labels = ("HEAD", revisions[0])
    sides = Sides(base or {}, [context.history.read_tree(commit) for commit in commits], labels)
    reflog = f"merge {' '.join(revisions)}: Merge made by mvc"
    change = Change(pending, sides, commits, reflog, is_committed=commit, no_gate=no_gate)
    return apply_change(context, head, change, choices)


def leave_out_known(context: Context, head: Head, commits: Sequence[GitId]) -> list[GitId]:
    """Return the commits that bring something new: contained in neither HEAD nor another one."""
    history, distinct = context.history, list(dict.fromkeys(commits))
    known = [] if head.commit is None else [head.commit]
    return [
        commit
        for commit in distinct
        if not any(
            history.is_ancestor(commit, other) for other in (*known, *distinct) if other != commit
        )
        and commit not in known
    ]


def is_behind(context: Context, head: Head, other: GitId) -> bool:
    """Return whether the branch has only to move on to reach a commit."""
    return head.commit is None or context.history.is_ancestor(head.commit, other)


def _fast_forward(
    context: Context, head: Head, target: GitId, revisions: Sequence[str]
) -> MergeResult:
    index = context.history.read_index()
    plan = plan_move(context, index, head.commit, target, materialise=False)
    text = f"merge {' '.join(revisions)}: Fast-forward"
    move = plan_head_move("move", target, head, text, context.stamp())
    done = execute(context, plan, index, move, source=target, marks=mark_origin(head.commit))
    return make_result("fast-forward", done, (target,))


def make_result(
    kind: Literal["fast-forward", "merged", "staged", "conflicts"],
    done: CheckoutResult,
    heads: Sequence[GitId],
    merges: Sequence[FileMerge] = (),
) -> MergeResult:
    """Return what a merge did, given the checkout that it took."""
    tensors, size = count_tensors(merges)
    conflicts = tuple(conflict for merge in merges for conflict in merge.conflicts)
    return MergeResult(
        kind, done.commit, done.branch, tuple(heads), done.written, done.removed, conflicts,
        tensors, size,
    )  # fmt: skip


def count_tensors(merges: Sequence[FileMerge]) -> tuple[dict[str, int], int]:
    """Return where the tensors of merged files are from, and how many bytes were computed."""
    checkpoints = [merge.checkpoint for merge in merges if merge.checkpoint is not None]
    tensors = sum((Counter(checkpoint.taken) for checkpoint in checkpoints), Counter[str]())
    return dict(tensors), sum(checkpoint.fresh_bytes for checkpoint in checkpoints)


def apply_change(
    context: Context, head: Head, change: Change, choices: MergeChoices
) -> MergeResult:
    """Merge a change into HEAD and commit it, or leave it under way."""
    history, pending = context.history, change.pending
    sides = replace(change.sides, tokenizer=choices.tokenizer)
    index, ours = history.read_index(), sides.trees[0]
    check_not_staged(index, ours)
    methods = choices.methods(context, len(sides.trees))
    merges = plan_files(context, sides, choices.rules, methods.resolve)
    check_rules(context, choices.rules, sides)
    _check_octopus(merges, sides)
    merged = write_merge(context, merges, ours)
    check_kept(context, merged.entries)
    if not (merged.conflicts or change.may_be_empty) and merged.entries == ours:
        return MergeResult("up-to-date", head.commit, head.branch)
    plan = plan_checkout(context, index, ours, merged.entries, materialise=False)
    plan.check(STASH_THEM)
    heads, stamp = pending.heads, context.stamp()
    if merged.conflicts or not change.is_committed:
        plan = _leave_undecided(context, index, plan, merged)
        stay = plan_head_move("stay", str(head.commit), head, "", stamp)
        marks = make_marks(pending, head.commit, [undecided.path for undecided in plan.undecided])
        done = execute(context, plan, index, stay, marks=marks)
        return make_result("conflicts" if merged.conflicts else "staged", done, heads, merges)
    new = record(
        context, merged.entries, change.parents, pending.message, committer=stamp,
        author=change.author, no_gate=change.no_gate,
    )  # fmt: skip
    move = plan_head_move("move", new, head, change.reflog, stamp)
    marks = (*mark_done(pending), *mark_origin(head.commit))
    done = execute(context, plan, index, move, source=new, marks=marks)
    return make_result("merged", done, heads, merges)


def check_not_staged(index: Index, tree: Mapping[str, TreeEntry]) -> None:
    """Check that no staged change would be mixed into the merge."""
    check_decided(index)
    staged = tuple(staged_changes(tree, index)) if index.timestamp_ns else ()
    if staged:
        raise ConflictError(
            f"staged changes would be mixed into it: {list_paths(staged, _SHOWN)}",
            hint=STASH_THEM,
        )


def _check_octopus(merges: Sequence[FileMerge], sides: Sides) -> None:
    conflicts = [conflict.path for merge in merges for conflict in merge.conflicts]
    if conflicts and len(sides.trees) > _TWO:
        raise ConflictError(
            f"{len(sides.trees) - 1} branches at once cannot be merged where they conflict: "
            f"{list_paths(list(dict.fromkeys(conflicts)), _SHOWN)}",
            hint="give a strategy, or merge one branch after another",
        )


def check_rules(context: Context, rules: Rules, sides: Sides) -> None:
    """Check that every rule matches a file or tensor of the result or of a side."""
    if not rules.rules:
        return
    rules.check_used(_names(context, sides))


def _names(context: Context, sides: Sides) -> Iterator[tuple[str, str | None]]:
    for tree in sides.trees:
        for path, entry in tree.items():
            yield path, None
            manifest = find_manifest(context, entry.blob)
            if manifest is not None and manifest.segments:
                yield path, METADATA_KEY
                yield from ((path, view.name) for view, _ in manifest.tensors())


def _leave_undecided(
    context: Context, index: Index, plan: CheckoutPlan, merged: MergedTree
) -> CheckoutPlan:
    """Return a plan that leaves conflicts to be decided; files that were never written stay so."""
    asleep = {
        path
        for path, entry in index.entries.items()
        if entry.skip_worktree and find_file_stat(context.worktree, path) is None
    }
    return replace(plan, undecided=merged.undecided(asleep))


def _describe(context: Context, head: Head, revisions: Sequence[str]) -> str:
    """Return Git's default message for a merge."""
    groups: dict[str, list[str]] = {}
    for revision in revisions:
        ref = context.history.resolve_ref_name(revision) or ""
        kind = next((kind for prefix, kind in _KINDS.items() if ref.startswith(prefix)), "commit")
        name = ref.removeprefix(REMOTES) if ref.startswith(REMOTES) else revision
        groups.setdefault(kind, []).append(f"'{name}'")
    parts = []
    for kind, names in groups.items():
        listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        plural = "es" if kind.endswith("branch") else "s"
        parts.append(f"{kind}{'' if len(names) == 1 else plural} {listed}")
    return f"Merge {'; '.join(parts)}{name_target(head)}"


def name_target(head: Head) -> str:
    """Return the end of a merge's message: into what, unless that is the main branch."""
    return "" if head.branch in _MAIN else f" into {head.branch or 'HEAD'}"

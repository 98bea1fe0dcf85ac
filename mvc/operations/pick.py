"""cherry-pick and revert: apply or undo the changes of a commit on the current branch.

Both are merges with another base. To pick a commit is to merge it over its parent; to revert it is to
merge its parent over it. A sequence of commits is noted beside HEAD as Git does, so that it can be
continued, skipped or given up at any of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from mvc.errors import ConflictError, UsageError
from mvc.history.messages import parse_trailers
from mvc.history.revisions import split_range
from mvc.history.values import CommitInfo, Stamp
from mvc.merging.files import Sides
from mvc.merging.strategies import MergeChoices, make_choices, read_choices
from mvc.operations.conclude import conclude, get_pending, go_back
from mvc.operations.merge import Change, MergeResult, apply_change
from mvc.workspace.context import Context, holds_sweep_lock
from mvc.workspace.journal import mark_done
from mvc.workspace.pending import Pending, check_nothing_pending, find_pending
from mvc.workspace.recorded import staged_tree, tree_of
from mvc.workspace.recovery import recover

if TYPE_CHECKING:
    from mvc.ids import GitId

    PickKind = Literal["cherry-pick", "revert"]

_SHORT = 7
_ORIGIN, _MAINLINE, _NO_GATE = "record-origin", "mainline", "no-gate"


def cherry_pick(
    context: Context,
    *revisions: str,
    strategy: str | None = None,
    rules: Sequence[tuple[str, str]] = (),
    parameters: Mapping[str, Any] | None = None,
    seed: int = 0,
    mainline: int | None = None,
    record_origin: bool = False,
    commit: bool = True,
    no_gate: bool = False,
) -> MergeResult:
    """Apply the changes of commits to the current branch.

    Stops at the first commit with conflicts; continue with ``conclude``, ``skip`` or ``abort``.
    A commit that would change nothing is left out.

    Args:
        revisions: commits, or ranges ``A..B``, in the order in which they are applied.
        strategy: what decides conflicts, as in ``merge``; ``rules``, ``parameters`` and
            ``seed`` too. ``base`` is the commit's parent.
        rules: (pattern, strategy).
        parameters: of the methods.
        seed: of methods that draw random numbers.
        mainline: the parent, from 1, that a merge is compared with.
        record_origin: name the original commit in the message.
        commit: make commits; otherwise only stage the changes.
        no_gate: as for ``commit``.

    Returns:
        The result of the last step.

    Raises:
        GateError: a commit fails a gate; those before it are made.
        ConflictError: local changes would be lost, or something is under way.
        UsageError: a merge without ``mainline``, no commit in a range.
    """
    return pick(
        context,
        "cherry-pick",
        revisions,
        choices=make_choices(strategy, rules, parameters or {}, seed),
        mainline=mainline,
        record_origin=record_origin,
        commit=commit,
        no_gate=no_gate,
    )


def revert(
    context: Context,
    *revisions: str,
    strategy: str | None = None,
    rules: Sequence[tuple[str, str]] = (),
    arithmetic: bool = False,
    mainline: int | None = None,
    commit: bool = True,
    no_gate: bool = False,
) -> MergeResult:
    """Undo the changes of commits on the current branch.

    A tensor becomes what it was in the commit's parent, bit for bit. One that changed again
    since is a conflict. With ``arithmetic`` the commit's update is subtracted from it instead:
    new = now − (commit − parent), rounded to its dtype, which is not bit-exact.

    Args:
        revisions: commits, or ranges ``A..B``, the newest of a range first.
        strategy: what else decides conflicts, as in ``merge``; ``theirs`` is the parent.
        rules: (pattern, strategy).
        arithmetic: subtract task vectors where tensors changed since.
        mainline: the parent, from 1, that a merge is compared with.
        commit: make commits; otherwise only stage the changes.
        no_gate: as for ``commit``.

    Returns:
        What the last step did; with conflicts, ``conclude``, ``skip`` or ``abort`` goes on.

    Raises:
        GateError: a commit fails a gate; those before it are made.
        ConflictError: local changes would be lost, or something is under way.
        UsageError: a merge without ``mainline``, a strategy together with ``arithmetic``.
    """
    if arithmetic and strategy is not None:
        raise UsageError("`arithmetic` is a strategy; give no other")
    parameters = {"weight": 1.0} if arithmetic else {}
    chosen = "task_arithmetic" if arithmetic else strategy
    return pick(
        context,
        "revert",
        revisions,
        choices=make_choices(chosen, rules, parameters, 0),
        mainline=mainline,
        commit=commit,
        no_gate=no_gate,
    )


@holds_sweep_lock
def pick(
    context: Context,
    kind: PickKind,
    revisions: Sequence[str],
    *,
    choices: MergeChoices | None = None,
    mainline: int | None = None,
    record_origin: bool = False,
    commit: bool = True,
    no_gate: bool = False,
) -> MergeResult:
    """Pick or revert commits, one after another; stops at the first with conflicts."""
    recover(context)
    check_nothing_pending(context)
    choices = choices or MergeChoices()
    choices.methods(context, 2)
    commits = _expand(context, kind, revisions)
    options = {_ORIGIN: "true"} if record_origin else {}
    options |= {_NO_GATE: "true"} if no_gate else {}
    options |= {} if mainline is None else {_MAINLINE: str(mainline)}
    for picked in commits:  # a mistake in the last is told before the first
        _find_parent(context.history.read_commit(picked), mainline)
    head = context.history.head()
    if head.commit is None:
        raise ConflictError("there is no commit yet to apply it to")
    sequence = Pending(kind, (), "", tuple(commits), head.commit, options)
    return _run(context, sequence, choices, commit=commit)


def _expand(context: Context, kind: PickKind, revisions: Sequence[str]) -> list[GitId]:
    """Return the commits that revisions and ranges name, in the order in which they are applied."""
    expanded: list[GitId] = []
    for text in revisions:
        parts = split_range(text)
        if parts is None:
            expanded.append(context.history.resolve_commit(text))
            continue
        old, dots, new = parts
        if dots != "..":
            raise UsageError(f"{text!r} is not a range of commits", hint="write it with two dots")
        start = context.history.resolve_commit(old)
        walk = list(context.history.walk([context.history.resolve_commit(new)]))
        known = {info.id for info in context.history.walk([start])}
        left = [info.id for info in walk if info.id not in known]
        expanded += left if kind == "revert" else reversed(left)
    if not expanded:
        raise UsageError(f"no commit to {kind}")
    return expanded


def _find_parent(info: CommitInfo, mainline: int | None) -> GitId | None:
    """Return the parent that a commit is compared with; None for the first commit."""
    if len(info.parents) <= 1:
        if mainline is not None and mainline != 1:
            raise UsageError(
                f"commit {info.id[:_SHORT]} is not a merge: it has no parent {mainline}"
            )
        return info.parents[0] if info.parents else None
    if mainline is None:
        raise UsageError(
            f"commit {info.id[:_SHORT]} is a merge",
            hint="choose the parent to compare with by `mainline`, from 1",
        )
    if not 1 <= mainline <= len(info.parents):
        raise UsageError(f"commit {info.id[:_SHORT]} has no parent {mainline}")
    return info.parents[mainline - 1]


def _run(
    context: Context, sequence: Pending, choices: MergeChoices, *, commit: bool = True
) -> MergeResult:
    """Apply the rest of a sequence; return the result of the last step."""
    head = context.history.head()
    result = MergeResult("up-to-date", head.commit, head.branch)
    rest = sequence.rest
    for number, picked in enumerate(rest, 1):
        step = replace(sequence, heads=(picked,), rest=rest[number:])
        done = _apply(context, step, choices, commit=commit)
        if done is None and commit and find_pending(context) is not None:
            go_back(context, None, mark_done(step))  # nothing to do: that is noted, too
        result = result if done is None else done
        if result.conflicts:
            break
    return result


def _apply(
    context: Context, step: Pending, choices: MergeChoices, *, commit: bool
) -> MergeResult | None:
    """Apply one commit; None if that changes nothing."""
    info, head = context.history.read_commit(step.heads[0]), context.history.head()
    mainline = step.options.get(_MAINLINE)
    parent = _find_parent(info, None if mainline is None else int(mainline))
    is_revert = step.kind == "revert"
    name = f"{info.id[:_SHORT]} ({info.subject})"
    trees = tree_of(context, parent), context.history.read_tree(info.id)
    base, theirs = reversed(trees) if is_revert else trees
    ours = (
        staged_tree(context.history.read_index()) if not commit else tree_of(context, head.commit)
    )
    label = f"parent of {name}" if is_revert else name
    message = info.message
    if is_revert:  # Git's default message
        merged = f", reversing\nchanges made to {parent}" if len(info.parents) > 1 else ""
        message = f'Revert "{info.subject}"\n\nThis reverts commit {info.id}{merged}.\n'
    if step.options.get(_ORIGIN):
        between = "\n" if parse_trailers(message) else "\n\n"
        message = f"{message.rstrip()}{between}(cherry picked from commit {info.id})\n"
    author = None
    if not is_revert:
        author = Stamp(info.author, info.author_time_s, info.author_timezone_s)
    assert head.commit is not None
    change = Change(
        replace(step, message=choices.sign(message)),
        Sides(base, [ours, theirs], ("HEAD", label)),
        (head.commit,),
        f"{step.kind}: {info.subject}",
        is_committed=commit,
        author=author,
        may_be_empty=False,
        no_gate=_NO_GATE in step.options,
    )
    done = apply_change(context, head, change, choices)
    return None if done.kind == "up-to-date" else done


def finish(
    context: Context,
    kind: Literal["merge", "cherry-pick", "revert"] = "merge",
    *,
    strategy: str | None = None,
    rules: Sequence[tuple[str, str]] = (),
    parameters: Mapping[str, Any] | None = None,
    seed: int = 0,
    message: str | None = None,
    no_gate: bool = False,
) -> MergeResult:
    """Finish a merge, cherry-pick or revert that is under way.

    Args:
        kind: what is under way.
        strategy: decides what is undecided, as in ``merge``; ``rules``, ``parameters`` and
            ``seed`` too.
        rules: (pattern, strategy).
        parameters: of the methods.
        seed: of methods that draw random numbers.
        message: of the commit; by default the one that it would have had.
        no_gate: as for ``commit``.

    Raises:
        ConflictError: nothing of that kind is under way, or something is still undecided.
        GateError: the result fails a gate.
    """
    choices = make_choices(strategy, rules, parameters or {}, seed)

    if kind == "merge":
        return conclude(context, kind, choices=choices, message=message, no_gate=no_gate)
    return resume(context, kind, choices=choices, message=message, no_gate=no_gate)


def resume(
    context: Context,
    kind: PickKind,
    *,
    choices: MergeChoices | None = None,
    message: str | None = None,
    no_gate: bool = False,
) -> MergeResult:
    """Finish the waiting commit and continue the sequence."""
    recover(context)
    pending = get_pending(context, kind)
    if no_gate:
        pending = replace(pending, options={**pending.options, _NO_GATE: "true"})
    choices = (choices or MergeChoices()).after(read_choices(pending.message))
    done = None
    if pending.heads:
        done = conclude(
            context, kind, choices=choices, message=message, no_gate=_NO_GATE in pending.options,
        )  # fmt: skip
    return _go_on(context, pending, choices, done)


def skip(context: Context, kind: Literal["cherry-pick", "revert"]) -> MergeResult:
    """Skip the commit at which a cherry-pick or revert stopped, and continue.

    Raises:
        ConflictError: nothing of that kind is under way.
    """
    recover(context)
    pending = get_pending(context, kind)
    back = go_back(context, None, mark_done(pending))
    done = MergeResult("up-to-date", back.commit, back.branch, (), back.written, back.removed)
    return _go_on(context, pending, read_choices(pending.message), done)


@holds_sweep_lock
def _go_on(
    context: Context, pending: Pending, choices: MergeChoices, done: MergeResult | None
) -> MergeResult:
    if not pending.rest:
        assert done is not None
        return done
    result = _run(context, replace(pending, heads=(), message=""), choices)
    return done if done is not None and result.kind == "up-to-date" else result

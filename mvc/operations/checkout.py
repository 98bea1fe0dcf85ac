"""checkout and switch: going to a branch or revision. Plan first, then one transition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.errors import ConflictError, NotFoundError, UsageError
from mvc.history.names import HEADS, branch_ref
from mvc.history.values import SWITCH_TEXT, Head
from mvc.remotes.tracking import find_namesake, follow
from mvc.workspace.checkout_plan import CheckoutPlan, CheckoutResult, execute, plan_move
from mvc.workspace.context import Context, holds_sweep_lock
from mvc.workspace.journal import ENDED, HeadMove, Mark
from mvc.workspace.pending import check_nothing_pending, is_marked
from mvc.workspace.recovery import recover
from mvc.workspace.released import check_content
from mvc.workspace.transition import plan_head_move, plan_switch
from mvc.workspace.worktree import relative_paths

if TYPE_CHECKING:
    from mvc.ids import GitId
    from mvc.workspace.worktree import Paths


def checkout(
    context: Context, revision: str, *, paths: Paths = (), force: bool = False, detach: bool = False
) -> CheckoutResult:
    """Bring the worktree to a branch or revision, or only some paths back from it.

    Every byte written was verified against its id. As in Git, staged and edited files stay
    if the two commits agree on them.

    Args:
        revision: a branch, which HEAD then follows, or any other revision.
        paths: bring only these back, whatever they hold now; HEAD stays.
        force: discard local changes.
        detach: detach HEAD even at a branch.

    Raises:
        CorruptionError: the store is damaged; the worktree is unchanged.
    """
    chosen = relative_paths(context, paths)
    if chosen:
        from mvc.operations.restore import bring_back  # noqa: PLC0415  most checkouts need it not

        return bring_back(context, chosen, revision, staged=True, removes=False)
    return checkout_revision(context, revision, force=force, detach=detach)


@holds_sweep_lock
def checkout_revision(
    context: Context, revision: str, *, force: bool = False, detach: bool = False
) -> CheckoutResult:
    """Go to a branch (HEAD follows it) or to any other revision (HEAD is detached there).

    As in Git, a name that is both a branch and a tag means the branch.
    """
    recover(context)
    history = context.history
    head = history.head()  # before the index, so that a move of both meanwhile is noticed
    branch = _find_branch(context, head, revision)
    if branch is None and not detach and history.find_commit(revision) is None:
        there = find_namesake(context, revision)
        if there is not None:
            return create_and_switch(context, revision, there, force=force)
    tip = None if branch is None else history.find_ref(HEADS + branch)
    if branch is not None and tip is None and not detach:
        return CheckoutResult(None, branch)  # where HEAD is, before its first commit
    commit = tip or context.history.resolve_commit(revision)
    index = history.read_index()
    marks = _check_may_leave(context, force=force)
    plan = plan_move(context, index, head.commit, commit, force=force)
    move = _head_move(context, head, None if detach else branch, commit, revision)
    return execute(context, plan, index, move, source=commit, marks=marks)


def _check_may_leave(context: Context, *, force: bool) -> tuple[Mark, ...]:
    """Check that nothing is under way, or return what gives it up."""
    if not force:
        check_nothing_pending(context)
    return ENDED if is_marked(context) else ()


def _find_branch(context: Context, head: Head, revision: str) -> str | None:
    """Return the branch that a revision names, or None if it names something else."""
    if revision in ("HEAD", "@"):
        return head.branch
    is_known = context.history.find_ref(HEADS + revision) is not None
    return revision if is_known or revision == head.branch else None


def _head_move(
    context: Context, head: Head, branch: str | None, commit: GitId, revision: str
) -> HeadMove:
    is_there = branch == head.branch if branch is not None else head == Head(None, commit)
    if is_there:
        return plan_head_move("stay", commit, head, "", context.stamp())
    source = head.branch or head.commit or "nothing"
    target = branch if branch is not None else revision
    message = SWITCH_TEXT.format(source, target)
    return plan_switch(branch, commit, head, message, context.stamp())


def switch(
    context: Context,
    branch: str,
    *,
    create: bool = False,
    start: str | None = None,
    force: bool = False,
) -> CheckoutResult:
    """Go to a branch.

    Args:
        branch: its name.
        create: make the branch first.
        start: where the new branch begins; defaults to HEAD, and then no file is touched.
        force: discard local changes.

    Raises:
        ConflictError: the branch to create exists, or local changes would be lost.
        UsageError: not a valid branch name, or ``start`` without ``create``.
    """
    if create:
        return create_and_switch(context, branch, start, force=force)
    if start is not None:
        raise UsageError("only a new branch can have a start")
    history = context.history
    if history.find_ref(HEADS + branch) is None and branch != history.head().branch:
        there = find_namesake(context, branch)
        if there is not None:
            return create_and_switch(context, branch, there, force=force)
        raise NotFoundError(
            f"no branch {branch!r}",
            hint="`create` makes it; a checkout with `detach` goes to any revision",
        )
    return checkout_revision(context, branch, force=force)


@holds_sweep_lock
def create_and_switch(
    context: Context, branch: str, start: str | None, *, force: bool = False
) -> CheckoutResult:
    """Make a branch at ``start`` and go there; without a start (HEAD) no file is touched."""
    recover(context)
    history, stamp = context.history, context.stamp()
    head = history.head()
    ref = branch_ref(branch)
    if history.find_ref(ref) is not None:
        raise ConflictError(
            f"branch {branch!r} already exists", hint=f'"mvc switch {branch}" goes there'
        )
    if start is None and head.commit is None:
        history.set_head_branch(branch, stamp=stamp)
        return CheckoutResult(None, branch)
    commit = context.history.resolve_commit(start or "HEAD")
    index = history.read_index()
    plan = CheckoutPlan()
    marks: tuple[Mark, ...] = ()
    if start is not None and commit != head.commit:
        marks = _check_may_leave(context, force=force)
        plan = plan_move(context, index, head.commit, commit, force=force)
    plan.check()
    versions = [(path, entry.blob) for path, entry in plan.write]
    check_content(context, versions, commit=commit)  # or a refusal would leave the branch behind
    history.update_ref(
        ref, commit, expected=None, message=f"branch: Created from {start or 'HEAD'}", stamp=stamp
    )
    follow(context, branch, start or "HEAD")
    move = _head_move(context, head, branch, commit, branch)
    return execute(context, plan, index, move, source=commit, marks=marks)

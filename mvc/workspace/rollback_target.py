"""Where a rollback goes: the ways to say it, and what may be gone back to.

A branch goes back along its own line, first parents, newest commit first; only a commit that was
named may be any ancestor. Commits whose content was released are passed over, a named one is
refused: what cannot be restored is no place to go back to.
"""

from __future__ import annotations

import operator
from itertools import islice
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, NotFoundError, UsageError
from mvc.history.notes import find_notes
from mvc.history.refnames import HEADS
from mvc.workspace.annotations import read_annotations
from mvc.workspace.health import HEALTHY_REF, first_parents
from mvc.workspace.released import check_content, is_complete
from mvc.workspace.releases import find_release

if TYPE_CHECKING:
    from mvc.history.values import CommitInfo
    from mvc.ids import GitId
    from mvc.workspace.context import Context

ROLLBACK_COMMAND = "mvc rollback {}"
SHORT_ID = 10
_TARGET_HINT = 'name one by REV, --step or --steps-back; "mvc log" lists the commits'


def checked(name: str, value: int) -> int:
    """Return a number of steps as an int.

    Raises:
        UsageError: no whole number, or a negative one.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{name} is a whole number, not {value!r}") from None
    if number < 0:
        raise UsageError(f"{name} is not negative, but {number:,}")
    return number


def find_tip(context: Context, branch: str | None) -> tuple[str, CommitInfo]:
    """Return the name and the tip of the branch that is meant; the current one where None.

    Raises:
        UsageError: HEAD is on no branch, and none was named.
        NotFoundError: no such branch, or it has no commit yet.
    """
    history = context.history
    head = history.head()
    name = head.branch if branch is None else branch
    if name is None:
        raise UsageError(
            "HEAD is on no branch, and a rollback moves one", hint='name it with "--branch NAME"'
        )
    tip = history.find_ref(HEADS + name)
    if tip is None and name == head.branch:
        raise NotFoundError(f"branch {name!r} has no commit yet")
    if tip is None:
        raise NotFoundError(f"no branch {name!r}", hint='"mvc branch" lists them')
    return name, history.read_commit(tip)


def find_ancestor(context: Context, branch: str, tip: CommitInfo, revision: str) -> CommitInfo:
    """Return the commit that a revision names.

    Raises:
        NotFoundError: no such revision.
        ConflictError: it is no ancestor of the branch.
        ReleasedError: its content was released.
    """
    history = context.history
    target = history.read_commit(context.history.resolve_commit(revision))
    if not history.is_ancestor(target.id, tip.id):
        raise ConflictError(
            f"{revision!r} is commit {target.id[:SHORT_ID]} {target.subject!r}, "
            f"which is no ancestor of branch {branch!r}",
            hint=f'"mvc log {branch}" lists where it can go back to',
        )
    check_whole(context, target.id)
    return target


def find_healthy(context: Context, branch: str, tip: CommitInfo) -> tuple[CommitInfo, str]:
    """Return the newest healthy commit below the tip, and in words what it is.

    Raises:
        NotFoundError: there is none that still has its content.
        FormatError: the marks are damaged.
    """
    marks = find_notes(context.history, HEALTHY_REF)
    skipped = 0
    for info in islice(first_parents(context, tip), 1, None):
        if marks is None or marks.find(info.id) is None:
            continue
        if _is_whole(context, info.id):
            return info, f"the newest healthy commit below the tip{_passed_over(skipped)}"
        skipped += 1
    raise NotFoundError(
        f"no commit below the tip of branch {branch!r} is marked as healthy{_passed_over(skipped)}",
        hint=_TARGET_HINT,
    )


def find_step(context: Context, branch: str, tip: CommitInfo, step: int) -> tuple[CommitInfo, str]:
    """Return the commit of a step, or the newest before it, and in words what it is.

    Raises:
        NotFoundError: there is none that still has its content.
    """
    found, skipped = _find_until(context, tip, step, exactly=True)
    if found is None:
        raise _nothing_until(branch, step, skipped)
    if read_annotations(found).step == step:
        return found, f"the commit of step {step:,}{_passed_over(skipped)}"
    return found, f"the newest commit up to step {step:,}{_passed_over(skipped)}"


def find_back(context: Context, branch: str, tip: CommitInfo, steps: int) -> tuple[CommitInfo, str]:
    """Return the newest commit at least so many steps before the tip, and in words what it is.

    Raises:
        NotFoundError: there is none that still has its content, or the tip has no step.
    """
    last = read_annotations(tip).step
    if last is None:
        raise NotFoundError(
            f"the tip of branch {branch!r} has no step to count back from", hint=_TARGET_HINT
        )
    found, skipped = _find_until(context, tip, last - steps, exactly=False)
    if found is None:
        raise _nothing_until(branch, last - steps, skipped)
    text = f"the newest commit at least {steps:,} steps before the tip's step {last:,}"
    return found, text + _passed_over(skipped)


def _find_until(
    context: Context, tip: CommitInfo, step: int, *, exactly: bool
) -> tuple[CommitInfo | None, int]:
    """Return the newest whole commit of a step, or else up to it; and how many were released.

    A branch that started counting anew has a step twice; the newest commit is meant. ``exactly``
    prefers an older commit of just that step to a newer one below it.
    """
    nearest, skipped = None, 0
    for info in first_parents(context, tip):
        other = read_annotations(info).step
        if other is None or other > step or (nearest is not None and other < step):
            continue
        if not _is_whole(context, info.id):
            skipped += 1
        elif other == step or not exactly:
            return info, skipped
        else:
            nearest = info
    return nearest, skipped


def _nothing_until(branch: str, step: int, skipped: int) -> NotFoundError:
    return NotFoundError(
        f"branch {branch!r} has no commit up to step {step:,}{_passed_over(skipped)}",
        hint=_TARGET_HINT,
    )


def _passed_over(skipped: int) -> str:
    return f", {skipped:,} passed over whose content was released" if skipped else ""


def _is_whole(context: Context, commit: GitId) -> bool:
    """Tell whether all content of a commit is there, as far as that was ever given up."""
    if find_release(context, commit) is None:
        return True
    tree = context.history.read_tree(commit)
    return all(is_complete(context, entry.blob) for entry in tree.values())


def check_whole(context: Context, commit: GitId) -> None:
    """Check that no content of a commit was released, or that it came back.

    Raises:
        ReleasedError: some of it is gone.
    """
    tree = context.history.read_tree(commit)
    versions = [(path, entry.blob) for path, entry in tree.items()]
    check_content(context, versions, commit=commit, command=ROLLBACK_COMMAND)


def count_left(context: Context, tip: CommitInfo, target: CommitInfo) -> int:
    """Return how many commits the tip reaches and the target does not."""
    for number, info in enumerate(first_parents(context, tip)):
        if info.id == target.id:
            return number
        if len(info.parents) > 1:
            break  # the other side of a merge counts as well
    kept = {info.id for info in context.history.walk([target.id])}
    return sum(info.id not in kept for info in context.history.walk([tip.id]))

"""Go back: take back the last move, or take a branch back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.options import DRY_RUN, FORCE, QUIET_PROGRESS_JSON, check_alone
from mvc.cli.output import Output, Shown, pick, printable, stdout
from mvc.cli.parameters import argument, flag, integer, string
from mvc.cli.progress import byte_progress
from mvc.cli.render.moves import commit_line, write_counts
from mvc.cli.render.text import count_text, short_id, step_text
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from mvc.operations.rollback import RollbackPlan, RollbackResult
    from mvc.operations.undo import UndoResult
    from mvc.repo import Repo


def undo(
    redo: bool = flag("--redo", "Redo what the last undo took back."),
    dry_run: bool = DRY_RUN,
    force: bool = FORCE,
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Take back the last commit, amend, merge, switch or reset.

    After a commit or amend, the branch moves back; files and index stay as they are, so the work is
    staged again. After a switch, HEAD goes back to where it was. After a reset or merge, the
    branch, the index and the files return.

    Each further "mvc undo" goes one step further back; "mvc undo --redo" returns. Changed files
    stop an undo that would overwrite them, unless -f is given. What was only staged, or never
    added, is not in the history and cannot be brought back. Tags stay where they are; after a "mvc
    tag -f", undo says how to move one back.
    """
    repo = open_repo()
    with byte_progress("undoing", wanted=shown.progress):
        result = repo.undo(redo=redo, force=force, dry_run=dry_run)
    facts = pick(
        result,
        "action kind branch commit left_branch left_commit=left written removed "
        "diverged_branch tags",
    )
    fields = {**facts, "dry_run": dry_run}
    shown.answer(fields, _write_undo, repo, result, redo=redo, dry_run=dry_run)


def _write_undo(out: Output, repo: Repo, result: UndoResult, *, redo: bool, dry_run: bool) -> None:
    verbs = {
        (False, False): "Took back",
        (False, True): "Would take back",
        (True, False): "Redid",
        (True, True): "Would redo",
    }
    out.line(f"{verbs[redo, dry_run]}: {printable(result.action)}")
    place = "HEAD" if result.branch is None else f"Branch '{printable(result.branch)}'"
    position = "without a commit"
    if result.commit is not None:
        position = f"at {commit_line(repo, out, result.commit)}"
    out.line(f"{place} {'would be' if dry_run else 'is now'} {position}")
    write_counts(out, result, dry_run=dry_run)
    for name in map(printable, result.tags):
        out.line(
            f"Tag '{name}' was not moved back: \"mvc tag -f {name} {name}@{{1}}\" undoes its last move"
        )
    if result.diverged_branch is not None:
        verb = (
            "keeps the abandoned commits again" if redo else "and the note of the rollback are gone"
        )
        out.line(f"Branch '{printable(result.diverged_branch)}' {verb}")
    if result.kind == "commit" and not redo:
        out.line(
            f"Index and files {'would stay' if dry_run else 'are'} as they were; "
            f"the commit taken back is {short_id(result.left)}"
        )


def rollback(
    revision: str | None = argument("[REV]"),
    step: int | None = integer("--step N", "Go to the commit of step N or the last one before it."),
    steps_back: int | None = integer("--steps-back N", "Go at least N steps back from the tip."),
    healthy: bool = flag("--healthy", "Go to the newest healthy commit (default)."),
    branch: str | None = string("--branch NAME", "Move this branch instead of the current one."),
    message: str = string("-m, --message REASON", "Why; shown by the log.", default=""),
    force: bool = FORCE,
    dry_run: bool = DRY_RUN,
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Take a branch back to an earlier commit; what it leaves stays on diverged/BRANCH/STEP.

    The target is REV, the commit of a step, a number of steps back, or the newest commit that is
    marked as healthy. Commits whose content was released are skipped.

    Nothing is rewritten: the abandoned commits keep their ids and content, "mvc log --graph --all"
    shows them with the reason, and "mvc undo" brings the branch back. If HEAD is on the branch,
    index and files follow; changed files stop a rollback that would overwrite them.
    """
    check_alone(
        [
            ("REV", revision is not None),
            ("--step", step is not None),
            ("--steps-back", steps_back is not None),
            ("--healthy", healthy),
        ],
    )
    repo = open_repo()
    plan = repo.runs.plan_rollback(
        revision, step=step, steps_back=steps_back, healthy=healthy, branch=branch
    )
    if shown.as_text:
        _write_plan(stdout(), repo, plan)
    result = None
    if not dry_run:
        with byte_progress("rolling back", wanted=shown.progress):
            result = repo.runs.rollback(plan, reason=message, force=force)
    shown.answer(_rollback_fields(plan, result, message), _write_rollback, plan, result)


def _rollback_fields(
    plan: RollbackPlan, result: RollbackResult | None, reason: str
) -> dict[str, object]:
    return {
        **pick(plan, "branch from=tip from_step=tip_step to=target to_step=target_step"),
        **pick(plan, "choice abandoned"),
        "diverged_branch": plan.diverged_branch if result is None else result.diverged_branch,
        "reason": reason,
        "moved": result is not None and not plan.is_empty,
        "dry_run": result is None,
        "written": () if result is None else result.written,
        "removed": () if result is None else result.removed,
    }


def _write_rollback(out: Output, plan: RollbackPlan, result: RollbackResult | None) -> None:
    if plan.is_empty:
        return
    verb = "would go back" if result is None else "went back"
    out.line(f"Branch '{printable(plan.branch)}' {verb} to {short_id(plan.target)}")
    if result is not None:
        if result.diverged_branch != plan.diverged_branch:
            kept = printable(result.diverged_branch or "")
            out.line(f"the abandoned commits are kept on {kept}")
        write_counts(out, result)


def _write_plan(out: Output, repo: Repo, plan: RollbackPlan) -> None:
    """Write from where to where, what is abandoned, and where that stays."""
    name = printable(plan.branch)
    if plan.is_empty:
        step = step_text(plan.tip_step)
        choice = printable(plan.choice)
        out.line(f"nothing to do: '{name}' is already at {short_id(plan.tip)}{step}, {choice}")
        return
    ends = (("from", plan.tip, plan.tip_step), ("to", plan.target, plan.target_step))
    numbers = ["" if step is None else f"{step:,}" for _, _, step in ends]
    size = max(map(len, numbers))
    for (word, commit, _), number in zip(ends, numbers, strict=True):
        step = f"step {number:>{size}}" if number else ""
        subject = printable(repo.show(commit).info.subject)
        parts = (f"{word:<4}", out.style(short_id(commit), "yellow"), step, subject)
        out.line("  ".join(part for part in parts if part))
    out.line(f"why   {printable(plan.choice)}")
    kept = printable(plan.diverged_branch or "")
    out.line(f"left  {count_text(plan.abandoned, 'commit')}, kept on {out.style(kept, 'green')}")

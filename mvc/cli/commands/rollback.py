"""Take a branch back to an earlier commit and keep what it leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.options import DRY_RUN, FORCE, QUIET_PROGRESS_JSON, check_alone
from mvc.cli.output import Output, Shown, pick, printable, stdout
from mvc.cli.parameters import argument, flag, integer, string
from mvc.cli.progress import byte_progress
from mvc.cli.render.moves import write_counts
from mvc.cli.render.text import count_text, short_id, step_text
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from mvc.operations.rollback import RollbackPlan, RollbackResult
    from mvc.repo import Repo


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

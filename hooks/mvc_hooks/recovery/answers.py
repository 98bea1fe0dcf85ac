"""What is done about an alarm: the learning rate, the way back, or the end of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from mvc import MvcError
from mvc_hooks.errors import DivergedError
from mvc_hooks.recovery.rollback import RollbackRequest, name_diverged, roll_back

if TYPE_CHECKING:
    from mvc_hooks.divergence.ladder import Action
    from mvc_hooks.reports import RollbackReport
    from mvc_hooks.run.running import Running
    from mvc_hooks.snapshot.image import Snapshot


def answer(running: Running, action: Action, started_s: float) -> RollbackReport | None:
    """Do what the ladder says.

    Args:
        running: the run.
        action: what to do.
        started_s: ``time.perf_counter()`` at the alarm.

    Returns:
        A report where the run went back.

    Raises:
        DivergedError: the ladder says to stop, or there is nothing to go back to.
    """
    verdict = running.judge.verdict
    assert verdict is not None
    if action.stop:
        give_up(running, action.reason)
    if action.rollback is None:
        running.run.scale_lr(action.lr_factor)
        return None
    running.run.is_clean = False  # should the way back fail, this is not committed at the end
    request = RollbackRequest(
        action.rollback, action.skip_batches, verdict.onset_step, action.reason
    )
    return go_back(running, request, started_s)


def give_up(running: Running, reason: str, cause: Exception | None = None) -> NoReturn:
    """End the run; what diverged is not committed.

    Raises:
        DivergedError: always.
    """
    running.log.stop(running.step, reason)
    running.run.is_clean = False
    raise DivergedError(
        f"the run diverged: {reason}", hint="mvc log --graph --all shows what was tried"
    ) from cause


def go_back(running: Running, request: RollbackRequest, started_s: float) -> RollbackReport:
    """Take run and branch back; what diverged is kept where the user wants that.

    Raises:
        DivergedError: there is nothing to go back to.
        MvcError: no such revision, or the branch does not come from it.
    """
    running.settle()
    commits, from_step = running.commits, running.step
    tip = running.ranks.share(commits.tips.get(running.branch))
    keeps = running.settings.keep_diverged and bool(tip)
    frozen = commits.freeze(running.capture, from_step) if keeps else None
    if frozen is not None:
        frozen.fence.wait()  # the restore below changes what is being copied
    try:
        report, stored = roll_back(
            running.repo, running.run, commits, request, started_s, running.ranks
        )
    except MvcError as error:
        if frozen is not None:
            commits.drop(frozen)
        if isinstance(error, DivergedError):
            give_up(running, error.message, error)
        raise
    running.run.is_clean = True
    running.run.scale_lr(running.judge.ladder.lr_factor / _lr_factor(stored.ladder))
    running.judge.forget_after(report.to_step)
    running.talk.forget()
    commits.forget_after(report.to_step, report.to_commit)
    if frozen is not None and tip:
        _keep(running, frozen, report, tip)
    _tell_next_commit(running, report)
    running.log.rollback(report)
    return report


def _keep(running: Running, frozen: Snapshot, report: RollbackReport, tip: str) -> None:
    """Commit what diverged on top of what the branch left."""
    step, branch = report.from_step, running.branch
    name = report.diverged_branch or name_diverged(running.repo, branch, step, tip)
    running.commits.tips[name] = tip
    running.commits.submit(frozen, name, f"diverged at step {step}: {report.reason}", {})


def _tell_next_commit(running: Running, report: RollbackReport) -> None:
    """Have the next commit say what happened, also where it happened twice since the last one."""
    facts = running.commits.facts
    before = facts.get("skipped_batches", "none")
    skipped = [text for text in (before, report.skipped) if text != "none"]
    facts |= {
        "rolled_back_from": f"step {report.from_step}",
        "rolled_back_to": f"step {report.to_step}",
        "rolled_back_because": report.reason,
        "skipped_batches": ", ".join(skipped) or "none",
    }


def _lr_factor(ladder: object) -> float:
    factor = ladder.get("lr_factor") if isinstance(ladder, dict) else None
    return factor if isinstance(factor, float) and factor > 0 else 1.0

"""Training runs: how they go, and back to where they were well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc import operations, runs, workspace
from mvc.repo.opening import OpenRepo

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from mvc.ids import GitId
    from mvc.operations.rollback import RollbackPlan, RollbackResult
    from mvc.operations.scale import ScaleStatus
    from mvc.operations.watch import RunFollower
    from mvc.repo.opening import Progress
    from mvc.runs.feed import RunFeed
    from mvc.runs.records import RunView
    from mvc.scaling.results import ScaleResult


class TrainingRuns(OpenRepo):
    """Training runs: how they go, and back to where they were well."""

    def open_feed(self, branch: str) -> RunFeed:
        """Open the feed in which a training run reports its progress, for ``mvc watch`` and others.

        The feed is not part of the history. Writing to it never raises, whatever the machine does.

        Raises:
            UsageError: not a valid branch name.
        """
        return runs.feed.open_feed(self._context, branch)

    def read_run(
        self, branch: str | None = None, *, losses: int = 2000, events: int = 20
    ) -> RunView:
        """Return how a run is going; only the end of its feed is read, so this is quick.

        Args:
            branch: which run; defaults to that of the current branch, or else the latest.
            losses: at most this many of the last losses.
            events: at most this many of the last commits, alarms, rollbacks and other events.

        Raises:
            NotFoundError: there is no such run.
            UsageError: not a valid branch name.
            StorageError: the machine failed.
        """
        return self.follow_run(branch, losses=losses, events=events).read()

    def follow_run(
        self, branch: str | None = None, *, losses: int = 2000, events: int = 20
    ) -> RunFollower:
        """Return a reader for ``read_run`` that reads only what is new each time it is asked.

        Raises:
            NotFoundError: there is no such run.
            UsageError: not a valid branch name.
            StorageError: the machine failed.
        """
        return operations.watch.follow_run(self._context, branch, losses=losses, events=events)

    def plan_rollback(
        self,
        revision: str | None = None,
        *,
        step: int | None = None,
        steps_back: int | None = None,
        healthy: bool = False,
        branch: str | None = None,
        at_step: int | None = None,
    ) -> RollbackPlan:
        """Return where a branch would roll back to, and what it would leave; nothing is changed.

        Name the target in one way; without any, it is the newest healthy commit. Unless it is
        named by revision, commits whose content was released are skipped.

        Args:
            revision: this commit.
            step: the commit of this training step, or else the newest one before it.
            steps_back: the newest commit at least this many steps before the tip.
            healthy: the newest commit below the tip that ``mark_healthy`` marked.
            branch: the branch to move; defaults to the current one.
            at_step: the step at which the trouble was seen, which names the branch that keeps the
                abandoned commits; defaults to the step of the tip.

        Raises:
            UsageError: more than one way, a negative number, or no branch while HEAD is detached.
            NotFoundError: no such branch or revision, or no commit that fits.
            ConflictError: the revision is not an ancestor of the branch.
        """
        return operations.rollback.plan_rollback(
            self._context,
            revision,
            step=step,
            steps_back=steps_back,
            healthy=healthy,
            branch=branch,
            at_step=at_step,
        )

    def rollback(
        self,
        plan: RollbackPlan,
        *,
        reason: str = "",
        force: bool = False,
        progress: Progress = None,
    ) -> RollbackResult:
        """Roll a branch back as planned; what it leaves stays on ``diverged/<branch>/<step>``.

        If HEAD is on the branch, index and files follow, and ``undo`` brings everything back.

        Args:
            plan: from ``plan_rollback``.
            reason: why, on one line; the log shows it at the abandoned tip.
            force: discard local changes that are in the way.
            progress: called with bytes written.

        Raises:
            ConflictError: the branch moved since it was planned, or local changes would be lost,
                and not ``force``; nothing was changed.
        """
        return operations.rollback.run_rollback(
            self._context, plan, reason=reason, force=force, progress=progress
        )

    def mark_healthy(self, revision: str, *, note: str = "") -> None:
        """Mark a commit as one that a rollback may return to; the commit itself does not change.

        Args:
            revision: which commit; a mark that it already has stays.
            note: a remark, on one line.

        Raises:
            NotFoundError: no such revision.
            ConflictError: two ranks of its run held different bytes (``agreement`` of its log entry).
            FormatError: the existing marks are damaged.
        """
        workspace.verdicts.mark_healthy(self._context, revision, note=note)

    def healthy(self, branch: str | None = None) -> tuple[GitId, ...]:
        """Return the healthy commits of a branch along first parents, newest first.

        Args:
            branch: defaults to HEAD.

        Raises:
            NotFoundError: no such branch.
            FormatError: the history or its marks are damaged.
        """
        return workspace.verdicts.healthy_commits(self._context, branch)

    def plan_scale(self, first: int, last: int, *, keep: bool = True) -> tuple[int, ...]:
        """Return the sizes of a run that grows, each at most twice the one before.

        Args:
            first: ranks at the start.
            last: ranks at the end.
            keep: make it the plan of this repository, in place of another; results stay.

        Raises:
            UsageError: it does not go from at least 1 rank to as many or more.
        """
        return operations.scale.plan_scale(self._context, first, last, keep=keep)

    def scale_status(self, revision: str = "HEAD") -> ScaleStatus:
        """Return which sizes of the plan have passed their gates in the history of a commit.

        Raises:
            NotFoundError: there is no plan, or no such revision.
        """
        return operations.scale.scale_status(self._context, revision)

    def record_scale(
        self,
        measured: Mapping[str, float | None],
        revision: str = "HEAD",
        *,
        ranks: int | None = None,
        limits: Mapping[str, float] | None = None,
        waive: Collection[str] = (),
    ) -> ScaleResult:
        """Judge what a run measured at a size, and note the result on a commit.

        Args:
            measured: ``sync_p99_s``, ``bandwidth_used``, ``deviation_max``, ``mismatches``, ``checks``,
                ``recovery_s``, ``loss`` and ``ranks``; None or left out is what was not measured, and
                fails its gate.
            revision: a commit of the run at this size.
            ranks: of the run, unless ``measured`` says so.
            limits: other limits than 1e-5 for ``deviation_max``, 0.05 for ``sync_p99_s``, 0.85 for
                ``bandwidth_used``, 30 for ``recovery_s`` and 0.05 for ``loss_rise``.
            waive: gates whose failure is not to count: ``bits``, ``deviation``, ``sync``, ``bandwidth``,
                ``recovery``, ``loss``.

        Raises:
            UsageError: a name or number makes no sense, or this size is not in the plan.
            ConflictError: a smaller size has not passed its gates; nothing was noted.
            NotFoundError: there is no plan, or no such revision.
        """
        return operations.scale.record_scale(
            self._context, measured, revision, ranks=ranks, limits=limits or {}, waive=waive
        )

"""The commits of a run: when one is made, what it says, and what became of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mvc import layout_state
from mvc_hooks.commits.queue import CommitPlan, Committer
from mvc_hooks.errors import CommitFailedError
from mvc_hooks.snapshot.image import MemoryPool, take_snapshot
from mvc_hooks.snapshot.ring import SnapshotRing
from mvc_hooks.writer.process import WriterSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mvc import Identity, Repo
    from mvc_hooks.commits.branchlock import BranchLock
    from mvc_hooks.reports import CommitReport
    from mvc_hooks.run.live import LiveRun
    from mvc_hooks.run.log import RunLog
    from mvc_hooks.settings import Settings
    from mvc_hooks.snapshot.image import Snapshot


class KeptStates:
    """What every rank keeps of the states of a run: the ring, and how far commits have come.

    Attributes:
        branch: the branch of the run.
        reports: of every commit that was tried, oldest first.
        skipped: steps whose commit was left out.
        ring: of light snapshots, or None.
        last_step: newest step that is committed or on its way; None for none.
        facts: what the next commit says beside the rest: name → text.
        failure: why a commit was not made, where the other ranks have not heard of it yet.
    """

    def __init__(self, branch: str, run: LiveRun, settings: Settings) -> None:
        """Keep nothing yet."""
        self.branch, self._run = branch, run
        self.reports: list[CommitReport] = []
        self.skipped: list[int] = []
        self.ring = None if settings.ring is None else SnapshotRing(settings.ring)
        self.last_step: int | None = None
        self.facts: dict[str, str] = {}
        self.failure: CommitFailedError | None = None

    def freeze_light(self, capture: Callable[[], Mapping[str, object]], step: int) -> None:
        """Put the state into the ring, where there is one and it is time."""
        if self.ring is None or not self.ring.is_due(step):
            return
        snapshot = self.ring.take(capture(), step, self._run.fenced_tensors())
        self._run.stand_before_step(snapshot.fence)

    def forget_after(self, step: int, commit: str | None) -> None:
        """Go back with the run: later snapshots are of a run that is gone."""
        if self.ring is not None:
            self.ring.forget_after(step)
        self.last_step = step if commit is not None else None


class Commits(KeptStates):
    """Freezes states of a run and has them committed to its branch."""

    def __init__(
        self,
        repo: Repo,
        branch: str,
        run: LiveRun,
        *,
        settings: Settings,
        log: RunLog,
        lock: BranchLock,
        identity: Identity | None,
        on_commit: Callable[[CommitReport], None],
    ) -> None:
        """Start the writer.

        Args:
            repo: where to commit to.
            branch: which branch.
            run: what is committed.
            settings: of the checkpointer.
            log: is told of everything.
            lock: of the branch; the writer holds it, too.
            identity: who commits.
            on_commit: called for every commit that was made.
        """
        super().__init__(branch, run, settings)
        self._settings, self._log, self._on_commit = settings, log, on_commit
        self._told: dict[int, dict[str, str]] = {}
        self._pool = MemoryPool()
        name, email = (identity.name, identity.email) if identity else (None, None)
        self._committer = Committer(
            WriterSettings(
                str(repo.worktree), name, email, settings.writer_threads, (lock.descriptor,)
            ),
            self._pool,
        )

    @property
    def depth(self) -> int:
        """Snapshots that wait for the writer or are being written."""
        return self._committer.depth

    @property
    def tips(self) -> dict[str, str]:
        """Branch → commit that this run left it at; "" for a branch without one."""
        return self._committer.tips

    def commit(
        self,
        capture: Callable[[], Mapping[str, object]],
        step: int,
        message: str,
        metrics: Mapping[str, float],
        *,
        is_asked: bool,
    ) -> bool:
        """Freeze the state and hand it to the writer.

        Args:
            capture: returns the live state; called when there is room for it.
            step: completed steps.
            message: subject and body.
            metrics: name → number.
            is_asked: by the user; then it is never left out.

        Returns:
            Whether it is on its way.

        Raises:
            CommitFailedError: an earlier one failed, and that is to stop the run.
        """
        since_s = time.perf_counter()
        policy, room = self._settings.when_behind, self._settings.in_flight
        is_behind = self._committer.depth >= room
        if is_behind and policy == "skip" and not is_asked:
            self.skipped.append(step)
            self._log.skip(step, policy)
            return False
        if is_behind:
            self._log.behind(step, policy)
            self._take(self._committer.wait(room - 1))
        self.submit(self.freeze(capture, step, since_s), None, message, metrics)
        if is_behind and policy == "sync":
            self.wait()
        return True

    def freeze(
        self,
        capture: Callable[[], Mapping[str, object]],
        step: int,
        since_s: float | None = None,
    ) -> Snapshot:
        """Freeze the state; ``submit`` or ``drop`` the snapshot next.

        Raises:
            StorageError: no memory for it.
        """
        tensors = self._run.fenced_tensors()
        snapshot = take_snapshot(capture(), step, self._pool, tensors, since_s=since_s)
        self._run.stand_before_step(snapshot.fence)
        return snapshot

    def prepare(self, state: Mapping[str, object]) -> None:
        """Have memory for a state allocated before its first snapshot is due."""
        layout = layout_state(state, self._pool.plan)
        self._pool.plan = layout.plan
        self._pool.prepare(layout.size_bytes)

    def drop(self, snapshot: Snapshot) -> None:
        """Forget a snapshot that nobody will commit."""
        snapshot.fence.wait()
        self._pool.give_back(snapshot.memory)

    def submit(
        self, snapshot: Snapshot, branch: str | None, message: str, metrics: Mapping[str, float]
    ) -> None:
        """Hand a snapshot to the writer; its memory is taken back when it is committed.

        Args:
            snapshot: of ``freeze``.
            branch: another branch than the run's, or None.
            message: subject and body.
            metrics: name → number.
        """
        target = branch or self.branch
        facts: dict[str, str] = {}
        if target == self.branch:
            facts, self.facts = self.facts, {}
            self._told[snapshot.step] = facts
        plan = CommitPlan(target, message, metrics, facts, self._settings.delta)
        self._committer.submit(snapshot, plan)
        self._log.snapshot(snapshot)
        if target == self.branch:
            self.last_step = snapshot.step

    def commit_frozen(self, snapshot: Snapshot, message: str) -> None:
        """Commit a snapshot of the ring, which keeps its memory."""
        plan = CommitPlan(self.branch, message, {}, {}, self._settings.delta)
        self._committer.submit(snapshot, plan, is_borrowed=True)
        self.last_step = snapshot.step

    def pump(self) -> None:
        """Move what can be moved; never waits.

        Raises:
            CommitFailedError: one failed, and that is to stop the run.
        """
        self._take(self._committer.pump())

    def wait(self) -> None:
        """Wait until all are durable.

        Raises:
            CommitFailedError: one failed, and that is to stop the run.
        """
        self._take(self._committer.wait())

    def settle(self) -> None:
        """Wait until nothing at all is under way, health marks included; else as ``wait``."""
        self._take(self._committer.wait(with_marks=True))

    def _take(self, reports: list[CommitReport]) -> None:
        """Take reports in, tell of them, and raise for failed ones where that is wanted."""
        self.reports += reports
        failed = [report for report in reports if report.commit is None]
        for report in reports:
            self._log.commit(report)
            told = self._told.pop(report.step, {}) if report.branch == self.branch else {}
            if report.commit is not None:
                self._on_commit(report)
            else:  # the next one has to say it
                self.facts = told | self.facts
        for report in failed:
            if self.last_step == report.step:
                self.last_step = None
        if failed and self._settings.on_failure == "raise":
            raise CommitFailedError(
                str(failed[-1]),
                hint='the last good commit stays good; on_failure="continue" would go on',
            )

    def mark_healthy(self, step: int, commit: str) -> None:
        """Have a commit marked as healthy, beside the training."""
        self._committer.mark_healthy(commit, f"{self._settings.healthy_after} calm steps")
        self._log.healthy(step, commit)

    def close(self) -> None:
        """Wait for all, end the writer, free the memory."""
        try:
            self._take(self._committer.close())
        finally:
            if self.ring is not None:
                self.ring.close()
            self._pool.close()
